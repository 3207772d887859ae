"""Records of the manager that cannot be read, and what is said of them.  Pure.

Nothing is guessed: without the record of a chain, a target, a node, a move, or of what is told of
disks, no manager knows enough to decide anything, and each says which record it is.  Users, tags,
settings and the history are no part of that: a damaged one is left out, and named in the log.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from ..kv.api import KeyValue
from ..schema.status import FsError, Status

T = TypeVar("T")

log = logging.getLogger(__name__)

NUMBER_BYTES: Final = 8
NUMBER_MAX: Final = 1 << 63


def decoded(
    key: bytes,
    value: bytes,
    unpack: Callable[[bytes], T],
    key_of: Callable[[T], bytes] | None = None,
) -> T:
    """Return what a record says.

    Args:
        key: of the record.
        value: of the record.
        unpack: reads it.
        key_of: returns the key of what was read; None: there is only one of its kind.

    Raises:
        FsError: KV_DAMAGED; its text names the record.
    """
    try:
        found = unpack(value)
        is_its_own = key_of is None or key_of(found) == key
    except (DecodeError, ValueError, OverflowError, FsError) as error:
        raise FsError(Status.KV_DAMAGED, f"record {key!r}: {error}") from error
    if not is_its_own:
        raise FsError(Status.KV_DAMAGED, f"record {key!r} is about something else")
    return found


def counted(key: bytes, number: int) -> int:
    """Return a number that only grows, one by one or by the time; raises FsError(KV_DAMAGED) for
    one that nobody can have come to, and behind which there is none.
    """
    if number >= NUMBER_MAX:
        raise FsError(Status.KV_DAMAGED, f"record {key!r}: {number}")
    return number


def version_in(key: bytes, value: bytes) -> int:
    """Return the number in a record of eight bytes; raises FsError(KV_DAMAGED)."""
    if len(value) != NUMBER_BYTES:
        raise FsError(Status.KV_DAMAGED, f"record {key!r}: a number of {len(value)} bytes")
    return counted(key, int.from_bytes(value, "big"))


def readable(
    rows: Iterable[KeyValue],
    unpack: Callable[[bytes], T],
    key_of: Callable[[T], bytes] | None = None,
) -> list[T]:
    """Return what records say that a manager can do without; damaged ones are left out."""
    found = []
    for key, value in rows:
        try:
            found.append(decoded(key, value, unpack, key_of))
        except FsError as error:
            log.warning("left out: %s", error)
    return found


def readable_values(rows: Iterable[KeyValue], type_: type[Message]) -> list[bytes]:
    """As `readable`, of records that are unpacked elsewhere."""
    kept = []
    for key, value in rows:
        if readable([(key, value)], type_.FromString):
            kept.append(value)
    return kept
