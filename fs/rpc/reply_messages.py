"""What a caller makes of a reply that has come: the message, and buffers for its payload.

Part of fs/rpc/connection.py.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from ..runtime.ports import Buffer
from ..schema.lacks import is_lack, lacking
from ..schema.method import Method, ReqT, RspT
from ..schema.status import FsError, Status
from .api import Into
from .begun_call import BegunCall
from .call_under_way import CallUnderWay
from .frame import decode_error


def reply_to(method: Method[ReqT, RspT], call: CallUnderWay | BegunCall) -> tuple[RspT, int]:
    """Return the reply to a call that has one, and the bytes of its payload;
    raises the FsError that it says.
    """
    header = call.header
    assert header is not None
    if header.status:
        raise decode_error(header.status, call.message)
    try:  # as `parse_reply`, without a call
        reply: RspT = method.reply_type.FromString(bytes(call.message))
    except DecodeError as error:
        raise _unread(method, error) from error
    return reply, header.payload_bytes


def buffers_for(
    method: Method[ReqT, RspT], into: Into, reply: RspT, size: int
) -> Sequence[memoryview]:
    """Return what a caller has for the `size` bytes of payload of a reply."""
    buffers = into(reply, size)
    found = sum(map(len, buffers))
    assert found == size, f"{method}: buffers for {found} bytes given, {size} come"
    return buffers


def parse_reply(method: Method[ReqT, RspT], message: Buffer) -> RspT:
    """Return the reply that a message is; raises FsError:
    RPC_BAD_FRAME, or OUT_OF_RESOURCES of this process.
    """
    try:
        reply: RspT = method.reply_type.FromString(bytes(message))
    except DecodeError as error:
        raise _unread(method, error) from error
    return reply


def _unread(method: Method[ReqT, RspT], error: DecodeError) -> FsError:
    what = f"reply of {method}"
    return (
        lacking(what, error)
        if is_lack(error)
        else FsError(Status.RPC_BAD_FRAME, f"{what}: {error}")
    )
