"""`ember user ...`: who may use a closed cluster, and by which tokens (specs/authentication.md).

A token is made here: the manager gets to know what checks it, the token itself is shown once and
kept nowhere. Does not decide anything: fs/mgmtd/user_book.py does.
"""

import json
import random
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ...rpc.credentials import SECRET_BYTES, TOKEN_ID_BYTES, Token
from ...runtime.secret_file import write_secret_file
from ...schema import services
from ...schema.proto import mgmtd_pb2 as pb
from ...schema.status import FsError, Status
from ...schema.user import ID_MAX
from ..reach.where import ConfigOption, DirOption, find
from ..terminal.amounts import parse_time_s
from ..terminal.cells import print_table, table

EXPIRE_DAYS_MAX: Final = 36_500

user = typer.Typer(help="Users of a closed cluster.", no_args_is_help=True, add_completion=False)
token = typer.Typer(help="What lets a user in.", no_args_is_help=True)
user.add_typer(token, name="token")

UidArgument = Annotated[
    int, typer.Argument(metavar="UID", min=0, max=ID_MAX, help="The number of the user.")
]


def parse_ids(text: str) -> list[int]:
    """Return the numbers of `10,20`; raises FsError(INVALID_ARGUMENT)."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise FsError(Status.INVALID_ARGUMENT, f"--groups {text}: numbers, with commas between")
    numbers = [int(part) for part in parts]
    if max(numbers, default=0) > ID_MAX:
        raise FsError(Status.INVALID_ARGUMENT, f"--groups {text}: at most {ID_MAX}")
    return numbers


@user.command("add")
def add(
    uid: UidArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call the user.")],
    *,
    gid: Annotated[
        int | None, typer.Option(min=0, max=ID_MAX, help="Primary group.", show_default="UID")
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Supplementary groups: 10,20; '': none.")
    ] = None,
    root: Annotated[
        bool | None,
        typer.Option(
            "--root/--no-root", help="May act for everybody: for mount daemons.", show_default=False
        ),
    ] = None,
    admin: Annotated[
        bool | None,
        typer.Option(
            "--admin/--no-admin", help="May change the cluster, and its users.", show_default=False
        ),
    ] = None,
    config: ConfigOption = None,
    directory: DirOption = None,
) -> None:
    """Make a user, or change the name of one and what else is said; the rest, and tokens, stay."""
    known = [one for one in _users(config, directory) if one.uid == uid]
    before = known[0] if known else pb.UserPb(gid=uid)
    made = pb.UserPb(
        uid=uid,
        name=name,
        gid=before.gid if gid is None else gid,
        groups=before.groups if groups is None else parse_ids(groups),
        is_root=before.is_root if root is None else root,
        is_admin=before.is_admin if admin is None else admin,
    )
    find(directory, config).ask(services.MGMTD_SET_USER, pb.SetUserReq(user=made))
    told = _as_json(made)
    typer.echo(f"user {uid} {name}: groups {_groups(told)}; flags: {_flags(told) or 'none'}")


@user.command("rm")
def rm(uid: UidArgument, *, config: ConfigOption = None, directory: DirOption = None) -> None:
    """Forget a user; its tokens end."""
    if not any(one.uid == uid for one in _users(config, directory)):
        raise FsError(Status.USER_UNKNOWN, f"uid {uid}: ember user ls")
    find(directory, config).ask(services.MGMTD_REMOVE_USER, pb.RemoveUserReq(uid=uid))


def _users(config: Path | None, directory: Path | None) -> list[pb.UserPb]:
    found: list[pb.UserPb] = []
    has_more = True
    while has_more:
        request = pb.ListUsersReq(first_uid=found[-1].uid + 1 if found else 0)
        reply = find(directory, config).ask(services.MGMTD_LIST_USERS, request)
        found.extend(reply.users)
        has_more = reply.has_more
    return found


def _time(wall_ns: int) -> str:
    return (
        datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(timespec="seconds") if wall_ns else ""
    )


def _as_json(found: pb.UserPb) -> dict[str, Any]:
    return {
        "uid": found.uid,
        "name": found.name,
        "gid": found.gid,
        "groups": list(found.groups),
        "is_root": found.is_root,
        "is_admin": found.is_admin,
        "tokens": [
            {
                "id": t.token_id.hex(),
                "created": _time(t.created_ns),
                "expires": _time(t.expires_ns),
                "used": _time(t.used_ns),
            }
            for t in found.tokens
        ],
    }


def _groups(one: dict[str, Any]) -> str:
    return ",".join(map(str, [one["gid"], *one["groups"]]))


def _flags(one: dict[str, Any]) -> str:
    return " ".join(flag for flag in ("root", "admin") if one[f"is_{flag}"])


@user.command("ls")
def ls(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    config: ConfigOption = None,
    directory: DirOption = None,
) -> None:
    """List users, and their tokens by id: nobody can show a token again."""
    found = [_as_json(one) for one in _users(config, directory)]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    rich = table("uid", "name", "groups", "flags", "token", "expires", "used")
    for one in found:
        head = [str(one["uid"]), one["name"], _groups(one), _flags(one)]
        for each in one["tokens"] or [{"id": "", "expires": "", "used": ""}]:
            rich.add_row(*head, each["id"], each["expires"], each["used"])
            head = [""] * len(head)
    print_table(rich)


@token.command("new")
def new(
    uid: UidArgument,
    *,
    expire: Annotated[
        str, typer.Option(metavar="TIME", help="12h, 90d ...", show_default="never")
    ] = "",
    file: Annotated[
        Path | None, typer.Option(help="Write it there (mode 0600) instead of printing it.")
    ] = None,
    config: ConfigOption = None,
    directory: DirOption = None,
) -> None:
    """Make a token and show it, once; it lets its holder in as that user."""
    source = random.SystemRandom()
    made = Token(uid, source.randbytes(TOKEN_ID_BYTES), source.randbytes(SECRET_BYTES))
    verifier = made.secret.verifier()
    expires_ns = (
        time.time_ns() + parse_time_s(expire, "--expire", days_max=EXPIRE_DAYS_MAX) * 10**9
        if expire
        else 0
    )
    record = pb.TokenPb(
        token_id=made.token_id,
        stored_key=verifier.stored_key,
        listener_key=verifier.listener_key,
        expires_ns=expires_ns,
    )
    if file is not None:  # before anybody counts on it
        write_secret_file(file, made.text + "\n")
    request = pb.AddTokenReq(uid=uid, token=record)
    try:
        find(directory, config).ask(services.MGMTD_ADD_TOKEN, request)
    except BaseException:
        if file is not None:
            file.unlink()
        raise
    if file is None:
        typer.echo(made.text)


@token.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `ember user ls` shows it.")],
    *,
    config: ConfigOption = None,
    directory: DirOption = None,
) -> None:
    """Let a token prove nothing any more, within auth.token_check_interval_s."""
    if re.fullmatch(r"[0-9a-f]{16}", token_id) is None:
        raise FsError(Status.INVALID_ARGUMENT, f"{token_id!r} is no id of a token: ember user ls")
    request = pb.RevokeTokenReq(token_id=bytes.fromhex(token_id))
    tokens = [each.token_id for one in _users(config, directory) for each in one.tokens]
    if request.token_id not in tokens:
        raise FsError(Status.NOT_FOUND, f"token {token_id}: nobody has it: ember user ls")
    find(directory, config).ask(services.MGMTD_REVOKE_TOKEN, request)
