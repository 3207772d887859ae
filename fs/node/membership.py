"""A server process as a member of the cluster: heartbeats, its lease, its routing info.

Invariants:
    - The lease counts from before the heartbeat was sent, on this process's monotonic clock;
      silence, an error, or an answer without a lease let it run out.
    - `known_routing_version` in a heartbeat is the version this process acts on, so a lease is
      never renewed under a picture in which a target of ours serves though it has been judged.
    - Once a stop is announced there is no lease any more.

Concurrency: one task beats, one polls routing info; `trigger` may be called from anywhere in the
event loop. A heartbeat costs one small message and no lock, so it gets through on a busy process.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from ..rpc.api import Channels
from ..runtime.figures import Figures
from ..runtime.ports import Clock, Runtime
from ..schema import metrics
from ..schema.config import ProcessConfig
from ..schema.proto.mgmtd_pb2 import (
    DiskReportPb,
    HeartbeatReq,
    HeartbeatRsp,
    OlderImagePb,
    TargetReportPb,
)
from ..schema.routing import Node, node_to_pb
from ..schema.services import MGMTD_HEARTBEAT
from ..schema.status import FsError, Status
from .api import NoSettings, SettingsPort
from .mgmtd_link import MgmtdLink, is_transient
from .routing_cache import RoutingCache

logger = logging.getLogger(__name__)

Report = Callable[[], Sequence[TargetReportPb]]
"""Returns what is to be said of every target of this process,
under the routing info it now acts on.
"""

RETRY_PAUSE_S: Final = 0.05
RETRY_PAUSE_S_MAX: Final = 0.5
STOP_TIMEOUT_S: Final = 1.0
TRIES_PER_LEASE: Final = 5


class HeartbeatLease:
    """A `NodeLease` renewed by answered heartbeats."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s = clock.monotonic_s()
        self._is_revoked = False

    def is_valid(self) -> bool:
        """True while the lease has not run out."""
        return self._until_s > self._clock.monotonic_s()

    @property
    def margin_s(self) -> float:
        """Seconds left; negative when it has run out."""
        return self._until_s - self._clock.monotonic_s()

    def grant(self, sent_s: float, duration_s: float) -> None:
        """Extend to `duration_s` after `sent_s`; a shorter answer takes nothing back."""
        if not self._is_revoked:
            self._until_s = max(self._until_s, sent_s + duration_s)

    def revoke(self) -> None:
        """End it for good."""
        self._is_revoked = True
        self._until_s = self._clock.monotonic_s() - 1.0


def _nothing() -> Sequence[TargetReportPb]:
    return ()


def _no_images(_images: Sequence[OlderImagePb]) -> None:
    pass


def _no_disks() -> Sequence[DiskReportPb]:
    return ()


class Membership:
    """See the module head."""

    def __init__(
        self,
        runtime: Runtime,
        config: ProcessConfig,
        node: Node,
        channels: Channels,
        report: Report = _nothing,
    ) -> None:
        """Put the parts together; nothing is sent yet.

        Args:
            runtime: clock and randomness.
            config: process.mgmtd_addresses and section mgmtd are used.
            node: what this process says of itself; its address is listened at already.
            channels: owned by the caller.
            report: called for each heartbeat; must be cheap and must not wait.
        """
        self.caller = MgmtdLink(channels, config.process.mgmtd_addresses, runtime)
        self.routing = RoutingCache(self.caller, runtime)
        self.lease = HeartbeatLease(runtime.clock)
        self.report = report
        self.report_disks: Callable[[], Sequence[DiskReportPb]] = _no_disks
        """As `report`, for the disks of a storage node."""
        self.hear_images: Callable[[Sequence[OlderImagePb]], None] = _no_images
        """Of a storage node: told which of its targets are on disks that are older
        than what was told of them.
        """
        self.settings: SettingsPort = NoSettings()
        """What the managers keep for this process is told to it."""
        self._runtime = runtime
        self._section = config.mgmtd
        self._node = node_to_pb(node)
        self.trouble = ""
        """Why the last heartbeat was not answered by a lease;
        empty when it was, or when none was sent yet.
        """
        self._heartbeat_version = 0
        self._triggered = trio.Event()
        self._joined = trio.Event()
        self._is_stopping = False

    def say(self, figures: Figures) -> None:
        """Say how long this node may serve, and by which routing info."""
        figures.note(metrics.NODE_LEASE_MARGIN, self.lease.margin_s)
        figures.note(metrics.NODE_ROUTING_VERSION, self.routing.info.routing_version)

    def require_storage(self, level: int) -> None:
        """Have the managers let no storage process serve that knows less; before `run`."""
        self._node.storage_level_min = level

    def trigger(self) -> None:
        """Send a heartbeat soon, because something changed that the manager should judge."""
        self._triggered.set()

    async def wait_joined(self) -> None:
        """Wait for the first lease."""
        await self._joined.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Beat and poll until cancelled.  Started at once: the manager may still be on its way."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.routing.run)
            nursery.start_soon(self._beat, nursery)
            task_status.started()

    async def announce_stop(self) -> None:
        """Give the lease up and tell the manager, so that our targets are judged now,
        not after silence.

        Returns in any case within STOP_TIMEOUT_S; then the manager will find out by itself.
        """
        self._is_stopping = True
        self.lease.revoke()
        reason = ""
        with trio.move_on_after(STOP_TIMEOUT_S):
            while True:
                try:
                    await self._send()
                except FsError as error:
                    if error.status is Status.NODE_FAILED:  # it knows
                        return
                    if str(error) != reason:
                        reason = str(error)
                        logger.info("stop not announced: %s", error)
                    if not is_transient(error):
                        return
                    await trio.sleep(RETRY_PAUSE_S)
                else:
                    return

    async def _beat(self, nursery: trio.Nursery) -> None:
        failure_count = 0
        while not self._is_stopping:
            self._triggered = trio.Event()
            try:
                answer = await self._send()
            except FsError as error:
                failure_count += 1
                self.trouble = str(error)
                logger.log(
                    _level(failure_count), "heartbeat %d: %s", self._heartbeat_version, error
                )
                pause_s = min(RETRY_PAUSE_S * failure_count, RETRY_PAUSE_S_MAX)
                await trio.sleep(pause_s * self._runtime.random.uniform(0.5, 1.5))
                continue
            failure_count = 0
            self.trouble = ""
            if answer.lease_duration_s > 0:
                self._joined.set()
            elif answer.routing_version > self.routing.info.routing_version:
                info = await self.routing.refresh()  # the lease waits for us to see what we missed
                if info.routing_version < answer.routing_version:
                    await trio.sleep(RETRY_PAUSE_S)
                continue
            with trio.move_on_after(self._section.heartbeat_interval_s):
                await self._triggered.wait()
            if self.routing.info.routing_version < answer.routing_version:
                # The long poll should have brought it: it may hang on a manager that fell silent.
                nursery.start_soon(self.routing.refresh)

    async def _send(self) -> HeartbeatRsp:
        """Send one heartbeat to one manager; raises FsError."""
        self._heartbeat_version += 1
        sent_s = self._runtime.clock.monotonic_s()
        request = HeartbeatReq(
            node=self._node,
            heartbeat_version=self._heartbeat_version,
            targets=self.report(),
            disks=self.report_disks(),
            known_routing_version=self.routing.info.routing_version,
            is_stopping=self._is_stopping,
            settings=self.settings.report(),
        )
        timeout_s = self._section.node_lease_s / TRIES_PER_LEASE
        answer = await self.caller.call_once(MGMTD_HEARTBEAT, request, timeout_s=timeout_s)
        if not request.is_stopping:
            self.lease.grant(sent_s, answer.lease_duration_s)
            self.settings.hear(answer.settings)
            self.hear_images(answer.older_images)
        return answer


def _level(failure_count: int) -> int:
    """Return a log level that tells of trouble without filling the log with it."""
    return (
        logging.WARNING if failure_count in {3, 10} or failure_count % 100 == 0 else logging.DEBUG
    )
