"""What the protocol looks like on the wire:
every message with every field set, every method's number, whole frames.

    python -m tests.golden.wire

writes `wire-VERSION.json` for the highest protocol version, once: it is what a peer of that version
sends.  `test_wire.py` reads it.  Something new is added to it by nobody: what a version had when it
was recorded is what must hold.
"""

import json
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from fs.rpc.api import Identity
from fs.rpc.frame import VERSION_MAX, Kind, encode_error, encode_header
from fs.rpc.handshake import encode_hello
from fs.schema import services
from fs.schema.method import Method
from fs.schema.proto import (
    backup_pb2,
    common_pb2,
    core_pb2,
    kv_pb2,
    meta_pb2,
    mgmtd_pb2,
    record_pb2,
    rpc_pb2,
    storage_pb2,
)
from fs.schema.proto.core_pb2 import EchoReq, GetInfoReq
from fs.schema.status import FsError, Status

HERE = Path(__file__).parent
FILES = (
    backup_pb2,
    common_pb2,
    core_pb2,
    kv_pb2,
    meta_pb2,
    mgmtd_pb2,
    record_pb2,
    rpc_pb2,
    storage_pb2,
)
DEPTH_MAX = 4
"""Of messages in messages; some hold themselves."""

CLUSTER_ID = "golden"
ECHOED = b"recorded"
METHODS = {str(m): m for m in vars(services).values() if isinstance(m, Method)}


def messages() -> dict[str, Descriptor]:
    """Return every message type by its name."""
    return {
        name: found
        for module in FILES
        for name, found in sorted(module.DESCRIPTOR.message_types_by_name.items())
    }


def is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def one_value(field: FieldDescriptor, depth: int):
    """Return a value that no other field of the message has, where its type allows that."""
    number = field.number + 1
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return filled(field.message_type, depth + 1)
        case FieldDescriptor.CPPTYPE_STRING:
            text = f"{field.number}"
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_ENUM:
            return field.enum_type.values[min(1, len(field.enum_type.values) - 1)].number
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return number + 0.5
        case _:
            return number


def filled(descriptor: Descriptor, depth: int = 0) -> Message:
    """Return a message with every field set, of a oneof the first."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        choice = field.containing_oneof
        if (is_message and depth >= DEPTH_MAX) or (choice and message.WhichOneof(choice.name)):
            continue
        if is_message and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            if value.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                getattr(message, field.name)[one_value(key, depth)].CopyFrom(
                    one_value(value, depth)
                )
            else:
                getattr(message, field.name)[one_value(key, depth)] = one_value(value, depth)
        elif is_repeated(field):
            getattr(message, field.name).append(one_value(field, depth))
        elif is_message:
            getattr(message, field.name).CopyFrom(one_value(field, depth))
        else:
            setattr(message, field.name, one_value(field, depth))
    return message


def call_frame(method: Method, request_id: int, request: Message) -> bytes:
    message = request.SerializeToString()
    header = encode_header(
        Kind.REQUEST,
        request_id,
        service=method.service_number,
        method=method.number,
        timeout_ms=30_000,
        message_bytes=len(message),
    )
    return header + message


def recorded() -> dict:
    hello = b"".join(encode_hello(Identity(CLUSTER_ID, client_id="recorded", release="golden")))
    refusal = FsError(Status.NOT_FOUND, "recorded")
    return {
        "version": VERSION_MAX,
        "methods": {
            name: [
                m.service_number,
                m.number,
                m.request_type.DESCRIPTOR.name,
                m.reply_type.DESCRIPTOR.name,
            ]
            for name, m in sorted(METHODS.items())
        },
        "statuses": {status.name: int(status) for status in Status},
        "messages": {
            name: filled(found).SerializeToString(deterministic=True).hex()
            for name, found in messages().items()
        },
        "frames": {
            "hello": hello.hex(),
            "echo": call_frame(services.CORE_ECHO, 1, EchoReq(data=ECHOED)).hex(),
            "get_info": call_frame(services.CORE_GET_INFO, 2, GetInfoReq()).hex(),
            "error": b"".join(encode_error(Kind.REPLY, 3, refusal)).hex(),
            "cancel": encode_header(Kind.CANCEL, 4).hex(),
        },
    }


def main() -> None:
    file = HERE / f"wire-{VERSION_MAX}.json"
    if file.exists():
        print(f"{file.name} is kept")
        return
    file.write_text(json.dumps(recorded(), indent=0) + "\n")
    print(f"{file.name}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
