# ruff: noqa: SLF001 - see module head
"""The deadline of a cancel scope, set by one call of a function instead of a dozen.

A server sets one for each request that has to wait, and takes it back when its method has ended.

Relies on how trio keeps deadlines (`Deadlines`, `CancelScope._registered_deadline`), which is not
public: with another trio than those that readiness.py knows it is set as anybody would.

Concurrency: one event loop.
"""

import math

import trio

from .readiness import PLAIN_CLOCK, RUN_CONTEXT


def set_deadline(scope: trio.CancelScope, deadline_s: float) -> None:
    """Do what `scope.deadline = deadline_s` does; trio time, infinite for none."""
    runner = RUN_CONTEXT.runner
    if PLAIN_CLOCK is None or runner.is_guest or scope._relative_deadline < math.inf:
        scope.deadline = deadline_s
        return
    scope._deadline = deadline_s
    is_kept = scope._cancel_status is not None and not scope._cancel_called
    before_s, after_s = scope._registered_deadline, deadline_s if is_kept else math.inf
    if before_s == after_s:
        return
    scope._registered_deadline = after_s
    if before_s < math.inf:
        runner.deadlines.remove(before_s, scope)
    if after_s < math.inf:
        runner.deadlines.add(after_s, scope)
