"""Remembered outcomes: a repeated request gets the first reply instead of a second effect.

The record is written in the transaction that has the effect.  So either both are there or neither,
and the repeat finds it at any service, whatever others have done to the effect since.

What is remembered:
    - The reply of every operation whose repeat could do harm.
    - The refusal of a repeat.  An error has no effect, and a repeat is judged anew.  But when a
      repeat itself is refused, its client takes that for the outcome, while an earlier try may
      still lie at another service and succeed later.
    - For the same reason the answer to a repeat that changed nothing of the locks, and a repeated
      open with a session, without O_TRUNC.  An earlier try would take a lock that nobody frees, or
      leave a session that nobody ends.

What is not:
    - What only ever grows (ExtendStripe, ReserveSpace).
    - Reports of open files (Sync, Close), which tell how far a file reaches and not what to do.

But of reports these are remembered:
    - What was refused.
    - What a repeat said of times and content: its first try, come late, would undo
      what somebody else has set since.
    - That a report's bytes were taken inline.  Unless its client is told so it writes them to a
      chunk, over whatever others have made of the file meanwhile.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TypeVar

from google.protobuf.message import Message

from ..kv.api import Transaction
from ..rpc.frame import decode_error
from ..schema.method import Method
from ..schema.proto.common_pb2 import InodePb
from ..schema.proto.record_pb2 import IdempotencyRecordPb
from ..schema.status import FsError, Status
from . import records
from .context import Caller, OpContext
from .damage import decoded, inode_record, outcome_record
from .inodes import complete

ReqT = TypeVar("ReqT", bound=Message)
RspT = TypeVar("RspT", bound=Message)

Operation = Callable[[Transaction, OpContext, ReqT], Awaitable[RspT]]


def _key(caller: Caller) -> bytes:
    return records.idempotency_key(caller.client_id, caller.request_id)


async def recall(tr: Transaction, ctx: OpContext, method: Method[ReqT, RspT]) -> RspT | None:
    """Return the reply that this very request got before, or None;
    an inode in it is as it is now, while it exists.

    Raises:
        FsError: what a repeat of it was refused with; RPC_BAD_REQUEST when the client used the
            request id for another method.
    """
    key = _key(ctx.caller)
    value = await tr.get(key)
    if value is None:
        return None
    record = outcome_record(key, value)
    if record.status:
        raise decode_error(record.status, record.detail.encode())  # also of a newer release
    reply = _reply_in(key, record, ctx.caller.request_id, method)
    if "inode" in reply.DESCRIPTOR.fields_by_name and reply.HasField("inode"):
        await _renew(tr, reply.inode)  # type: ignore[attr-defined]
    return reply


def _reply_in(
    key: bytes, record: IdempotencyRecordPb, request_id: bytes, method: Method[ReqT, RspT]
) -> RspT:
    if record.method_number != method.number:
        raise FsError(
            Status.RPC_BAD_REQUEST,
            f"request id {request_id.hex()} was used for method {record.method_number}"
            f" before {method}",
        )
    return decoded(method.reply_type, key, record.reply)


async def _renew(tr: Transaction, inode: InodePb) -> None:
    stored = await tr.get(records.inode_key(inode.inode_id))
    if stored is not None:
        inode.CopyFrom(await complete(tr, inode_record(inode.inode_id, stored)))


async def is_remembered(tr: Transaction, caller: Caller) -> bool:
    """Return whether this very request had an outcome that `recall` would raise or return."""
    return await tr.get(_key(caller)) is not None


def remember(tr: Transaction, ctx: OpContext, method: Method[ReqT, RspT], reply: RspT) -> None:
    """Store the reply of a request with its effect."""
    record = IdempotencyRecordPb(
        created_ns=ctx.now_ns,
        method_number=method.number,
        reply=reply.SerializeToString(),
        tick=ctx.tick,
    )
    tr.set(_key(ctx.caller), record.SerializeToString())


async def refuse(
    tr: Transaction, caller: Caller, error: FsError, *, now_ns: int, tick: int
) -> bool:
    """Store that a request was refused, unless its effect is there;
    return whether it is refused now.

    On a full store, too, which may be what it was refused for: else an earlier try
    would succeed once there is room.
    """
    tr.mark_freeing()
    key = _key(caller)
    value = await tr.get(key)
    if value is not None:
        return bool(outcome_record(key, value).status)
    record = IdempotencyRecordPb(
        created_ns=now_ns, status=int(error.status), detail=error.detail, tick=tick
    )
    tr.set(key, record.SerializeToString())
    return True


async def end_request(
    tr: Transaction,
    ctx: OpContext,
    request_id: bytes,
    method: Method[ReqT, RspT],
    refusal: RspT,
) -> RspT | None:
    """Return what was remembered of another request of the caller's client;
    if nothing was, it gets `refusal` whenever it comes.

    Returns:
        Its reply, without what it tells of an inode; None: it was refused with an error.

    Raises:
        FsError: RPC_BAD_REQUEST: it was one of another method.
    """
    named = ctx._replace(caller=ctx.caller._replace(request_id=request_id))
    key = _key(named.caller)
    value = await tr.get(key)
    if value is None:
        remember(tr, named, method, refusal)
        return refusal
    record = outcome_record(key, value)
    return None if record.status else _reply_in(key, record, request_id, method)


async def stamp(tr: Transaction, keys: Sequence[bytes], tick: int) -> None:
    """Say of outcomes that were remembered without a tick that they are of this one,
    so that they end, too.
    """
    tr.mark_freeing()
    for key, value in zip(keys, await tr.get_many(keys), strict=True):
        if value is not None:
            record = outcome_record(key, value)
            record.tick = record.tick or tick
            tr.set(key, record.SerializeToString())


def once(
    method: Method[ReqT, RspT],
) -> Callable[[Operation[ReqT, RspT]], Operation[ReqT, RspT]]:
    """Decorate an operation that is always remembered; it raises what `recall` raises, too."""

    def decorate(op: Operation[ReqT, RspT]) -> Operation[ReqT, RspT]:
        @wraps(op)
        async def run(tr: Transaction, ctx: OpContext, request: ReqT) -> RspT:
            done = await recall(tr, ctx, method)
            if done is not None:
                return done
            reply = await op(tr, ctx, request)
            remember(tr, ctx, method, reply)
            return reply

        return run

    return decorate
