"""Packages that only some need: how to get one that is missing."""

import sys


def install_command(extra: str) -> str:
    """Return the command that installs what an extra of pyproject.toml names,
    for the interpreter that lacks it: there may be another `pip` in the path.
    """
    return f"{sys.executable} -m pip install 'emberfs[{extra}]'"
