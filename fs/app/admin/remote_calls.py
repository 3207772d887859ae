"""`ember admin rpc`: call any remote method by name, for what has no command of its own,
and for looking.

Requests and replies are JSON of the messages in fs/schema/proto; payloads cannot be sent.
"""

from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToJson, Parse, ParseError

from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.method import Method
from ...schema.status import FsError, Status
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, find
from ..terminal.listing import JsonOption, print_rows

rpc = typer.Typer(help="Remote methods, by name.", no_args_is_help=True)


def methods() -> dict[str, Method[Any, Any]]:
    """Return every remote method, by its name Service.Method."""
    found = (value for value in vars(services).values() if isinstance(value, Method))
    return {str(one): one for one in sorted(found, key=str)}


@rpc.command("list")
def list_methods(*, as_json: JsonOption = False) -> None:
    """List all methods and who may call each in a closed cluster.

    Example: ember admin rpc list
    """
    rows = [
        {
            "method": name,
            "access": one.access.name.lower(),
            "is_idempotent": one.is_idempotent,
            "request": {f.name: _type_name(f) for f in one.request_type.DESCRIPTOR.fields},
        }
        for name, one in methods().items()
    ]
    columns = {"method": None, "access": None, "request": ", ".join}
    print_rows(rows, columns, as_json=as_json)


def _type_name(found: Any) -> str:
    kind = found.message_type.name if found.message_type else found.cpp_type
    return str(kind)


@rpc.command("call")
def call(
    method: Annotated[str, typer.Argument(metavar="SERVICE.METHOD", help="As `list` shows it.")],
    request: Annotated[
        str, typer.Argument(metavar="JSON", help='The request, as {"chain_id": 3}.')
    ] = "{}",
    *,
    node_id: Annotated[
        int, typer.Option("--node", help="Whom to ask.", show_default="the primary manager")
    ] = 0,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Call a method and print the reply as JSON.

    Nothing is asked: what changes the cluster does so at once.

    Example: ember admin rpc call Core.GetInfo --node 11

    Example: ember admin rpc call Mgmtd.ListMoves '{}'
    """
    found = methods().get(method)
    if found is None:
        raise FsError(Status.INVALID_ARGUMENT, f"{method}: no such method: ember admin rpc list")
    if found.has_request_payload:
        raise FsError(Status.INVALID_ARGUMENT, f"{method} carries bytes; use a client")
    try:
        message = Parse(request, found.request_type())
    except ParseError as error:
        raise FsError(Status.INVALID_ARGUMENT, f"{method}: {error}") from error
    where = find(directory, config)
    address = where.routing().node(node_id).address if node_id else ""

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> Any:
        if not address:
            return await mgmtd.call(found, message, timeout_s=TIMEOUT_S)
        received = await channels.get(address, node_id=node_id).call(
            found, message, timeout_s=TIMEOUT_S
        )
        return received.message

    reply = where.run(use)
    typer.echo(
        MessageToJson(
            reply, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
        )
    )
