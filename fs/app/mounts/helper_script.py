"""The two programs that mount(8) and umount(8) look for: where they belong, and what they say.

Pure.
"""

import shlex
from typing import Final

from ..machine.entry_modules import ENTRY_PACKAGE

FOLDER: Final = "/sbin"
DEEDS: Final = ("mount", "umount")
MARK: Final = "# Runs the mount helper of EmberFS; written by EmberFS, and removed by it."
"""What tells ours from a file of somebody else's."""


_ANSWERS: Final = 40
_ANSWERS_LAST: Final = _ANSWERS + 32
"""Exit codes of mount(8), so much higher: nobody else ends with these."""


def helper_path(deed: str, folder: str = FOLDER) -> str:
    """Return where the system looks for a helper."""
    return f"{folder}/{deed}.fuse.ember"


def helper_text(deed: str, interpreter: str) -> str:
    """Return a program that runs the helper with the packages of an interpreter.

    Where EmberFS is gone from there, or cannot be run any more, umount(8) does without: nothing
    that is mounted may stay so for lack of a helper.  What the helper itself answers is told by
    its number from what a shell or an interpreter ends with.
    """
    module, python = f"{ENTRY_PACKAGE}.mount_helper", f"{shlex.quote(interpreter)} -P"
    run = [f'exec {python} -m {module} {deed} "$@"']
    if deed == "umount":
        code = f"import sys; from {module} import main; sys.exit({_ANSWERS} + main(sys.argv[1:]))"
        is_ours = f"[ $code -ge {_ANSWERS} ] && [ $code -le {_ANSWERS_LAST} ]"
        run = [
            f'{python} -c {shlex.quote(code)} {deed} "$@"',
            "code=$?",
            f"{is_ours} && exit $((code - {_ANSWERS}))",
            'exec umount -i "$@"',
        ]
    return "\n".join(["#!/bin/sh", MARK, *run, ""])
