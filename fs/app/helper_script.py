"""The two programs that mount(8) and umount(8) look for: where they belong, and what they say.

Pure.
"""

import shlex
from typing import Final

FOLDER: Final = "/sbin"
DEEDS: Final = ("mount", "umount")
MARK: Final = "# Runs the mount helper of EmberFS; written by EmberFS, and removed by it."
"""What tells ours from a file of somebody else's."""


def helper_path(deed: str, folder: str = FOLDER) -> str:
    """Return where the system looks for a helper."""
    return f"{folder}/{deed}.fuse.ember"


def helper_text(deed: str, interpreter: str) -> str:
    """Return a program that runs the helper with the packages of an interpreter.

    Where EmberFS is gone from there umount(8) does without: nothing that is mounted may
    stay so for lack of a helper.
    """
    module, python = f"{__package__}.mount_helper", f"{shlex.quote(interpreter)} -P"
    lines = ["#!/bin/sh", MARK, f'exec {python} -m {module} {deed} "$@"', ""]
    if deed == "umount":
        is_there = (
            f"{python} -c 'from importlib.util import find_spec; exit(not find_spec(\"{module}\"))'"
        )
        lines.insert(2, f'{is_there} 2>/dev/null || exec umount -i "$@"')
    return "\n".join(lines)
