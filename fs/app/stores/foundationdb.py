"""A cluster of FoundationDB as the command line sees it: named by `--kv`, asked who it is, emptied.

    foundationdb:CLUSTERFILE    FoundationDB by its cluster file
    foundationdb                the same, by /etc/foundationdb/fdb.cluster
    rocksdb                     the embedded store, which is the default

Blocking; the client library is loaded only by what talks to FoundationDB.
"""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...schema.config import KvSection
from ...schema.status import FsError, Status

if TYPE_CHECKING:
    from ...kv.foundationdb import FoundationDbEngine

T = TypeVar("T")

FOUNDATIONDB: Final = "foundationdb"
STATUS_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What FoundationDB said."""

    where: str
    versions: tuple[str, ...]
    """Of its server processes; empty: it did not say."""
    redundancy: str
    answer_s: float
    """Time that one read version took."""

    def text(self) -> str:
        """Return the report as people say it."""
        version = "/".join(self.versions) or "(version not told)"
        redundancy = f", redundancy {self.redundancy}" if self.redundancy else ""
        return (
            f"FoundationDB {version} at {self.where}{redundancy}, answers in "
            f"{self.answer_s * 1e3:.1f} ms"
        )


def parse_kv(text: str) -> str:
    """Return what the cluster's record says of its store:
    `foundationdb:/PATH`, or nothing for the embedded one.

    Raises:
        FsError: BAD_CONFIG for anything else.
    """
    engine, _, path = text.partition(":")
    if text == "rocksdb":
        return ""
    if engine != FOUNDATIONDB or (text.endswith(":") and not path):
        raise FsError(
            Status.BAD_CONFIG, f"--kv {text}: foundationdb:CLUSTERFILE, foundationdb or rocksdb"
        )
    return f"{FOUNDATIONDB}:{Path(path or KvSection().cluster_file).absolute()}"


def kv_section(recorded: str) -> KvSection:
    """Return the configuration of a process that works on the recorded FoundationDB."""
    return KvSection(engine=FOUNDATIONDB, cluster_file=recorded.partition(":")[2])


def ask_store(recorded: str, cluster_id: str) -> StoreReport:
    """Return what FoundationDB says of itself.

    Raises:
        FsError: BAD_CONFIG, KV_UNREACHABLE, as fs.kv.foundationdb.open_engine.
    """

    async def ask(engine: "FoundationDbEngine") -> StoreReport:
        began_s = time.monotonic()
        await engine.check_reachable(STATUS_TIMEOUT_S)
        answer_s = time.monotonic() - began_s
        versions, redundancy = read_status(await engine.server_status(STATUS_TIMEOUT_S))
        return StoreReport(engine.where, versions, redundancy, answer_s)

    return _with_engine(recorded, cluster_id, ask)


def read_status(text: bytes) -> tuple[tuple[str, ...], str]:
    """Return (versions of the processes, redundancy mode) from FoundationDB's status;
    what is missing is empty.
    """
    try:
        cluster = json.loads(text or b"{}").get("cluster", {})
        processes = cluster.get("processes", {}).values()
        versions = tuple(sorted({str(p["version"]) for p in processes if "version" in p}))
        return versions, str(cluster.get("configuration", {}).get("redundancy_mode", ""))
    except (ValueError, AttributeError, TypeError):  # a report for people must not fail on its form
        return (), ""


def empty_store(recorded: str, cluster_id: str) -> None:
    """Remove everything of a cluster from FoundationDB;
    raises FsError as `ask_store`, or as a commit.
    """

    async def clear(engine: "FoundationDbEngine") -> None:
        await engine.clear_all()

    _with_engine(recorded, cluster_id, clear)


def _with_engine(
    recorded: str, cluster_id: str, use: Callable[["FoundationDbEngine"], Awaitable[T]]
) -> T:
    import trio  # noqa: PLC0415 - only clusters on FoundationDB pay for it

    from ...kv.foundationdb import open_engine  # noqa: PLC0415
    from ...rpc.transport import SocketNetwork  # noqa: PLC0415
    from ...runtime.real import real_runtime  # noqa: PLC0415

    async def run() -> Any:
        runtime = real_runtime(SocketNetwork())
        engine = await open_engine(kv_section(recorded), runtime, cluster_id=cluster_id)
        return await use(engine)

    result: T = trio.run(run)
    return result
