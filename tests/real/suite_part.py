"""A part of `tests.real.suites`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """A command that is run in an empty folder, how it tells which of its tests failed,
    and the exit codes that mean 'passed' or 'left out'.
    """

    command: list[str]
    failed: re.Pattern = re.compile(r"(?!)")
    environment: Mapping[str, str] = field(default_factory=dict)
    good_codes: frozenset[int] = frozenset({0})
