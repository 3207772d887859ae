"""Tags: what operators say of nodes and hosts, as `key=value`.  Pure.

A node's tags are part of the routing info; `rack` and `host` of them are its failure domains,
`zone` and others are for people and selections.  A host's tags are those of all mounts there,
which are no nodes and come and go.

Invariant: repeating a change that was made changes nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..schema.proto import record_pb2
from ..schema.proto.mgmtd_pb2 import HostTagsPb, TagChangePb
from ..schema.status import FsError, Status

HOST_PREFIX: Final = b"MGHT"
HOSTS_MAX: Final = 10_000
TAGS_MAX: Final = 64
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
VALUE_LENGTH_MAX: Final = 256
HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")


def changed_tags(
    tags: Mapping[str, str], change: TagChangePb.ValueType, given: Mapping[str, str]
) -> dict[str, str]:
    """Return the tags after a change; raises FsError(RPC_BAD_REQUEST)."""
    for key, value in given.items():
        if not NAME.fullmatch(key) or len(value) > VALUE_LENGTH_MAX or not value.isprintable():
            detail = (
                f"tag {key!r}: a name is of letters, digits, . _ -, at most 64; a value at most "
                f"{VALUE_LENGTH_MAX}"
            )
            raise FsError(Status.RPC_BAD_REQUEST, detail)
    match change:
        case TagChangePb.TAGS_SET:
            after = dict(given)
        case TagChangePb.TAGS_ADD:
            after = {**tags, **given}
        case TagChangePb.TAGS_REMOVE:
            after = {key: value for key, value in tags.items() if key not in given}
        case _:
            raise FsError(Status.RPC_BAD_REQUEST, f"change {change} of tags")
    if len(after) > TAGS_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, f"{len(after)} tags, at most {TAGS_MAX}")
    return after


@dataclass(frozen=True)
class HostTags:
    """Tags by host name; a host without any is not in it."""

    hosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def unpacked(cls, values: Iterable[bytes]) -> "HostTags":
        """Return what the persisted forms make."""
        found = [record_pb2.HostTagsRecordPb.FromString(value).host for value in values]
        return cls({host.host_name: dict(host.tags) for host in found})

    def of(self, host_name: str) -> Mapping[str, str]:
        """Return the tags of a host."""
        return self.hosts.get(host_name, {})

    def with_tags(self, host_name: str, tags: Mapping[str, str]) -> "HostTags":
        """Return the book with other tags of a host; raises FsError(RPC_BAD_REQUEST)."""
        if not HOST_NAME.fullmatch(host_name):
            raise FsError(Status.RPC_BAD_REQUEST, f"host name {host_name!r}")
        others = {name: kept for name, kept in self.hosts.items() if name != host_name}
        if tags and len(others) >= HOSTS_MAX:
            raise FsError(Status.RPC_BAD_REQUEST, f"{HOSTS_MAX} hosts have tags already")
        return HostTags({**others, host_name: tags} if tags else others)

    def records(self, after: "HostTags") -> list[tuple[bytes, bytes | None]]:
        """Return what to write to have `after` in the store; None: the key is cleared."""
        return [
            *((_key(name), None) for name in self.hosts if name not in after.hosts),
            *(
                (_key(name), _pack(name, tags))
                for name, tags in after.hosts.items()
                if self.hosts.get(name) != tags
            ),
        ]


def _key(host_name: str) -> bytes:
    return HOST_PREFIX + host_name.encode()


def _pack(host_name: str, tags: Mapping[str, str]) -> bytes:
    host = HostTagsPb(host_name=host_name, tags=tags)
    return record_pb2.HostTagsRecordPb(host=host).SerializeToString(deterministic=True)
