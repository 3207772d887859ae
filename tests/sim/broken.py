"""The registry of mutants: each breaks one rule of EmberFS,
and says what it is most sensitive to.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from .scenario import run_seed
from .shape import Shape

Patch = Callable[[], None]
MUTANTS: Final[dict[str, Patch]] = {}
AIMS: Final[dict[str, "Aim"]] = {}


@dataclass(frozen=True)
class Aim:
    """What a mutant is most sensitive to: in every second seed nothing else happens."""

    faults: tuple[str, ...]
    shape: dict[str, Any]

    def run(self, seed: int, work_s: float) -> None:
        """Run a seed aimed at the mutant; raises what is broken."""
        shape = replace(Shape.draw(seed, is_dense=True), **{"volley_count": 0, **self.shape})
        run_seed(seed, work_s=work_s, only=self.faults, shape=shape)


def mutant(*faults: str, **shape: Any) -> Callable[[Patch], Patch]:
    """Register a mutant under its function's name; the docstring says which rule is broken.

    Args:
        faults: the kinds of an aimed seed.
        shape: what its cluster and workload are like; the rest is drawn, and clients hardly pause.
    """

    def register(patch: Patch) -> Patch:
        MUTANTS[patch.__name__] = patch
        AIMS[patch.__name__] = Aim(faults, shape)
        return patch

    return register


async def nothing(*_args: Any, **_options: Any) -> None:
    """Stand for what is left out."""
    await trio.lowlevel.checkpoint()
