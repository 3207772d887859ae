"""What `ember up` waits for: services that serve, and chains that can be read and written.

Invariants: every wait ends, within the limits below; what it raises names the service or
the chains, and where the log is.

Does not: start or stop anything.
"""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ...schema.routing import LocalState, RoutingInfo
from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir, ClusterRecord, node_id_of, storage_names
from ..reach.mgmtd_link import fetch_routing
from ..supervision import supervisor_link

SERVICE_TIMEOUT_S: Final = 60.0
CHAIN_TIMEOUT_S: Final = 60.0
REDUNDANCY_TIMEOUT_S: Final = 5.0
"""`up` waits this long for resync before it says that it goes on in the background."""
POLL_S: Final = 0.03


DISK_STATUSES: Final = (
    Status.FOREIGN_DISK,
    Status.BAD_DISK_FORMAT,
    Status.IO_ERROR,
    Status.NO_SPACE,
    Status.OUT_OF_RESOURCES,
)
"""Of a process none of whose disks can be used (fs/app/storage.py):
there is nothing to put right in its configuration.
"""

_ENDED: Final = {"restarting", "stopped"}
"""States of a service whose process is not there: then alone the last line of its log says why.

One that is started again has begun to write other lines.
"""

_LOG_PREFIX: Final = re.compile(r"^\S+Z \w+ +[\w.]+: ")


class ServiceFailedError(FsError):
    """A service did not start."""

    def __init__(self, name: str, reason: str, said: str, log_path: Path) -> None:
        """`said`: the last line of its log."""
        self.name = name
        self.said = _LOG_PREFIX.sub("", said)
        """Without when and where."""
        super().__init__(Status.START_FAILED, f"{name}: {reason}: {self.said} (log: {log_path})")

    @property
    def is_of_disks(self) -> bool:
        """It is for its disks that it does not start."""
        return self.said.startswith(tuple(f"{s.name}: " for s in DISK_STATUSES))


def _service(directory: ClusterDir, name: str) -> dict[str, Any]:
    services = supervisor_link.ask(directory, command="status")["services"]
    found: list[dict[str, Any]] = [s for s in services if s["name"] == name]
    if not found:
        raise FsError(Status.NOT_RUNNING, f"{name}: it was stopped meanwhile")
    return found[0]


def wait_running(directory: ClusterDir, name: str) -> None:
    """Wait until a service serves.

    Raises:
        ServiceFailedError: with the last line of its log.
    """
    deadline_s = time.monotonic() + SERVICE_TIMEOUT_S
    log_path = directory.log_path(name)
    while True:
        service = _service(directory, name)
        if service["state"] == "running":
            return
        said = supervisor_link.last_line(log_path)  # also for what it waits
        if service["state"] in _ENDED:
            raise ServiceFailedError(name, service["last_exit"], said, log_path)
        if time.monotonic() > deadline_s:
            reason = f"not ready after {SERVICE_TIMEOUT_S:g} s"
            raise ServiceFailedError(name, reason, said, log_path)
        time.sleep(POLL_S)


def wait_storage(directory: ClusterDir, record: ClusterRecord) -> list[ServiceFailedError]:
    """Wait until storage processes serve; return why some do not, for want of their disks.

    They are started again and again.

    Raises:
        ServiceFailedError: none does; or one, for something else.
    """
    failed = []
    for name in storage_names(record):
        try:
            wait_running(directory, name)
        except ServiceFailedError as error:
            if not error.is_of_disks:
                raise
            failed.append(error)
    if len(failed) == record.node_count:
        raise failed[0]
    return failed


def wait_chains(
    directory: ClusterDir,
    record: ClusterRecord,
    timeout_s: float,
    is_enough: Callable[[RoutingInfo], bool],
) -> bool:
    """Wait until the chains are as wished; False when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = max(POLL_S, deadline_s - time.monotonic())
        try:
            info = fetch_routing(directory, record, timeout_s=left_s)
        except FsError as error:
            if error.status is not Status.RPC_TIMEOUT:
                raise
            return False
        if info.chains and is_enough(info):
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)


def why_unavailable(
    directory: ClusterDir, record: ClusterRecord, missing: Sequence[ServiceFailedError] = ()
) -> FsError | None:
    """Wait until every chain serves, or cannot for want of a disk; return why they do not.

    Args:
        directory: the cluster's.
        record: of it.
        missing: processes that did not start.
    """
    gone = {node_id_of(error.name): error for error in missing}
    troubles: list[str] = []

    def is_settled(info: RoutingInfo) -> bool:
        troubles.clear()
        for chain in info.chains.values():
            awaited = [info.target(t) for t in chain.candidates]
            if chain.serving or not all(t.has_old_image or t.node_id in gone for t in awaited):
                continue
            troubles.extend(
                t.trouble if t.has_old_image else f"{gone[t.node_id].name}: {gone[t.node_id].said}"
                for t in awaited
            )
        return bool(troubles) or _is_available(info)

    is_met = wait_chains(directory, record, CHAIN_TIMEOUT_S, is_settled)
    if is_met and not troubles:
        return None
    why = troubles[0] if troubles else f"not after {CHAIN_TIMEOUT_S:g} s"
    return FsError(
        Status.CHAIN_UNAVAILABLE,
        f"some chains have no serving target: {why}; logs: {directory.path / 'logs'}; to put it "
        f"right: {directory.command('up --no-mount')}, then {directory.command('admin doctor')}",
    )


def _is_available(info: RoutingInfo) -> bool:
    """Every chain can be read and written."""
    return all(chain.serving for chain in info.chains.values())


def is_redundant(info: RoutingInfo) -> bool:
    """Every target serves, and has said so: the first version of a chain takes that for granted.

    Later ones do not: whoever serves in them was heard.  That it is up to date may be published
    seconds later, since nobody acts on it.
    """
    return all(
        len(chain.serving) >= chain.replica_count
        and (
            chain.chain_version > 1
            or all(info.target(t).local_state is LocalState.UPTODATE for t in chain.serving)
        )
        for chain in info.chains.values()
    )
