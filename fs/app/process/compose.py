"""What every process of EmberFS does around its own work:
configuration, log, runtime, signals, readiness.

Each composition root (control.py, mgmtd.py, meta.py, storage.py, mountd.py) is one async
function that gets a `Process`, builds its objects, calls `Process.ready` once it serves, and
returns after `stopping` is set.  SIGTERM and SIGINT set it; a second one ends the process at
once.  A process that does not serve yet is cancelled: it may be waiting for others
(starting.py).  SIGHUP has the cluster's key read again.

Errors end here: an FsError becomes one line and exit code 1, a bug a
traceback in the log and exit code 70.
"""

import gc
import inspect
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from ...node.kept_settings import KeptSettings
from ...node.membership import Membership
from ...node.user_guard import UserGuard
from ...rpc.api import Identity
from ...rpc.channel import ChannelPool, open_channels
from ...rpc.core_service import CoreService, RelayedLinks
from ...rpc.credential_files import configured_secrets, read_keys
from ...rpc.credentials import Secret, new_client_id
from ...rpc.observer import RpcObserver
from ...rpc.server import Server
from ...rpc.slabs import SlabShelf
from ...rpc.transport import SocketNetwork
from ...runtime import readiness
from ...runtime.config_file import read_config
from ...runtime.extras import install_command
from ...runtime.figures import Figures, Source
from ...runtime.log import LOG_BYTES_VARIABLE, set_log_level, set_up_logging
from ...runtime.ports import Runtime
from ...runtime.real import real_runtime
from ...runtime.span_keeper import SpanKeeper
from ...runtime.tracing import Tracer
from ...schema import metrics
from ...schema.config import AuthSection, ProcessConfig
from ...schema.ids import NodeId
from ...schema.routing import Node, Role
from ...schema.status import FsError, Status
from ..machine.entry_modules import ENTRY_PACKAGE
from ..terminal.errors import check_interpreter, first_error
from .exposition import Document, Exposition
from .page_rule import PageRule
from .readiness import tell_ready
from .release import RELEASE
from .roots import kept_settings
from .systemd import SystemdLink

if TYPE_CHECKING:
    from .otel import SpanExport

log = logging.getLogger(__name__)

EXIT_ERROR: Final = 1
EXIT_BUG: Final = 70
GC_ALLOCATION_COUNT: Final = 20_000
"""Requests leave next to no cycles: looking for them every 700 objects only costs time."""

SPANS_S_MAX: Final = 3.0
"""So long a process that ends goes on to send spans."""

INCARNATION_BYTES: Final = 16
DESCRIPTORS_MAX: Final = 1 << 20


@dataclass(slots=True)
class Process:
    """What a composition root is given."""

    config: ProcessConfig
    runtime: Runtime
    identity: Identity
    channels: ChannelPool
    stopping: trio.Event
    guard: UserGuard | None = None
    """Whom it serves; None: everybody."""
    observer: RpcObserver | None = None
    """Measures remote calls; None: nobody."""
    sources: list[Source] = field(default_factory=list)
    """What says the metrics of this process; parts add to it as they are made."""
    margins_s: list[Callable[[], float]] = field(default_factory=list)
    """What tells the seconds left of the leases of this process;
    parts add to it as they are made.
    """
    relayed_links: list[RelayedLinks] = field(default_factory=list)
    """What tells for whom this process passes requests on; parts add to it as they are made."""
    metrics_address: str = ""
    """Where the metrics are served; empty: nowhere."""
    documents: dict[str, Document] = field(default_factory=dict)
    """What is served by HTTP beside the metrics, by path."""
    tracer: Tracer | None = None
    """Begins the spans of this process; None: what is traced elsewhere is not traced here."""
    systemd: SystemdLink = field(default_factory=SystemdLink)
    kept: KeptSettings | None = None
    """How its settings change while it runs; None: they do not."""
    start: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Of its root."""
    has_served: bool = False

    def follow(self, act: Callable[[ProcessConfig], None]) -> None:
        """Have `act` called with the settings whenever others are in force than at the start;
        at once if they are already.
        """
        if self.kept is None:
            return
        settings = self.kept.settings
        settings.watch(act)
        if settings.config != self.config:
            act(settings.config)

    def join(self, membership: Membership) -> None:
        """Have heartbeats tell how far this process is with its settings, and bring new ones."""
        if self.kept is not None:
            membership.settings = self.kept
            self.kept.trigger = membership.trigger

    def node(self, roles: frozenset[Role]) -> Node:
        """Return how this process presents itself to the manager.

        Raises:
            FsError: BAD_CONFIG when others could not find it.
        """
        return Node(
            NodeId(self.identity.node_id),
            roles,
            public_address(self.config),
            self.identity.incarnation,
            host_name=socket.gethostname(),
            release=RELEASE,
            boot_id=self.runtime.boot_id,
        )

    def server(
        self,
        targets: Mapping[str, object],
        shelf: SlabShelf | None = None,
        *,
        finish: Callable[[str], Awaitable[None]] | None = None,
    ) -> Server:
        """Return a server that offers the named services, and Core.

        Args:
            targets: the services by name.
            shelf: as of `Server`.
            finish: ends what services have begun for a client whose process is gone.
        """
        server = Server(
            self.identity,
            self.config.rpc,
            guard=self.guard,
            observer=self.observer,
            tracer=self.tracer,
            shelf=shelf,
        )
        self.sources.append(server.say)
        for name, target in targets.items():
            server.add_service(name, target)
        server.add_service(
            "Core",
            CoreService(
                self.identity,
                self.runtime.clock,
                [*targets],
                self.config,
                changeable=self.kept,
                margins_s=self.margins_s,
                relayed_links=self.relayed_links,
                spans=SpanKeeper(self.tracer) if self.tracer else None,
                end_client=partial(_end_client, server, finish),
            ),
        )
        return server

    def look_before_sleep(self) -> None:
        """Have the event loop look for what comes next before it sleeps;
        for processes that others wait for step by step.
        """
        readiness.look_before_sleep(self.config.process.look_before_sleep_s)

    def ready(self) -> None:
        """Tell whoever started this process that it serves, and where its metrics are."""
        node_id = self.identity.node_id
        log.info("serving%s", f" as node {node_id}" if node_id else "")  # a mount is no node
        self.has_served = True
        self.systemd.say("READY=1\nSTATUS=serving")
        tell_ready(self.metrics_address)


Root = Callable[[Process], Awaitable[None]]


def make_guard(config: ProcessConfig, runtime: Runtime) -> UserGuard | None:
    """Return what judges the peers of a process; None in an open cluster.

    Raises FsError(BAD_CONFIG).
    """
    auth = config.auth
    if not auth.key_file:
        return None
    keys = read_keys(Path(auth.key_file))
    return UserGuard(keys, runtime.random, runtime.clock, auth.token_check_interval_s)


def new_identity(
    config: ProcessConfig, runtime: Runtime, secrets: Sequence[Secret] = ()
) -> Identity:
    """Return the identity of this start of a process, which proves one of the secrets."""
    return Identity(
        cluster_id=config.process.cluster_id,
        node_id=config.process.node_id,
        incarnation=runtime.random.randbytes(INCARNATION_BYTES).hex(),
        client_id=new_client_id(runtime.random.randbytes, secrets),
        release=RELEASE,
    )


def public_address(config: ProcessConfig) -> str:
    """Return the address that others reach this process at.

    Raises:
        FsError: BAD_CONFIG for a port that only the kernel would know, or without a node id.
    """
    address = config.process.listen
    if address.startswith("tcp:") and address.endswith(":0"):
        raise FsError(Status.BAD_CONFIG, f"process.listen {address}: a service needs a fixed port")
    if not config.process.node_id:
        raise FsError(Status.BAD_CONFIG, "process.node_id 0: a service needs an id of its own")
    return address.replace("tcp:0.0.0.0:", f"tcp:{socket.gethostname()}:")


async def _watch_signals(stopping: trio.Event, systemd: SystemdLink) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            if stopping.is_set():
                log.warning("second %s: ending at once", signal.Signals(number).name)
                os._exit(EXIT_ERROR)
            log.info("%s: stopping", signal.Signals(number).name)
            systemd.say("STOPPING=1")
            stopping.set()


async def _end_client(
    server: Server, finish: Callable[[str], Awaitable[None]] | None, client_id: str
) -> None:
    """Serve nothing of a client any more; return when nothing of it is under way."""
    await server.end_client(client_id)
    log.info("client %s: its process is gone; nothing of it is served any more", client_id)
    if finish is not None:
        await finish(client_id)


async def _end_start(process: Process) -> None:
    """Cancel a root that is asked to stop before it serves;
    nothing that it was about to tell others counts yet.
    """
    await process.stopping.wait()
    if not process.has_served:
        process.start.cancel()


def read_keys_again(auth: AuthSection, guard: UserGuard | None, channels: ChannelPool) -> None:
    """Take over what `auth.key_file` holds now; a mistake in it is logged, and changes nothing.

    Tokens are not read again: the ids of their clients, and so their
    sessions and locks, belong to them.
    """
    if not auth.key_file or guard is None:
        log.info("SIGHUP: no auth.key_file to read again")
        return
    try:
        keys = read_keys(Path(auth.key_file))
    except FsError as error:
        log.error("SIGHUP: the keys stay as they are: %s", error)  # noqa: TRY400 - a mistake in a file
        return
    guard.replace_keys(keys)
    channels.replace_secrets(keys)
    log.info("SIGHUP: keys are now %s", ", ".join(key.key_id[1:].hex() for key in keys))


async def _watch_hangups(read_again: Callable[[], None]) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            read_again()


async def _run(root: Root, config: ProcessConfig) -> None:
    readiness.install()
    runtime = real_runtime(SocketNetwork())
    secrets = configured_secrets(config.auth)
    identity = new_identity(config, runtime, secrets)
    stopping, systemd = trio.Event(), SystemdLink()
    guard = make_guard(config, runtime)
    if not config.process.mgmtd_addresses:
        raise FsError(Status.BAD_CONFIG, "process.mgmtd_addresses: where is the manager?")
    section = config.process
    observer = RpcObserver(section.slow_request_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_signals, stopping, systemd)
        nursery.start_soon(systemd.keep_saying)
        async with open_channels(
            runtime, identity, config.rpc, secrets=secrets, observer=observer
        ) as channels:
            nursery.start_soon(
                _watch_hangups, partial(read_keys_again, config.auth, guard, channels)
            )
            process = Process(
                config, runtime, identity, channels, stopping, guard, observer, systemd=systemd
            )
            process.kept = kept_settings(role_of(root), config, runtime)
            process.tracer = Tracer(
                runtime.clock, runtime.random, sample_rate=config.trace.sample_rate
            )
            if config.trace.otlp_endpoint:
                process.tracer.sink = sink = _sink(config, role_of(root), identity)
                await nursery.start(_close_at_end, sink)
            process.follow(partial(_adopt, observer=observer, tracer=process.tracer))
            process.sources += [partial(_say_who, root, identity), observer.say]
            if section.metrics_address:
                exposition = Exposition(
                    section.metrics_address,
                    process.sources,
                    process.documents,
                    PageRule.of(section).refusal,
                )
                process.metrics_address = await nursery.start(exposition.run)
            nursery.start_soon(_end_start, process)
            with process.start:
                await root(process)
        nursery.cancel_scope.cancel()


def _sink(config: ProcessConfig, role: str, identity: Identity) -> "SpanExport":
    """Return what sends the spans of this process;
    raises FsError(BAD_CONFIG) where that is not installed.
    """
    try:
        from .otel import export_to, resource_of  # noqa: PLC0415 - see there
    except ImportError as error:
        endpoint = config.trace.otlp_endpoint
        detail = f"trace.otlp_endpoint {endpoint}: {error}: {install_command('otel')}"
        raise FsError(Status.BAD_CONFIG, detail) from error
    return export_to(config.trace.otlp_endpoint, resource_of(role, identity))


async def _close_at_end(
    sink: "SpanExport", *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Wait to be cancelled, then send the last spans, for SPANS_S_MAX at most."""
    task_status.started()
    try:
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(SPANS_S_MAX, shield=True):
            await trio.to_thread.run_sync(sink.close, abandon_on_cancel=True)


def _adopt(config: ProcessConfig, *, observer: RpcObserver, tracer: Tracer) -> None:
    """Take over what concerns every process."""
    set_log_level(config.process.log_level)
    observer.adopt(config.process.slow_request_s)
    tracer.adopt(config.trace.sample_rate)


def role_of(root: Root) -> str:
    """Return the name of the module of a composition root."""
    module = inspect.getmodule(root)
    assert module is not None and module.__spec__ is not None, root
    return module.__spec__.name.rpartition(".")[2]


def _say_who(root: Root, identity: Identity, figures: Figures) -> None:
    names = role_of(root), identity.cluster_id, identity.node_id, identity.release
    figures.note(metrics.PROCESS_INFO, 1, *names)


def _use_all_descriptors() -> None:
    """Allow this process as many as it may allow itself:
    shells start it with 1024, which one large disk takes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_process(root: Root, config_path: Path) -> NoReturn:
    """Run one process of the cluster until SIGTERM; ends the interpreter."""
    try:
        check_interpreter()
        config = read_config(config_path)
    except FsError as problem:  # no log yet: whoever typed this reads it
        sys.exit(f"ember: {problem}")
    try:
        set_up_logging(
            config.process.log_level,
            line_format=config.process.log_format,
            bytes_max=int(os.environ.get(LOG_BYTES_VARIABLE, "0")),
        )
        _use_all_descriptors()
        gc.freeze()
        gc.set_threshold(GC_ALLOCATION_COUNT)
        trio.run(_run, root, config)
    except Exception as error:  # noqa: BLE001 - the edge of the process: whatever it is, it is logged
        code = log_end(error)
        logging.shutdown()
        os._exit(code)
    sys.exit(0)


def log_end(error: Exception) -> int:
    """Log what ended the process, the bugs among it with their tracebacks,
    and last what it means for people; return the exit code.
    """
    group = ExceptionGroup("the process ended", [error])
    told, bugs = group.split(FsError)
    if bugs is not None:
        log.error("a bug ended the process", exc_info=bugs)
    if told is not None:
        log.error("%s", first_error(told))
    return EXIT_BUG if told is None else EXIT_ERROR


def main(root: Root) -> NoReturn:
    """Run `python -m fs.app.NAME CONFIG`."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - program and configuration
        sys.exit(f"usage: python -m {ENTRY_PACKAGE}.NAME CONFIG.toml")
    run_process(root, Path(sys.argv[1]))
