"""What a remote method is: the typed form of one `rpc` line of a .proto file.  Pure."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from .proto import rule_pb2

ReqT = TypeVar("ReqT", bound=Message)
RspT = TypeVar("RspT", bound=Message)


class Access(IntEnum):
    """Who may call a method of a closed cluster, in growing order of trust;
    each may call what those below it may.
    """

    USER = rule_pb2.ACCESS_USER
    ADMIN = rule_pb2.ACCESS_ADMIN
    SERVICE = rule_pb2.ACCESS_SERVICE


@dataclass(frozen=True, slots=True)
class Method(Generic[ReqT, RspT]):
    """One remote method; made from the schema by `method`, never by hand."""

    service_name: str
    service_number: int
    name: str
    number: int
    request_type: type[ReqT]
    reply_type: type[RspT]
    is_idempotent: bool
    has_request_payload: bool
    has_reply_payload: bool
    access: Access
    version_min: int = 0
    """No peer of an older protocol version understands the request as this release makes it."""
    is_payload_checked: bool = False
    """The payload of a request is not used before it matches a checksum of the message."""
    is_relayed: bool = False
    """A storage node passes it on to another one for a client that does not reach that one."""

    def __str__(self) -> str:
        return f"{self.service_name}.{self.name}"


def method(
    service: ServiceDescriptor, name: str, request_type: type[ReqT], reply_type: type[RspT]
) -> Method[ReqT, RspT]:
    """Return method `name` of a service, with the rule that its .proto file states."""
    found = service.methods_by_name[name]
    rule = found.GetOptions().Extensions[rule_pb2.rule]
    service_number = service.GetOptions().Extensions[rule_pb2.service_number]
    assert rule.number > 0 and service_number > 0, (service.name, name)
    assert found.input_type is request_type.DESCRIPTOR, (service.name, name)
    assert found.output_type is reply_type.DESCRIPTOR, (service.name, name)
    return Method(
        service.name,
        service_number,
        name,
        rule.number,
        request_type,
        reply_type,
        rule.idempotent,
        rule.request_payload,
        rule.reply_payload,
        Access(rule.access),
        rule.version_min,
        rule.checked_payload,
        rule.relayed,
    )
