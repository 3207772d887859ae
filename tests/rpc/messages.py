"""Messages of every declared type with random content, made from their descriptors."""

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

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
COUNT_MAX = 3

_KIND = FieldDescriptor
_SIGNED_32 = st.integers(-(2**31), 2**31 - 1)
_SIGNED_64 = st.integers(-(2**63), 2**63 - 1)
_VALUES = {
    _KIND.CPPTYPE_INT32: _SIGNED_32,
    _KIND.CPPTYPE_INT64: _SIGNED_64,
    _KIND.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    _KIND.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    _KIND.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    _KIND.CPPTYPE_FLOAT: st.floats(allow_nan=False, width=32),
    _KIND.CPPTYPE_BOOL: st.booleans(),
    _KIND.CPPTYPE_ENUM: _SIGNED_32,
}
"""Enumerations are open: a newer release may send numbers that this one does not know."""


def descriptors() -> list[Descriptor]:
    """Return every message type that can stand alone, by name."""
    found = [d for file in FILES for d in file.DESCRIPTOR.message_types_by_name.values()]
    return sorted(found, key=lambda d: d.full_name)


def messages(descriptor: Descriptor, depth: int = 0):
    """Return a strategy for messages of one type."""
    made = message_factory.GetMessageClass(descriptor)
    fields = {
        field.name: _field(field, depth)
        for field in descriptor.fields
        if depth < DEPTH_MAX or field.message_type is None
    }
    return st.fixed_dictionaries({}, optional=fields).map(
        lambda values: made(**_one_of(values, descriptor))
    )


def _one_of(values, descriptor):
    """Keep the first of the fields that exclude each other."""
    kept, seen = {}, set()
    for name, value in values.items():
        group = descriptor.fields_by_name[name].containing_oneof
        if group is None or group.name not in seen:
            kept[name] = value
            seen.add(group.name if group else name)
    return kept


def _field(field, depth):
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        return st.dictionaries(_value(key, depth), _value(value, depth), max_size=COUNT_MAX)
    value = _value(field, depth)
    return st.lists(value, max_size=COUNT_MAX) if field.is_repeated else value


def _value(field, depth):
    if field.cpp_type == _KIND.CPPTYPE_MESSAGE:
        return messages(field.message_type, depth + 1)
    if field.cpp_type == _KIND.CPPTYPE_STRING:
        is_text = field.type == _KIND.TYPE_STRING
        return (
            st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
            if is_text
            else st.binary(max_size=20)
        )
    return _VALUES[field.cpp_type]
