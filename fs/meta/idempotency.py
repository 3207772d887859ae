"""Remembered outcomes: a repeated request gets the first reply instead of a second effect.

The record is written in the transaction that has the effect, so either both are there or neither.
Operations that leave their request id in a dentry (create, mkdir, mknod, symlink, link) need none.
"""

from typing import TypeVar

from google.protobuf.message import Message

from ..kv.api import Transaction
from ..schema.method import Method
from ..schema.proto.record_pb2 import IdempotencyRecordPb
from ..schema.status import FsError, Status
from . import records
from .context import OpContext

ReqT = TypeVar("ReqT", bound=Message)
RspT = TypeVar("RspT", bound=Message)


async def recall(tr: Transaction, ctx: OpContext, method: Method[ReqT, RspT]) -> RspT | None:
    """Return the reply that this very request got before, or None.

    Raises:
        FsError: RPC_BAD_REQUEST when the client used the request id for another method.
    """
    value = await tr.get(records.idempotency_key(ctx.caller.client_id, ctx.caller.request_id))
    if value is None:
        return None
    record = IdempotencyRecordPb.FromString(value)
    if record.method_number != method.number:
        raise FsError(
            Status.RPC_BAD_REQUEST,
            f"request id {ctx.caller.request_id.hex()} was used for method {record.method_number}"
            f" before {method}",
        )
    return method.reply_type.FromString(record.reply)


def remember(tr: Transaction, ctx: OpContext, method: Method[ReqT, RspT], reply: RspT) -> None:
    """Store the reply of a request with its effect."""
    record = IdempotencyRecordPb(
        created_ns=ctx.now_ns, method_number=method.number, reply=reply.SerializeToString()
    )
    key = records.idempotency_key(ctx.caller.client_id, ctx.caller.request_id)
    tr.set(key, record.SerializeToString())
