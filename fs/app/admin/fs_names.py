"""`ember admin fs`: names and attributes in the file system, as any user, without a mount.

What reads and writes content is in fs_content.py.  Does not decide who may do
what: the metadata services do.
"""

import os
import re
import stat as stat_bits
from typing import Annotated, Any

import typer

from ...admin.dump import inode_row
from ...client.native import EmberFs
from ...client.routing_math import file_chains
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.inode import Inode, InodeType, inode_to_pb
from ...schema.layout import FileRef
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, Where, find
from ..terminal.amounts import bytes_text
from ..terminal.cells import printable
from ..terminal.listing import (
    DryRunOption,
    JsonOption,
    YesOption,
    confirm,
    print_facts,
    print_rows,
    progress_bar,
    time_text,
)
from .layouts import ChunkSizeOption, StripeOption, TableOption, chosen_layout, inherited
from .meta_calls import ask_meta, caller, inode_of
from .standing import (
    Standing,
    absolute,
    identity_of,
    identity_text,
    parse_identity,
    run_fs,
    run_fs_at,
    set_standing,
    shown,
    standing,
)

fs = typer.Typer(help="The file system, as any user, without a mount.", no_args_is_help=True)

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="From the root, or in a shell from `cd`.")
]
ModeOption = Annotated[
    str, typer.Option("--mode", metavar="OCTAL", help="Permission bits.", show_default=True)
]


@fs.callback()
def entry(
    identity: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="UID[:GID[:GROUPS]]",
            help="On whose behalf; in a shell it counts for the lines that follow.",
        ),
    ] = "",
) -> None:
    """The file system, as any user, without a mount."""
    if identity:
        set_standing(Standing(standing().directory, parse_identity(identity)))


def parse_mode(text: str) -> int:
    """Return permission bits, written in octal; raises FsError(INVALID_ARGUMENT)."""
    if not re.fullmatch("[0-7]{1,4}", text):
        raise FsError(Status.INVALID_ARGUMENT, f"mode {text!r}: say it in octal, 0 to 7777")
    return int(text, 8)


@fs.command("whoami")
def whoami(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Show on whose behalf commands work, and in which directory.

    Example: ember admin fs whoami
    """
    who = identity_of(find(directory, config).auth)
    facts = {"identity": identity_text(who), "directory": standing().directory}
    print_facts(facts, as_json=as_json)


@fs.command("cd")
def cd(
    path: PathArgument = "/", *, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Go to a directory; in a shell, paths of the lines that follow begin there.

    Example: ember admin fs cd /
    """

    async def use(found: EmberFs) -> str:
        return await found.real_path((await found.stat(absolute(path))).inode_id)

    set_standing(Standing(run_fs(use, directory, config, path=path), standing().identity))


def entry_row(name: str, inode: Inode) -> dict[str, Any]:
    """Return what a listing says of one name."""
    return {
        "name": shown(name),
        "inode_id": inode.inode_id,
        "type": inode.type.name.lower(),
        "mode": inode.st_mode,
        "nlink": inode.nlink,
        "uid": inode.uid,
        "gid": inode.gid,
        "length": inode.length,
        "mtime_ns": inode.mtime_ns,
        "target": shown(os.fsdecode(inode.symlink_target)),
    }


@fs.command("ls")
def ls(
    path: PathArgument = ".",
    *,
    count: Annotated[
        int, typer.Option("--count", min=1, max=10_000_000, help="At most so many.")
    ] = 10_000,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """List a directory, or show what a path names that is none.

    Example: ember admin fs ls /

    Example: ember admin fs ls / --count 10 --json
    """

    async def use(found: EmberFs) -> list[dict[str, Any]]:
        inode = await found.stat(absolute(path))
        if not inode.is_dir:
            return [entry_row(path, inode)]
        entries = await found.listdir(absolute(path), count_max=count)
        return [entry_row(one.name, one.inode) for one in entries]

    columns = {
        "mode": stat_bits.filemode,
        "nlink": None,
        "uid": None,
        "gid": None,
        "length": None,
        "mtime_ns": time_text,
        "name": None,
        "target": None,
    }
    print_rows(run_fs(use, directory, config, path=path), columns, as_json=as_json)


@fs.command("stat")
def stat(
    path: PathArgument = ".",
    *,
    follow: Annotated[
        bool, typer.Option("-L", "--follow", help="Of what a symbolic link names.")
    ] = False,
    chains: Annotated[
        bool, typer.Option("--chains", help="Also the chains that the file is spread over.")
    ] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show attributes and layout of what a path names; its chunks: ember admin file chunks.

    Example: ember admin fs stat /admin-example --chains

    Example: ember admin fs stat / --json
    """
    where = find(directory, config)

    async def use(found: EmberFs) -> Inode:
        return await found.stat(absolute(path), follow=follow)

    inode = run_fs_at(use, where, path=path)
    row = _facts(inode)
    if not as_json:
        row["mode"] = stat_bits.filemode(inode.st_mode)
        row |= {key: time_text(row[key]) for key in row if key.endswith("_ns")}
    if chains and inode.type is InodeType.FILE and inode.file is not None:
        ref = FileRef(inode.inode_id, inode.file.layout, inode.file.dyn_stripe)
        row["chains"] = [] if inode.file.is_inline else list(file_chains(where.routing(), ref))
    print_facts(row, as_json=as_json)


def _facts(inode: Inode) -> dict[str, Any]:
    """Return what `stat` says of an inode, for programs."""
    row = dict(inode_row(inode_to_pb(inode)))
    texts = {
        key: value.decode(errors="backslashreplace")
        for key, value in row.items()
        if isinstance(value, bytes)
    }
    return row | texts


def _tell(where: Where, path: str, *, as_json: bool) -> None:
    """Print for programs what a path names now; people who gave the command know."""
    if as_json:
        what = absolute(path)
        inode = run_fs_at(lambda found: found.stat(what, follow=False), where)
        print_facts({"path": shown(what), **_facts(inode)}, as_json=True)


@fs.command("realpath")
def realpath(
    path: PathArgument, *, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Print where a path leads when all symbolic links are followed;
    a file with several names has several.

    Example: ember admin fs realpath /admin-example
    """

    async def use(found: EmberFs) -> list[str]:
        return await found.paths_of((await found.stat(absolute(path))).inode_id)

    for line in run_fs(use, directory, config, path=path):
        typer.echo(printable(shown(line)))


@fs.command("mkdir")
def mkdir(
    path: PathArgument,
    *,
    parents: Annotated[
        bool,
        typer.Option(
            "-p", "--parents", help="Also what is missing above; that it is there is no error."
        ),
    ] = False,
    mode: ModeOption = "755",
    chunk_size: ChunkSizeOption = "",
    stripe_size: StripeOption = 0,
    table_id: TableOption = 0,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a directory, with a layout for what is made below it if one is given.

    Example: ember admin fs mkdir /admin-directory/below -p --chunk-size 1M
    """
    bits = parse_mode(mode)
    where = find(directory, config)

    async def use(found: EmberFs) -> None:
        if parents:
            await found.makedirs(absolute(path), bits)
        else:
            await found.mkdir(absolute(path), bits)

    run_fs_at(use, where, path=path)
    if not (chunk_size or stripe_size or table_id):
        _tell(where, path, as_json=as_json)
        return

    async def cut(mgmtd: MgmtdLink, channels: ChannelPool) -> None:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        who = identity_of(where.auth)
        inode = await inode_of(where, channels, info, path, 0, who=who)
        base = (await inherited(where, channels, info, inode))[0]
        made = chosen_layout(info, base, chunk_size, stripe_size, table_id)
        request = meta_pb2.SetAttrReq(
            caller=caller(where, channels, who), inode_id=inode.inode_id, default_layout=made
        )
        await ask_meta(channels, info, services.META_SET_ATTR, request)

    where.run(cut)
    _tell(where, path, as_json=as_json)


@fs.command("create")
def create(
    path: PathArgument,
    *,
    mode: ModeOption = "644",
    chunk_size: ChunkSizeOption = "",
    stripe_size: StripeOption = 0,
    table_id: TableOption = 0,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Make an empty file, with a layout of its own if one is given;
    a file that is there is an error.

    Example: ember admin fs create /admin-created --mode 600 --chunk-size 64K --stripe 1
    """
    bits = parse_mode(mode)
    where = find(directory, config)
    above, name = os.path.split(absolute(path))

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> None:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        who = identity_of(where.auth)
        parent = await inode_of(where, channels, info, above, 0, who=who)
        request = meta_pb2.CreateReq(
            caller=caller(where, channels, who),
            parent_inode_id=parent.inode_id,
            name=os.fsencode(name),
            mode=bits,
            is_exclusive=True,
        )
        if chunk_size or stripe_size or table_id:
            base = (await inherited(where, channels, info, parent))[0]
            request.layout.CopyFrom(chosen_layout(info, base, chunk_size, stripe_size, table_id))
        await ask_meta(channels, info, services.META_CREATE, request)

    where.run(use)
    _tell(where, path, as_json=as_json)


@fs.command("ln")
def ln(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="What the new name names.")],
    path: PathArgument,
    *,
    symbolic: Annotated[
        bool, typer.Option("-s", "--symbolic", help="Make a symbolic link.")
    ] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Give a file one more name, or make a symbolic link.

    Example: ember admin fs ln /admin-example /admin-link -s
    """

    async def use(found: EmberFs) -> None:
        if symbolic:
            await found.symlink(target, absolute(path))
        else:
            await found.link(absolute(target), absolute(path))

    where = find(directory, config)
    run_fs_at(use, where)
    _tell(where, path, as_json=as_json)


@fs.command("mv")
def mv(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="What it is called now.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The new path itself.")],
    *,
    no_replace: Annotated[
        bool, typer.Option("--no-replace", help="Fail if the target is there.")
    ] = False,
    exchange: Annotated[bool, typer.Option("--exchange", help="Let both change places.")] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Rename, atomically; what the target names is replaced unless told otherwise.

    Example: ember admin fs mv /admin-created /admin-renamed --no-replace
    """

    async def use(found: EmberFs) -> None:
        await found.rename(
            absolute(source), absolute(target), no_replace=no_replace, exchange=exchange
        )

    where = find(directory, config)
    run_fs_at(use, where)
    _tell(where, target, as_json=as_json)


async def _below(found: EmberFs, path: str) -> str:
    """Say how much lies at a path."""
    if not (await found.stat(path, follow=False)).is_dir:
        return "one name"
    usage, _ = await found.usage(path)
    return (
        f"{usage.file_count} files and {usage.directory_count} directories below it, "
        f"{bytes_text(usage.byte_count)}"
    )


@fs.command("rm")
def rm(
    path: PathArgument,
    *,
    recursive: Annotated[
        bool, typer.Option("-r", "--recursive", help="A directory, with all below it.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove a name for good, with -r a directory with all below it in one step;
    to be restored: ember rm.

    Example: ember admin fs rm /admin-renamed --yes

    Example: ember admin fs rm /admin-directory -r --dry-run
    """
    where = find(directory, config)
    what = absolute(path)

    async def look(found: EmberFs) -> tuple[bool, str]:
        inode = await found.stat(what, follow=False)
        if inode.is_dir and not recursive:
            raise FsError(Status.IS_DIRECTORY, f"{path}: say -r to remove a directory")
        return inode.is_dir, await _below(found, what)

    is_directory, below = run_fs_at(look, where, path=path)
    plan = [f"{shown(what)} is removed for good: {below}"]
    confirm(plan, dry_run=dry_run, yes=yes, as_json=as_json)
    run_fs_at(lambda found: found.remove_tree(what) if is_directory else found.unlink(what), where)
    if as_json:
        print_facts({"path": shown(what), "is_directory": is_directory}, as_json=True)


@fs.command("chmod")
def chmod(
    mode: Annotated[str, typer.Argument(metavar="OCTAL", help="Permission bits.")],
    path: PathArgument,
    *,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Set the permission bits of what a path names.

    Example: ember admin fs chmod 644 /admin-example
    """
    bits = parse_mode(mode)
    where = find(directory, config)
    run_fs_at(lambda found: found.set_attributes(absolute(path), mode=bits), where, path=path)
    _tell(where, path, as_json=as_json)


def parse_owner(text: str) -> tuple[int | None, int | None]:
    """Return owner and group of UID, UID:GID or :GID; None: as it is.

    Raises FsError(INVALID_ARGUMENT).
    """
    uid, _, gid = text.partition(":")
    who = parse_identity(f"{uid or 0}:{gid or 0}")
    if not uid and not gid:
        raise FsError(Status.INVALID_ARGUMENT, f"owner {text!r}: say UID, UID:GID or :GID")
    return (who.uid if uid else None, who.gid if gid else None)


@fs.command("chown")
def chown(
    owner: Annotated[
        str, typer.Argument(metavar="UID[:GID]", help="As numbers; :GID leaves the owner.")
    ],
    path: PathArgument,
    *,
    recursive: Annotated[bool, typer.Option("-R", "--recursive", help="And all below it.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Give what a path names, with -R all below it as well, to another owner and group;
    symbolic links are not followed.

    What -R changes cannot be taken back, so it asks.  When it is interrupted, run it again.

    Example: ember admin fs chown 0:0 /admin-example

    Example: ember admin fs chown 1000:1000 /admin-directory -R --yes
    """
    uid, gid = parse_owner(owner)
    where = find(directory, config)
    what = absolute(path)
    if not recursive and not dry_run:
        run_fs_at(
            lambda found: found.set_attributes(what, uid=uid, gid=gid, follow=False),
            where,
            path=path,
        )
        _tell(where, path, as_json=as_json)
        return
    below = run_fs_at(lambda found: _below(found, what), where, path=path)
    plan = [f"{shown(what)} is given to {owner}: {below}"]
    confirm(plan, dry_run=dry_run, yes=yes, as_json=as_json)
    with progress_bar("names changed") as step:
        count = run_fs_at(
            lambda found: found.change_owner_below(what, uid=uid, gid=gid, told=step), where
        )
    if as_json:
        print_facts({"path": shown(what), "changed": count}, as_json=True)
    else:
        typer.echo(f"{count} changed")
