"""Messages of every declared type with random content, made from their descriptors:
edge values, noise, hostile names.

Plain random numbers, not hypothesis: a message costs microseconds, and a seed names it.
"""

import random
from collections.abc import Callable

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from fs.schema.proto import (
    common_pb2,
    core_pb2,
    kv_pb2,
    meta_pb2,
    mgmtd_pb2,
    record_pb2,
    rpc_pb2,
    rule_pb2,
    storage_pb2,
)

FILES = (
    common_pb2, core_pb2, kv_pb2, meta_pb2, mgmtd_pb2, record_pb2, rpc_pb2, rule_pb2, storage_pb2,
)  # fmt: skip
DEPTH_MAX = 3
LEFT_OUT_SHARE = 0.3
COUNTS = (0, 1, 1, 1, 2, 3, 8)
COUNT_HUGE = 3000
HUGE_SHARE = 0.002

_KIND = FieldDescriptor
_SIGNED_32, _SIGNED_64 = (-(2**31), 2**31), (-(2**63), 2**63)
RANGES = {
    _KIND.CPPTYPE_INT32: _SIGNED_32,
    _KIND.CPPTYPE_INT64: _SIGNED_64,
    _KIND.CPPTYPE_UINT32: (0, 2**32),
    _KIND.CPPTYPE_UINT64: (0, 2**64),
    _KIND.CPPTYPE_ENUM: _SIGNED_32,
}
"""Enumerations are open: a newer release may send numbers that this one does not know."""

FLOATS = (0.0, -0.0, -1.0, 5e-324, 1e30, float("inf"), -float("inf"), float("nan"))
NAMES = (
    b"", b".", b"..", b"/", b"a/b", b"/abs", b"../up", b"a\0b", b"\0", b"\xff\xfe", b" ", b"\n",
    b"n" * 255, b"n" * 256, b"p/" * 2100, "\u202e\u00e9\ud55c".encode(), b"system.posix_acl_access",
)  # fmt: skip

Value = Callable[[random.Random, FieldDescriptor], object]


def descriptors() -> list[Descriptor]:
    """Return every message type that can stand alone, by name."""
    found = [d for file in FILES for d in file.DESCRIPTOR.message_types_by_name.values()]
    return sorted(found, key=lambda d: d.full_name)


def message_of(rng: random.Random, descriptor: Descriptor) -> Message:
    """Return a message of one type."""
    message = message_factory.GetMessageClass(descriptor)()
    fill(rng, message)
    return message


def value_of(rng: random.Random, field: FieldDescriptor):
    """Return a value that fits a field which holds no message."""
    if field.cpp_type in RANGES:
        low, high = RANGES[field.cpp_type]
        return rng.choice((low, high - 1, rng.randrange(low, high), 0, 1, rng.randrange(16)))
    if field.cpp_type == _KIND.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.cpp_type in {_KIND.CPPTYPE_DOUBLE, _KIND.CPPTYPE_FLOAT}:
        return rng.choice((*FLOATS, rng.random()))
    noise = rng.choice(NAMES) if rng.random() < 0.3 else rng.randbytes(rng.choice((1, 8, 16, 300)))
    return noise if field.type == _KIND.TYPE_BYTES else noise.decode("latin-1")


def fill(
    rng: random.Random,
    message: Message,
    value: Value = value_of,
    depth: int = 0,
    left_out: float = LEFT_OUT_SHARE,
) -> None:
    """Fill the fields of a message but for a share;
    of those that exclude each other the last one stays.
    """
    for field in message.DESCRIPTOR.fields:
        if rng.random() < left_out or (field.message_type and depth >= DEPTH_MAX):
            continue
        held = getattr(message, field.name)
        count = 1
        if field.is_repeated:
            is_huge = field.message_type is None and rng.random() < HUGE_SHARE
            count = COUNT_HUGE if is_huge else rng.choice(COUNTS)
        for _ in range(count):
            if field.message_type is None:
                if field.is_repeated:
                    held.append(value(rng, field))
                else:
                    setattr(message, field.name, value(rng, field))
            elif field.message_type.GetOptions().map_entry:
                _put(rng, held, field.message_type, value, depth=depth, left_out=left_out)
            else:
                inner = held.add() if field.is_repeated else held
                inner.SetInParent()
                fill(rng, inner, value, depth + 1, left_out)


def _put(rng, held, entry: Descriptor, value: Value, *, depth: int, left_out: float) -> None:
    """Put one pair into a map."""
    key = value(rng, entry.fields_by_name["key"])
    kept = entry.fields_by_name["value"]
    if kept.message_type is None:
        held[key] = value(rng, kept)
    else:
        fill(rng, held[key], value, depth + 1, left_out)
