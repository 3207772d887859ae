"""`ember admin history`: how nodes, chains, tables and moves changed, and why."""

import json
from typing import Annotated

import typer

from ...admin.facts import Row, event_rows
from ...admin.stored import stored_events
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.proto import mgmtd_pb2 as pb
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, Where, find
from ..terminal.listing import JsonOption, time_text
from .completion import complete_chain, complete_node


def history(
    *,
    chain_id: Annotated[
        int,
        typer.Option(
            "--chain", help="Only of this chain.", show_default="all", autocompletion=complete_chain
        ),
    ] = 0,
    node_id: Annotated[
        int,
        typer.Option(
            "--node", help="Only of this node.", show_default="all", autocompletion=complete_node
        ),
    ] = 0,
    count: Annotated[
        int,
        typer.Option(
            "--count", min=1, max=10_000, help="How many of the newest events to look at."
        ),
    ] = 100,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show how nodes, chains, tables and moves changed, the newest last,
    and what each change followed from.

    The managers keep the last 10,000 changes.

    Example: ember admin history

    Example: ember admin history --chain 1 --count 500 --json
    """
    events = _events(find(directory, config), count)
    rows = [
        row
        for row in event_rows(reversed(events))
        if (not chain_id or row["chain_id"] == chain_id)
        and (not node_id or row["node_id"] == node_id)
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(_line(row))


def _line(row: Row) -> str:
    names = {"chain_id": "chain", "node_id": "node"}
    subject = "".join(f" {name} {row[key]}" for key, name in names.items() if row[key])
    version = f" version {row['chain_version']}" if row["chain_version"] else ""
    why = f" [{row['why']}]" if row["why"] else ""
    return f"{time_text(row['wall_ns'])}{subject}{version}: {row['text']}{why}"


def _events(where: Where, count: int) -> list[pb.RoutingEventPb]:
    """Return the newest events, the newest first."""
    if where.is_down:
        return where.read_store(lambda engine: stored_events(engine, 0, count))

    async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> list[pb.RoutingEventPb]:
        found: list[pb.RoutingEventPb] = []
        while len(found) < count:
            before = found[-1].event_id if found else 0
            request = pb.ListRoutingEventsReq(
                before_event_id=before, event_count_max=count - len(found)
            )
            reply = await mgmtd.call(
                services.MGMTD_LIST_ROUTING_EVENTS, request, timeout_s=TIMEOUT_S
            )
            found += reply.events
            if not reply.has_more:
                break
        return found

    return where.run(use)
