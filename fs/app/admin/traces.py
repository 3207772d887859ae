"""`ember admin trace`: requests followed through all processes of a running cluster,
which is told to keep their traces for a while.

Needs no configuration and no collector: each process keeps the spans that
end meanwhile, and tells them.
"""

import json
import os
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer

from ...admin.settings import flattened
from ...admin.traces import Row, Trace, join
from ...client.vfs.watched import TRACE_ATTRIBUTE
from ...node.mgmtd_link import MgmtdLink
from ...rpc.api import Channel
from ...rpc.channel import ChannelPool
from ...runtime import tracing
from ...schema import services
from ...schema.proto import core_pb2
from ...schema.routing import Node, NodeState, Role, RoutingInfo
from ...schema.status import FsError, Status
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, find
from ..terminal.amounts import count_text
from ..terminal.listing import JsonOption, print_rows
from .settings import configs_of

ASK_TIMEOUT_S: Final = 10.0
AFTER_S: Final = 30.0
"""So much longer than asked for spans are kept: to be told."""

Ask = Callable[[float | None, int], Awaitable[str]]
"""Takes how long to watch (None: as before) and a number; returns the spans beyond it, as JSON."""


def trace(
    mount: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MOUNT]", help="A mount of this machine, of which every request is traced."
        ),
    ] = None,
    *,
    seconds: Annotated[
        int, typer.Option("--seconds", min=1, max=500, help="How long; Ctrl-C ends it earlier.")
    ] = 5,
    count: Annotated[
        int, typer.Option("--count", min=1, max=100_000, help="Traces to show, the slowest.")
    ] = 3,
    operation: Annotated[
        str, typer.Option("--operation", help="Only of this name, such as write, read or create.")
    ] = "",
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Follow requests through mount, metadata service and storage targets,
    and print what each did and when.

    Without a mount: what other clients and commands trace meanwhile.

    Example: ember admin trace --seconds 1
    """

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> list[Trace]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        own = tracing.current()
        sources = _sources(info, channels, mount)
        for address in await store_addresses(channels, info):
            sources[f"kv {address}"] = _ask_process(channels.get(address))
        found = await _watch(sources, seconds)
        return [one for one in found if own is None or one.trace_id != own.trace_id.hex()]

    found = find(directory, config).run(use)
    meant = [one for one in found if operation in {"", one.name}]
    slowest = sorted(meant, key=lambda one: -one.took_s)[:count]
    rows = [row for one in sorted(slowest, key=lambda one: one.began_ns) for row in one.rows()]
    if as_json:
        print_rows(rows, {}, as_json=True)
        return
    for row in rows:
        row["name"] = "  " * row["depth"] + row["name"]
        row["notes"] = ", ".join(
            [f"{k} {v}" for k, v in row["attributes"].items()] + [row["error"]] * bool(row["error"])
        )
        row["trace_id"] = "" if row["depth"] else row["trace_id"]
        row["at"], row["took"] = _ms(row["at_s"]), _ms(row["took_s"])
    columns = dict.fromkeys(("name", "where", "at", "took", "notes", "trace_id"))
    print_rows(rows, columns, as_json=False)
    typer.echo(f"{count_text(len(meant), 'trace')}, {len(slowest)} shown")


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.2f} ms"


def _words_of(node: Node) -> str:
    return f"{'+'.join(sorted(role.name.lower() for role in node.roles))} {node.node_id}"


def _ask_process(channel: Channel) -> Ask:
    async def ask(watch_s: float | None, after: int) -> str:
        request = core_pb2.GetSpansReq(watch_s=watch_s, after=after)
        received = await channel.call(services.CORE_GET_SPANS, request, timeout_s=ASK_TIMEOUT_S)
        return received.message.json

    return ask


async def store_addresses(channels: ChannelPool, info: RoutingInfo) -> list[str]:
    """Return where the kv processes are: no nodes of the cluster,
    but what managers and metadata services are configured with.
    """
    users = {
        node_id: node
        for node_id, node in info.nodes.items()
        if node.roles & {Role.MGMTD, Role.META} and node.state is not NodeState.FAILED
    }
    found, _ = await configs_of(channels, replace(info, nodes=users))
    settings = [flattened(text) for text in found.values()]
    return sorted({str(one["kv.address"]) for one in settings if one["kv.engine"] == "remote"})


def _sources(info: RoutingInfo, channels: ChannelPool, mount: Path | None) -> dict[str, Ask]:
    """Return how each process is asked, by what it is called."""

    async def ask_mount(watch_s: float | None, after: int) -> str:
        words = "" if watch_s is None else str(round(watch_s))
        name = f"{TRACE_ATTRIBUTE.decode()}{words}.{after}"
        try:
            assert mount is not None
            return (await trio.to_thread.run_sync(os.getxattr, mount, name)).decode()
        except OSError as error:
            raise FsError(
                Status.INVALID_ARGUMENT, f"{mount}: no mount that tells traces: {error.strerror}"
            ) from error

    found = {
        _words_of(node): _ask_process(channels.get(node.address, node_id=node.node_id))
        for node in info.nodes.values()
        if node.state is not NodeState.FAILED
    }
    return found if mount is None else {f"mount {mount}": ask_mount} | found


async def _watch(sources: dict[str, Ask], seconds: int) -> list[Trace]:
    """Have all processes keep spans for a while; return the traces;
    raises FsError when none of them does.
    """
    told: dict[str, list[Row]] = defaultdict(list)
    watched: dict[str, Ask] = {}
    refusals: list[FsError] = []

    async def begin(where: str, ask: Ask) -> None:
        try:
            await ask(seconds + AFTER_S, 0)
            watched[where] = ask
        except FsError as error:
            if where.startswith("mount"):
                raise
            refusals.append(error)
            typer.echo(f"{where} tells no traces: {error}", err=True)

    async def end(where: str, ask: Ask) -> None:
        try:
            told[where] = await _all_spans(ask)
        except FsError as error:
            typer.echo(f"{where} does not tell what it kept: {error}", err=True)

    # the mount, which begins traces, last: those who join them are listening by then
    for group in (lambda name: not name.startswith("mount"), lambda name: name.startswith("mount")):
        async with trio.open_nursery() as nursery:
            for where, ask in sources.items():
                if group(where):
                    nursery.start_soon(begin, where, ask)
    if not watched:
        raise refusals[0]
    with trio.open_signal_receiver(signal.SIGINT) as interrupts:
        typer.echo(
            f"tracing in {count_text(len(watched), 'process', 'processes')} for {seconds} s",
            err=True,
        )
        with trio.move_on_after(seconds):
            async for _ in interrupts:
                break
    async with trio.open_nursery() as nursery:
        for where, ask in watched.items():
            nursery.start_soon(end, where, ask)
    return join(told)


async def _all_spans(ask: Ask) -> list[Row]:
    """End a watch and return all that was kept."""
    rows: list[Row] = []
    page: dict[str, Any] = json.loads(await ask(0, 0))
    while True:
        rows += page["spans"]
        if not page["has_more"] or not page["spans"]:
            return rows
        page = json.loads(await ask(None, rows[-1]["number"]))
