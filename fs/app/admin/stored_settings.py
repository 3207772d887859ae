"""`ember admin config set`, `verify`, `versions`, `change`: how settings are changed.

Does not decide anything: the managers keep what is to be kept, and each
process says what it makes of it.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from ...admin.settings import split_by_effect
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...runtime.settings_text import Overlay, format_overlay, parse_change, parse_stored
from ...schema import services
from ...schema.ids import NodeId
from ...schema.proto import core_pb2, mgmtd_pb2
from ...schema.proto.common_pb2 import NodeRole, SettingsChangePb
from ...schema.routing import Node, NodeState, Role
from ...schema.status import FsError, Status
from ...schema.stored_settings import ROLE_NAMES
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, find
from ..terminal.amounts import ids_text
from ..terminal.listing import EXIT_FOUND, JsonOption, print_rows, time_text
from .settings import ASK_TIMEOUT_S, RoleArgument, WhoArgument, config_group, role_named, stored_of

settings_commands = config_group
"""The whole group, with what is registered here."""

FileArgument = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="TOML, with the settings that differ from the files'."),
]
NoteOption = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Why; shown with the version.")
]

Answers = Mapping[NodeId, SettingsChangePb]


def _read(path: Path, role: Role) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FsError(Status.BAD_CONFIG, f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        detail = f"{path}: is not UTF-8 text: byte {error.start}"
        raise FsError(Status.BAD_CONFIG, detail) from error
    parse_stored(text, role, str(path))
    return text


async def _nodes_of(mgmtd: MgmtdLink, role: Role) -> list[Node]:
    info = await newest_routing(mgmtd, TIMEOUT_S)
    gone = {NodeState.FAILED, NodeState.STARTING, NodeState.DISABLED}
    return [n for n in info.nodes_with_role(role) if n.state not in gone]


async def _try_all(channels: ChannelPool, nodes: Sequence[Node], role: Role, text: str) -> Answers:
    """Ask every process what it would make of a text;
    one that does not answer counts as one that refuses.
    """
    answers: dict[NodeId, SettingsChangePb] = {}

    async def one(node: Node) -> None:
        request = core_pb2.TrySettingsReq(role=NodeRole.ValueType(role), text=text)
        try:
            channel = channels.get(node.address, node_id=node.node_id)
            received = await channel.call(
                services.CORE_TRY_SETTINGS, request, timeout_s=ASK_TIMEOUT_S
            )
            answers[node.node_id] = received.message.change
        except FsError as error:
            answers[node.node_id] = SettingsChangePb(problem=f"not asked: {error}")

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(one, node)
    return answers


def _rows(answers: Answers) -> list[dict[str, Any]]:
    return [
        {
            "node_id": node_id,
            "live": list(answer.live_keys),
            "restart": list(answer.waiting_keys),
            "problem": answer.problem,
        }
        for node_id, answer in sorted(answers.items())
    ]


def _print_effect(answers: Answers, *, as_json: bool) -> None:
    columns = dict.fromkeys(("node_id", "live", "restart", "problem"))
    print_rows(_rows(answers), columns, as_json=as_json)
    if as_json:
        return
    waiting = sorted(n for n, answer in answers.items() if answer.waiting_keys)
    if waiting:
        typer.echo(f"to be restarted: node {ids_text(waiting)}")


def _flat(values: Overlay) -> dict[str, Any]:
    return {
        f"{section}.{key}": value for section, keys in values.items() for key, value in keys.items()
    }


def _changed_keys(before: Overlay, after: Overlay) -> list[str]:
    old, new = _flat(before), _flat(after)
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


def _tell_mounts(before: str, after: str, *, as_json: bool) -> None:
    """Say what mounts make of it, which listen nowhere and cannot be asked."""
    keys = _changed_keys(*(parse_stored(text, Role.CLIENT, "") for text in (before, after)))
    live, waiting = split_by_effect(keys)
    if as_json:  # as of the others, of all mounts
        print_rows(
            [{"role": ROLE_NAMES[Role.CLIENT], "live": live, "restart": waiting, "problem": ""}],
            {},
            as_json=True,
        )
        return
    typer.echo(
        f"mounts take over: {' '.join(live) or '-'}; after a restart: {' '.join(waiting) or '-'}"
    )


@config_group.command("verify")
def verify(
    role_name: RoleArgument,
    file: FileArgument,
    *,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Ask every running process of a role what it would make of these settings:
    what changes at once, what waits for a restart.

    Mounts cannot be asked; what they would do follows from the settings.  Exit code 3:
    some process would refuse them.

    Example: ember admin config verify storage settings.toml
    """
    role = role_named(role_name)
    text = _read(file, role)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> tuple[Answers, str]:
        nodes = await _nodes_of(mgmtd, role)
        stored = await stored_of(mgmtd, role)
        return await _try_all(channels, nodes, role, text), stored.text

    answers, before = find(directory, config).run(use)
    if role is Role.CLIENT:
        _tell_mounts(before, text, as_json=as_json)
        return
    _print_effect(answers, as_json=as_json)
    if any(answer.problem for answer in answers.values()):
        raise typer.Exit(EXIT_FOUND)


@config_group.command("set")
def set_(
    role_name: RoleArgument,
    file: FileArgument,
    *,
    note: NoteOption = "",
    accept_refusals: Annotated[
        bool,
        typer.Option(
            "--accept-refusals", help="Even if some process refuses it, or does not answer."
        ),
    ] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Have the managers keep settings for a role:
    every process of it takes them over, now or when it is started anew.

    The file replaces what was kept before; in each process the settings in it win over those of its
    own file.  Every running process of the role is asked first.

    Example: ember admin config set storage settings.toml --note "slower scrub"
    """
    role = role_named(role_name)
    text = _read(file, role)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> tuple[int, Answers, str]:
        before = await stored_of(mgmtd, role)
        answers = await _try_all(channels, await _nodes_of(mgmtd, role), role, text)
        _check_accepted(answers, accept_refusals=accept_refusals)
        version = await _keep(mgmtd, role, text, note=note, based_on_version=before.version)
        return version, answers, before.text

    version, answers, before = find(directory, config).run(use)
    _tell_kept(role, version, answers, before, text, as_json=as_json)


def _tell_kept(
    role: Role, version: int, answers: Answers, before: str, after: str, *, as_json: bool
) -> None:
    """Say what became of what is kept for a role."""
    typer.echo(f"version {version} of {ROLE_NAMES[role]}", err=as_json)
    if role is Role.CLIENT:
        _tell_mounts(before, after, as_json=as_json)
    else:
        _print_effect(answers, as_json=as_json)


def _check_accepted(answers: Answers, *, accept_refusals: bool) -> None:
    for node_id, answer in sorted(answers.items()):
        if answer.problem and not accept_refusals:
            detail = (
                f"node {node_id}: {answer.problem}; nothing was changed (see --accept-refusals)"
            )
            raise FsError(Status.BAD_CONFIG, detail)


async def _keep(
    mgmtd: MgmtdLink, role: Role, text: str, *, note: str, based_on_version: int
) -> int:
    request = mgmtd_pb2.SetSettingsReq(
        role=NodeRole.ValueType(role), text=text, note=note, based_on_version=based_on_version
    )
    reply = await mgmtd.call(services.MGMTD_SET_SETTINGS, request, timeout_s=TIMEOUT_S)
    return reply.version


@config_group.command("versions")
def versions(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List the versions that the managers keep, by role, the newest first.

    An earlier one is made the newest again by setting its text: ember
    admin config get ROLE --version N.

    Example: ember admin config versions
    """
    listed = find(directory, config).ask(services.MGMTD_LIST_SETTINGS, mgmtd_pb2.ListSettingsReq())
    rows = [
        {
            "role": ROLE_NAMES[Role(one.role)],
            "version": one.version,
            "created_ns": one.created_ns,
            "note": one.note,
        }
        for one in listed.versions
    ]
    columns = {"role": None, "version": None, "created_ns": time_text, "note": None}
    print_rows(rows, columns, as_json=as_json)


@config_group.command("change")
def change(
    who: WhoArgument,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="As storage.read_concurrency=8."),
    ] = None,
    *,
    live_only: Annotated[
        bool,
        typer.Option(
            "--live-only", help="Until the process ends; of a role: in all its running processes."
        ),
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Take earlier changes of this node alone back.")
    ] = False,
    note: NoteOption = "",
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Change single settings.

    Of a node: of this process alone, over what is kept for its role (its state is dirty); only what
    takes effect at once; kept in its directory unless --live-only.  Of a role: a new version of
    what the managers keep for it, with these settings changed and without the comments of the text
    before; with --live-only: of all its running processes alone, and for their life.

    Example: ember admin config change 12 storage.scrub_bytes_per_s_max=1048576 --live-only

    Example: ember admin config change 12 --reset

    Example: ember admin config change meta meta.trash_expiry_s=86400 --note "a day is enough"
    """
    text = _text_of(changes or [])
    where = find(directory, config)
    is_stored = not who.isdecimal() and not live_only
    if not (changes or reset) or (is_stored and reset):
        detail = (
            "say what to change, SECTION.KEY=VALUE; --reset is of a node, or of a role with "
            "--live-only"
        )
        raise FsError(Status.BAD_CONFIG, detail)
    if is_stored:
        role = role_named(who)
        version, answers, before, after = where.run(_change_stored(role, text, note))
        _tell_kept(role, version, answers, before, after, as_json=as_json)
        return
    parse_change(text, "the change")
    request = core_pb2.ChangeSettingsReq(text=text, is_live_only=live_only, is_reset=reset)
    answers = where.run(_change_running(who, request))
    _print_effect(answers, as_json=as_json)
    if any(answer.problem for answer in answers.values()):
        raise typer.Exit(1)


def _change_running(who: str, request: core_pb2.ChangeSettingsReq) -> Any:
    """Return what asks a process, by its node, or all those of a role to change their settings;
    returns what each said.
    """

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> Answers:
        if who.isdecimal():
            nodes = [(await newest_routing(mgmtd, TIMEOUT_S)).node(int(who))]
        else:
            nodes = await _nodes_of(mgmtd, _listening(role_named(who)))
        answers: dict[NodeId, SettingsChangePb] = {}
        for node in nodes:
            try:
                channel = channels.get(node.address, node_id=node.node_id)
                received = await channel.call(
                    services.CORE_CHANGE_SETTINGS, request, timeout_s=ASK_TIMEOUT_S
                )
                answers[node.node_id] = received.message.change
            except FsError as error:
                if len(nodes) == 1:
                    raise
                answers[node.node_id] = SettingsChangePb(problem=str(error))
        return answers

    return use


def _listening(role: Role) -> Role:
    if role is Role.CLIENT:
        raise FsError(
            Status.BAD_CONFIG, "mounts cannot be reached one by one: leave out --live-only"
        )
    return role


def _change_stored(role: Role, text: str, note: str) -> Any:
    """Return what makes a new version with some settings changed;
    returns its number, and as `_tell_kept` takes them.
    """

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> tuple[int, Answers, str, str]:
        before = await stored_of(mgmtd, role)
        values = {s: dict(keys) for s, keys in parse_stored(before.text, role, "").items()}
        for section, keys in parse_stored(text, role, "the change").items():
            values.setdefault(section, {}).update(keys)
        after = format_overlay(values)
        answers = await _try_all(channels, await _nodes_of(mgmtd, role), role, after)
        _check_accepted(answers, accept_refusals=False)
        version = await _keep(mgmtd, role, after, note=note, based_on_version=before.version)
        return version, answers, before.text, after

    return use


def _text_of(changes: Sequence[str]) -> str:
    """Return `section.key=value` words as TOML; a value that is none is taken for text."""
    values: dict[str, dict[str, Any]] = {}
    for word in changes:
        name, equals, value = word.partition("=")
        section, dot, key = name.partition(".")
        if not (equals and dot and section and key):
            raise FsError(Status.BAD_CONFIG, f"{word}: a change is SECTION.KEY=VALUE")
        values.setdefault(section, {})[key] = _value_of(value)
    return format_overlay(values)


def _value_of(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
