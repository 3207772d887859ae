"""`ember admin config`: the settings that processes run with, those that the managers keep,
and where they differ.

How they are changed: stored_settings.py.
"""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any

import trio
import typer

from ...admin.settings import differences, flattened, status_rows, stored_differences
from ...client.vfs.watched import SETTINGS_ATTRIBUTE
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...runtime.settings_text import Overlay, parse_stored
from ...schema import services
from ...schema.ids import NodeId
from ...schema.proto import core_pb2, mgmtd_pb2
from ...schema.proto.common_pb2 import NodeRole, StoredSettingsPb
from ...schema.routing import NodeState, Role, RoutingInfo
from ...schema.status import FsError, Status
from ...schema.stored_settings import ROLE_NAMES, ROLES
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, find
from ..terminal.listing import EXIT_FOUND, JsonOption, print_rows, time_text

config_group = typer.Typer(
    help="Settings of running processes, and those that the managers keep.", no_args_is_help=True
)

WhoArgument = Annotated[
    str,
    typer.Argument(metavar="NODE|ROLE", help="A node's number; or mgmtd, meta, storage, mount."),
]
ShownArgument = Annotated[
    str,
    typer.Argument(
        metavar="NODE|ROLE|MOUNT",
        help=(
            "A node's number; mgmtd, meta, storage, mount; or where a mount of this machine is: "
            "/mnt/ember."
        ),
    ),
]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="mgmtd, meta, storage or mount.")]

ASK_TIMEOUT_S = 5.0


async def configs_of(
    channels: ChannelPool, info: RoutingInfo
) -> tuple[dict[NodeId, str], dict[NodeId, str]]:
    """Ask every process that is there for its settings, side by side;
    return the answers, and why others gave none.
    """
    found: dict[NodeId, str] = {}
    silent: dict[NodeId, str] = {}

    async def one(node_id: NodeId, address: str) -> None:
        try:
            found[node_id] = await config_of(channels, address, node_id)
        except FsError as error:
            silent[node_id] = str(error)

    async with trio.open_nursery() as nursery:
        for node in info.nodes.values():
            if node.state not in {NodeState.FAILED, NodeState.STARTING}:
                nursery.start_soon(one, node.node_id, node.address)
    return found, silent


async def config_of(channels: ChannelPool, address: str, node_id: int) -> str:
    """Return the settings of one process, as JSON; raises FsError as it answers."""
    received = await channels.get(address, node_id=node_id).call(
        services.CORE_GET_CONFIG, core_pb2.GetConfigReq(), timeout_s=ASK_TIMEOUT_S
    )
    return received.message.json


def settings_of_mount(mount: str) -> str:
    """Return the settings of a mount of this machine, as JSON; raises FsError(INVALID_ARGUMENT)."""
    try:
        return os.getxattr(mount, SETTINGS_ATTRIBUTE).decode()
    except OSError as error:
        detail = f"{mount}: no mount that tells its settings: {error.strerror}"
        raise FsError(Status.INVALID_ARGUMENT, detail) from error


def role_named(name: str) -> Role:
    """Return the role of a name; raises FsError(BAD_CONFIG)."""
    if name not in ROLES:
        raise FsError(Status.BAD_CONFIG, f"{name}: a role is one of {', '.join(ROLES)}")
    return ROLES[name]


async def stored_of(mgmtd: MgmtdLink, role: Role, version: int = 0) -> StoredSettingsPb:
    """Return what is kept for a role, by default the newest; raises FsError."""
    request = mgmtd_pb2.GetSettingsReq(role=NodeRole.ValueType(role), version=version)
    reply = await mgmtd.call(services.MGMTD_GET_SETTINGS, request, timeout_s=TIMEOUT_S)
    return reply.settings


async def kept_settings(mgmtd: MgmtdLink) -> mgmtd_pb2.ListSettingsRsp:
    """Return which settings are kept, and how far nodes are;
    nothing from a manager of an older release.
    """
    try:
        return await mgmtd.call(
            services.MGMTD_LIST_SETTINGS, mgmtd_pb2.ListSettingsReq(), timeout_s=TIMEOUT_S
        )
    except FsError as error:
        if error.status is not Status.RPC_UNKNOWN_METHOD:
            raise
        return mgmtd_pb2.ListSettingsRsp()


@config_group.command("get")
def get(
    who: ShownArgument,
    *,
    key: Annotated[
        str, typer.Option("--key", help="Only this setting or section: mgmtd, meta.gc_delay_s.")
    ] = "",
    version: Annotated[int, typer.Option("--version", min=0, help="Of a role; 0: the newest.")] = 0,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the settings that a node or a mount runs with, defaults included;
    or those that the managers keep for a role.

    Example: ember admin config get 1

    Example: ember admin config get 11 --key storage --json

    Example: ember admin config get storage
    """
    if "/" in who:
        _print_settings(flattened(settings_of_mount(who)), key, as_json=as_json)
        return
    where = find(directory, config)
    if not who.isdecimal():
        role = role_named(who)

        async def ask(mgmtd: MgmtdLink, _channels: ChannelPool) -> StoredSettingsPb:
            return await stored_of(mgmtd, role, version)

        _print_stored(where.run(ask), key, as_json=as_json)
        return

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> str:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        return await config_of(channels, info.node(int(who)).address, int(who))

    _print_settings(flattened(where.run(use)), key, as_json=as_json)


def _print_stored(stored: StoredSettingsPb, key: str, *, as_json: bool) -> None:
    values = parse_stored(stored.text, Role(stored.role), "the stored settings")
    if not (key or as_json):
        if stored.version:
            typer.echo(
                f"# version {stored.version}, {time_text(stored.created_ns)} UTC: {stored.note}"
            )
        else:
            typer.echo("# nothing is kept for this role")
        typer.echo(stored.text, nl=False)
        return
    flat = {f"{section}.{k}": v for section, keys in values.items() for k, v in keys.items()}
    _print_settings(flat, key, as_json=as_json)


def _print_settings(settings: Mapping[str, Any], key: str, *, as_json: bool) -> None:
    rows = [
        {"key": name, "value": value}
        for name, value in settings.items()
        if not key or name == key or name.startswith(key + ".")
    ]
    print_rows(rows, {"key": None, "value": json.dumps}, as_json=as_json)


@config_group.command("diff")
def diff(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Show the settings in which processes differ that should have the same,
    and stored ones that a process does not have.

    Left out is what makes a process itself: its id, addresses, paths, disks.  A value without nodes
    is the stored one.  Exit code 0: none; 3: some.

    Example: ember admin config diff
    """

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> list[dict[str, Any]]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        found, silent = await configs_of(channels, info)
        for node_id, why in silent.items():
            typer.echo(f"node {node_id} does not tell its settings: {why}", err=True)
        stored: dict[Role, Overlay] = {}
        for role in ROLE_NAMES:
            text = (await stored_of(mgmtd, role)).text
            stored[role] = parse_stored(text, role, "the stored settings")
        return [
            {"key": one.key, "value": json.loads(value), "nodes": list(node_ids)}
            for one in [*differences(info, found), *stored_differences(info, found, stored)]
            for value, node_ids in one.values.items()
        ]

    rows = find(directory, config).run(use)
    print_rows(rows, {"key": None, "value": json.dumps, "nodes": None}, as_json=as_json)
    if rows:
        raise typer.Exit(EXIT_FOUND)


@config_group.command("status")
def status(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Show how far every process is with the settings that are kept for it.

    normal: it runs with them; stale: it has not heard of the newest, or some of them wait
    for its restart; dirty: it was given others of its own; failed: it refused the newest,
    and goes on with those before.

    Example: ember admin config status
    """

    async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> list[dict[str, Any]]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        listed = await kept_settings(mgmtd)
        sessions = await mgmtd.call(
            services.MGMTD_LIST_CLIENT_SESSIONS,
            mgmtd_pb2.ListClientSessionsReq(),
            timeout_s=TIMEOUT_S,
        )
        return status_rows(info, listed, sessions.sessions)

    rows = find(directory, config).run(use)
    columns: dict[str, Any] = dict.fromkeys(
        ("process", "host", "state", "versions", "waiting", "changed", "problem", "last_change")
    )
    columns["versions"] = lambda found: " ".join(f"{k} {v}" for k, v in found.items())
    if not as_json:  # when and what in one column
        for row in rows:
            row["last_change"] = f"{time_text(row['last_change_ns'])} {row['last_change']}".strip()
    print_rows(rows, columns, as_json=as_json)
