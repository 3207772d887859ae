"""The retry loop: the only place that commits.

    async def rename(tr: Transaction) -> Reply: ...
    reply = await transact(engine, rename, runtime=runtime)

`fn` may run several times, and each run but the last is forgotten.  So it must guarantee:
    1. It acts only through `tr`.  It has no side effects outside, and keeps no state from one run
       to the next.  (What it does to local variables it must do again from the start.)
    2. It uses `tr` only until it returns, and does not commit it.
    3. If it writes, a second run after the first took effect gives the same result and no second
       effect.  This matters because a commit of unknown outcome is followed by another run.  Either
       `fn` is idempotent by nature: it sets values that do not depend on what was there.  Or it
       reads a record of the request that it writes itself (an idempotency record), and answers from
       that.  Where neither holds, pass is_idempotent=False.  The caller then gets KV_COMMIT_UNKNOWN
       and must find out by itself.
    4. Errors it raises leave no trace (nothing is committed) and rest on one consistent snapshot.

Read-only transactions pay no commit: what they read was true at one
instant, that of their snapshot.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from ..runtime import tracing
from ..runtime.ports import Runtime
from ..runtime.until_wait import in_task
from ..schema.status import FsError, Status
from .api import KvEngine, Transaction
from .tally import Tally

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_TIME_S_MAX: Final = 10.0
"""Default of kv.retry_time_s_max."""

BACKOFF_S_MIN: Final = 0.001
BACKOFF_S_MAX: Final = 0.25

SNAPSHOT_ATTEMPTS_MAX: Final = 3

RETRIED: Final = frozenset(
    {
        Status.KV_CONFLICT,
        Status.KV_TOO_OLD,
        Status.KV_COMMIT_UNKNOWN,
        Status.KV_UNAVAILABLE,
        Status.KV_TIMED_OUT,
    }
)
"""Statuses of the store itself after which another run may succeed."""


async def transact(
    engine: KvEngine,
    fn: Callable[[Transaction], Awaitable[T]],
    *,
    runtime: Runtime,
    retry_time_s_max: float = RETRY_TIME_S_MAX,
    is_idempotent: bool = True,
    tally: Tally | None = None,
) -> T:
    """Run `fn` in a transaction, commit, and repeat both until it committed; return fn's result.

    Args:
        engine: where.
        fn: what; the module head says what it must guarantee.
        runtime: clock for the time limit, random for the back-off.
        retry_time_s_max: seconds from the start during which another attempt may begin.
        is_idempotent: False when a second run after an unknown outcome could do harm.
        tally: counts how it goes.

    Raises:
        FsError: whatever `fn` raises; the store's last status when time is up, but KV_TIMED_OUT
            (indefinite) when an earlier attempt may have committed; KV_COMMIT_UNKNOWN at once when
            not `is_idempotent`.
    """
    result, _ = await transact_stamped(
        engine,
        fn,
        runtime=runtime,
        retry_time_s_max=retry_time_s_max,
        is_idempotent=is_idempotent,
        tally=tally,
    )
    return result


async def _traced_commit(tr: Transaction) -> bytes | None:
    span = tracing.enter("kv commit")
    if span is None:
        return await tr.commit()
    with span:
        return await tr.commit()


async def transact_stamped(
    engine: KvEngine,
    fn: Callable[[Transaction], Awaitable[T]],
    *,
    runtime: Runtime,
    retry_time_s_max: float = RETRY_TIME_S_MAX,
    is_idempotent: bool = True,
    tally: Tally | None = None,
) -> tuple[T, bytes | None]:
    """As `transact`, returning the commit's versionstamp too; None if `fn` wrote nothing."""
    deadline_s = runtime.clock.monotonic_s() + retry_time_s_max
    is_unknown = False
    attempt = 0
    while True:
        is_committing = False
        tr = engine.transaction()
        try:
            result = await fn(tr)
            is_committing = True
            stamp = await (_traced_commit(tr) if tracing.live.count else tr.commit())
        except FsError as error:
            if error.status not in RETRIED:
                raise
            if tally is not None:
                tally.note_retry(error.status)
            is_unknown = is_unknown or (is_committing and not error.definite)
            if is_unknown and not is_idempotent:
                raise
            pause_s = _pause_s(runtime, attempt)
            if runtime.clock.monotonic_s() + pause_s > deadline_s:
                raise _exhausted(error, attempt + 1, is_unknown) from error
            log.debug("transaction attempt %d: %s; again in %.4f s", attempt + 1, error, pause_s)
        else:
            if tally is not None:
                tally.commit_count += 1
            return result, stamp
        finally:
            tr.close()
        attempt += 1
        await in_task()
        await trio.sleep(pause_s)


async def snapshot_read(engine: KvEngine, fn: Callable[[Transaction], Awaitable[T]]) -> T:
    """Run `fn`, which must not write, on one snapshot; no commit, no conflicts, no waiting.

    Raises:
        FsError: whatever `fn` raises; KV_TOO_OLD if it outlived its snapshot several times.
    """
    attempt = 1
    while True:
        tr = engine.transaction()
        try:
            return await fn(tr)
        except FsError as error:
            if error.status is not Status.KV_TOO_OLD or attempt == SNAPSHOT_ATTEMPTS_MAX:
                raise
        finally:
            tr.close()
        attempt += 1
        await in_task()
        await trio.lowlevel.checkpoint()


def _pause_s(runtime: Runtime, attempt: int) -> float:
    """Return the next pause, with full jitter: contenders spread out instead of meeting again."""
    ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempt, 16))
    return runtime.random.uniform(0.0, ceiling_s)


def _exhausted(error: FsError, attempt_count: int, is_unknown: bool) -> FsError:
    status = Status.KV_TIMED_OUT if is_unknown else error.status
    return FsError(status, f"gave up after {attempt_count} attempts; last: {error}")
