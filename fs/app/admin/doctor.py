"""`ember admin doctor`: looks at everything, twice, and says what is wrong and what to do."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Final

import trio
import typer
from rich.console import Console
from rich.text import Text

from ...admin.doctor import Answer, Finding, Severity, Snapshot, diagnose
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...runtime.real import RealClock
from ...schema import services
from ...schema.ids import NodeId
from ...schema.proto import common_pb2, core_pb2, meta_pb2, mgmtd_pb2
from ...schema.routing import NodeState, RoutingInfo
from ...schema.status import FsError
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, find
from ..terminal.listing import EXIT_FOUND, JsonOption
from .disks import spaces_of
from .meta_calls import ask_meta
from .settings import configs_of, kept_settings

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 5.0
STYLES: Final = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.NOTICE: "cyan"}


def doctor(
    *,
    pause_s: Annotated[
        float, typer.Option("--pause", min=0.0, help="Seconds between the two looks; 0: one look.")
    ] = 3.0,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Find and explain what is wrong with the cluster, and say the next step.

    Exit code 0: nothing but notices; 3: something is to be done.

    Example: ember admin doctor

    Example: ember admin doctor --pause 0 --json
    """

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> list[Finding]:
        before = await look(mgmtd, channels)
        if not pause_s:
            return diagnose(before)
        await trio.sleep(pause_s)
        return diagnose(await look(mgmtd, channels), before)

    findings = find(directory, config).run(use)
    if as_json:
        rows = [asdict(f) | {"severity": f.severity.name.lower()} for f in findings]
        typer.echo(json.dumps(rows, indent=2))
    else:
        print_findings(findings)
    if any(f.severity > Severity.NOTICE for f in findings):
        raise typer.Exit(EXIT_FOUND)


async def look(mgmtd: MgmtdLink, channels: ChannelPool) -> Snapshot:
    """Take a snapshot; raises FsError when the manager does not answer."""
    info = await newest_routing(mgmtd, TIMEOUT_S)
    request = mgmtd_pb2.ListMovesReq()
    moves = await mgmtd.call(services.MGMTD_LIST_MOVES, request, timeout_s=TIMEOUT_S)
    answers, silent = await _ask_all(channels, info)
    configs, _ = await configs_of(channels, info)
    spaces = await spaces_of(channels, info)
    kept = await kept_settings(mgmtd)
    inline_bytes = await _inline_bytes(channels, info)
    clients = await _clients(mgmtd, answers)
    now_ns = RealClock().wall_ns()
    return Snapshot(
        info,
        moves,
        spaces,
        answers,
        silent,
        configs,
        now_ns,
        inline_bytes,
        kept,
        clients,
    )


async def _clients(mgmtd: MgmtdLink, answers: Mapping[NodeId, Answer]) -> dict[str, str]:
    """Return what clients are that do not reach a node, for people."""
    if not any(answer.info.relayed_links for answer in answers.values()):
        return {}
    request = mgmtd_pb2.ListClientSessionsReq()
    found = await mgmtd.call(services.MGMTD_LIST_CLIENT_SESSIONS, request, timeout_s=TIMEOUT_S)
    return {
        one.client_id: (
            f"{f'mount {one.mount_point}' if one.mount_point else 'a client'} on {one.host_name} "
            f"(process {one.pid})"
        )
        for one in found.sessions
    }


async def _inline_bytes(channels: ChannelPool, info: RoutingInfo) -> int:
    """Ask a metadata service; 0 if none answers, which others say already."""
    asking = common_pb2.CallerPb(client_id=channels.identity.client_id)
    request = meta_pb2.StatFsReq(caller=asking)
    try:
        reply = await ask_meta(channels, info, services.META_STAT_FS, request)
    except FsError as error:
        log.info("bytes of inline files: %s", error)
        return 0
    return reply.inline_bytes


async def _ask_all(
    channels: ChannelPool, info: RoutingInfo
) -> tuple[dict[NodeId, Answer], dict[NodeId, str]]:
    """Ask every process who it is and what time it has, side by side."""
    answers: dict[NodeId, Answer] = {}
    silent: dict[NodeId, str] = {}

    async def one(node_id: NodeId, address: str) -> None:
        try:
            answers[node_id] = await _ask(channels, node_id, address)
        except FsError as error:
            silent[node_id] = str(error)

    async with trio.open_nursery() as nursery:
        for node in info.nodes.values():
            if node.state is not NodeState.FAILED:
                nursery.start_soon(one, node.node_id, node.address)
    return answers, silent


async def _ask(channels: ChannelPool, node_id: NodeId, address: str) -> Answer:
    clock = RealClock()
    channel = channels.get(address, node_id=node_id)
    await channel.call(services.CORE_GET_INFO, core_pb2.GetInfoReq(), timeout_s=ANSWER_TIMEOUT_S)
    began_ns = clock.wall_ns()  # of the second call: the first one connects
    received = await channel.call(
        services.CORE_GET_INFO, core_pb2.GetInfoReq(), timeout_s=ANSWER_TIMEOUT_S
    )
    ended_ns, told_ns = clock.wall_ns(), received.message.wall_ns
    skew_s = (told_ns - (began_ns + ended_ns) / 2) / 1e9 if told_ns else 0.0
    return Answer(received.message, skew_s, (ended_ns - began_ns) / 2e9)


def print_findings(findings: list[Finding]) -> None:
    """Print findings for people, and how many are to be acted upon."""
    console = Console(highlight=False)
    for one in findings:
        head = Text(f"{one.severity.name.lower():<9}", style=STYLES[one.severity])
        console.print(head + Text(f"{one.subject}: {one.text}"), soft_wrap=True)
        console.print(Text(f"{'':<9}-> {one.remedy}"), soft_wrap=True)
    worst = sum(one.severity > Severity.NOTICE for one in findings)
    console.print(f"{worst} to be acted upon" if worst else "nothing is wrong")
