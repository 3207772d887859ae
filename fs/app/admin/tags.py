"""`ember admin node tag`: what operators say of nodes, and of the mounts on a host."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from ...schema import services
from ...schema.proto import mgmtd_pb2 as pb
from ...schema.status import FsError, Status
from ..reach.where import ConfigOption, DirOption, Where, find
from ..terminal.listing import JsonOption, print_rows

tag = typer.Typer(
    help="Tags of nodes (zone, rack and host are where they stand), and of the hosts of mounts.",
    no_args_is_help=True,
)

PlaceArgument = Annotated[
    str, typer.Argument(metavar="NODE|HOST", help="A node's number; or the host name of mounts.")
]
TagsArgument = Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Tags.")]
KeysArgument = Annotated[list[str], typer.Argument(metavar="KEY...", help="Of the tags.")]


def tags_of(words: Sequence[str]) -> dict[str, str]:
    """Return tags as they are written, KEY=VALUE; raises FsError(BAD_CONFIG)."""
    tags = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise FsError(Status.BAD_CONFIG, f"{word}: a tag is KEY=VALUE")
        tags[key] = value
    return tags


def has_tags(tags: Mapping[str, str], wanted: Sequence[str]) -> bool:
    """Return whether all wanted tags are there: KEY=VALUE, or KEY with whatever value."""
    return all(
        tags.get(key) == value if equals else key in tags
        for key, equals, value in (word.partition("=") for word in wanted)
    )


def tags_text(tags: Mapping[str, str]) -> str:
    """Return tags as people read them."""
    return " ".join(f"{key}={value}" for key, value in sorted(tags.items()))


@tag.command("set")
def set_(
    place: PlaceArgument,
    tags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="All that it has from now on."),
    ] = None,
    *,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Give a node, or a host, these tags and no others.

    Example: ember admin node tag set 12 rack=r1 host=h12 owner=vision
    """
    _change(place, pb.TagChangePb.TAGS_SET, tags_of(tags or []), find(directory, config))


@tag.command("add")
def add(
    place: PlaceArgument,
    tags: TagsArgument,
    *,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Add tags, or change them; the others stay.

    Example: ember admin node tag add 12 owner=vision

    Example: ember admin node tag add trainer-7 zone=west
    """
    _change(place, pb.TagChangePb.TAGS_ADD, tags_of(tags), find(directory, config))


@tag.command("remove")
def remove(
    place: PlaceArgument,
    keys: KeysArgument,
    *,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Take tags away.

    Example: ember admin node tag remove 12 owner
    """
    _change(place, pb.TagChangePb.TAGS_REMOVE, dict.fromkeys(keys, ""), find(directory, config))


@tag.command("hosts")
def hosts(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List the hosts of mounts that have tags.

    Example: ember admin node tag hosts
    """
    listed = find(directory, config).ask(services.MGMTD_LIST_HOST_TAGS, pb.ListHostTagsReq())
    rows = [{"host": one.host_name, "tags": dict(one.tags)} for one in listed.hosts]
    print_rows(rows, {"host": None, "tags": tags_text}, as_json=as_json)


def _change(
    place: str, change: pb.TagChangePb.ValueType, tags: Mapping[str, str], where: Where
) -> None:
    request = pb.SetTagsReq(change=change, tags=tags)
    if place.isdecimal():
        request.node_id = int(place)
    else:
        request.host_name = place
    reply = where.ask(services.MGMTD_SET_TAGS, request)
    typer.echo(f"{place}: {tags_text(reply.tags) or 'no tags'}")
