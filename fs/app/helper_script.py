"""The two programs that mount(8) and umount(8) look for: where they belong, and what they say.  Pure."""

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
    """Return a program that runs the helper with the packages of an interpreter."""
    module = f"{__package__}.mount_helper"
    return f'#!/bin/sh\n{MARK}\nexec {shlex.quote(interpreter)} -P -m {module} {deed} "$@"\n'
