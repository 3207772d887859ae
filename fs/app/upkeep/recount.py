"""`ember quota recount`: are the counters of usage right?

Exit codes: 0 they are (or are now), 1 some are wrong (with --check), or could not be put
right, 2 it could not be counted.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Final

import trio

from ...admin.recount import Recounted, find_directory
from ...admin.recount import recount as count
from ...meta.fsck_scan import Tally
from ...runtime.log import set_up_logging
from ...schema.status import FsError
from ..stores.store_access import StoreChoice, check_exists, open_chosen
from ..terminal.errors import unwrapped
from .fsck import show_progress

WRONG: Final = 1
CANNOT: Final = 2
SHOWN_MAX: Final = 20
"""Findings that come first and are told one by one."""


def recount(
    choice: StoreChoice, path: str, *, is_repair: bool, may_pause: bool, as_json: bool
) -> int:
    """Count, compare, repair if asked to, and tell; return the exit code.

    Args:
        choice: the store.
        path: the directory, from the root of the file system.
        is_repair: whether to put counters right.
        may_pause: whether changes may be held up where the store keeps no lasting snapshots.
        as_json: for programs.
    """
    if is_repair:  # each repair is logged
        set_up_logging("warning")
    try:
        check_exists(choice)
        with unwrapped(), show_progress() as step:
            report = trio.run(_run, choice, path, is_repair, may_pause, step)
    except FsError as error:
        sys.stderr.write(f"ember: {error}\n")
        return CANNOT
    _tell(report, path, as_json=as_json)
    if report.uncertain:
        return CANNOT
    return WRONG if report.left else 0


async def _run(
    choice: StoreChoice,
    path: str,
    is_repair: bool,
    may_pause: bool,
    step: Callable[[Tally], None],
) -> Recounted:
    names = [name for name in os.fsencode(path).split(b"/") if name]
    async with open_chosen(choice) as store:
        top_id = await find_directory(store.engine, names)
        return await count(
            store.engine,
            store.runtime,
            top_id,
            is_repair=is_repair,
            may_pause=may_pause,
            on_progress=step,
        )


def _tell(report: Recounted, path: str, *, as_json: bool) -> None:
    told = {
        "path": path,
        "inode_count": report.inode_count,
        "wrong": [wrong.facts() for wrong in report.wrong],
        "repaired_count": report.repaired_count,
        "left": [wrong.facts() for wrong in report.left],
        "uncertain": [finding.facts() for finding in report.uncertain],
    }
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    for wrong in report.wrong:
        missing = ", ".join(f"{count:+} {word}" for word, count in wrong.missing.items())
        sys.stdout.write(f"WRONG {wrong.path}: {missing}\n")
    for finding in report.uncertain[:SHOWN_MAX]:
        sys.stdout.write(finding.line() + "\n")
    if report.uncertain:
        sys.stdout.write(
            "ember: run `ember fsck --repair` first: what is above leaves usage unsure\n"
        )
    sys.stdout.write(
        f"{path}: {len(report.wrong)} directories counted wrong, {report.repaired_count} repairs,"
        f" {len(report.left)} left; {report.inode_count} inodes\n"
    )
