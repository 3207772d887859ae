"""A store that was there, and whose place is empty now:
its disk is not mounted, or its folder was removed.

Purpose: a process that serves the embedded store makes no other one in its place.  Managers would
know no node, metadata services would make an empty namespace and show it to every mount, and a
restore would find the place taken.  The process ends instead, and is started again until the store
is there (systemd, a keeper, or a supervisor does that).

The mark that says so lies in `process.directory`, else beside the folder of the store: on another
disk than a store that is mounted there.

What this module does not do: clusters of `ember up`, which look before anything starts
(lost_store.py); a host that is lost with mark and store (fs/mgmtd/births.py finds that).
"""

import logging
from pathlib import Path
from typing import Final

import trio

from ...kv.rocksdb_store import holds_nothing
from ...runtime.durable_file import write_durable
from ...runtime.ports import Runtime
from ...schema.config import ProcessConfig
from ...schema.status import FsError, Status

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 2.0
"""Between two looks whether a new store holds anything."""
RETRY_S: Final = 60.0
"""Before a mark that could not be written is tried again."""
_MARK: Final = (
    "The store beside which this lies has held metadata: it is not made anew while this is here.\n"
)


def mark_path(config: ProcessConfig) -> Path:
    """Return where the mark of a process's store is."""
    store = Path(config.kv.path)
    place = Path(config.process.directory) if config.process.directory else store.parent
    return place / f"{store.name}.made"


def check_there(config: ProcessConfig) -> None:
    """Refuse an empty place where a store was; blocking.

    Raises:
        FsError: KV_EMPTY; IO_ERROR when it cannot be looked at.
    """
    if config.kv.engine != "rocksdb" or not config.kv.path:
        return
    mark = mark_path(config)
    if holds_nothing(config.kv.path) and _stands(mark):
        raise FsError(
            Status.KV_EMPTY,
            f"{config.kv.path}: the store that was here is not: mount its disk, or restore a "
            f"backup: ember restore FILE --kv rocksdb:{config.kv.path}; only to begin anew, "
            f"without the files, remove {mark}",
        )


async def note_there(config: ProcessConfig, runtime: Runtime) -> None:
    """Leave the mark once the store holds something.

    A store serves without one, as it did before there were any: its folder's parent may belong
    to somebody else, or be full.
    """
    is_told = False
    while config.kv.engine == "rocksdb":
        try:
            if await runtime.run_blocking(_note, config):
                return
        except FsError as error:
            if not is_told:
                log.warning("should the store be lost, this process would make it anew: %s", error)
            is_told = True
        await trio.sleep(RETRY_S if is_told else LOOK_INTERVAL_S)


def _note(config: ProcessConfig) -> bool:
    mark = mark_path(config)
    if holds_nothing(config.kv.path):
        return False
    if _stands(mark):
        return True
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_durable(mark, _MARK)
    except OSError as error:
        raise FsError(Status.IO_ERROR, f"{mark}: {error.strerror}") from error
    return True


def _stands(mark: Path) -> bool:
    try:
        return mark.exists()
    except OSError as error:
        raise FsError(Status.IO_ERROR, f"{mark}: {error.strerror}") from error
