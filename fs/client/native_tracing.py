"""Calls of the native client as operations that begin traces (fs/runtime/tracing.py).

A client of which nothing is to be traced is left as it is, and pays nothing.  In one that
is traced each public asynchronous method of the file system, and of its files, is replaced
by one that begins a span first.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from ..runtime.tracing import Remote, Span, Tracer, current, live
from .native import EmberFs
from .native_file import EmberFile


class TracedCalls:
    """Which calls of one client are traced, and as part of what."""

    def __init__(self, tracer: Tracer, cause: Remote | None) -> None:
        """Trace every call if a program's span is the `cause`,
        else as many as the tracer samples.
        """
        self._tracer = tracer
        self._cause = cause

    def apply(self, fs: EmberFs) -> None:
        """Trace what is called on this object from now on."""
        if self._cause is None and not self._tracer.sample_rate:
            return
        self._replace_methods(fs)
        make_file = fs._file  # noqa: SLF001 - a part of the same client, as are its files

        def make_traced(*arguments: Any) -> EmberFile:
            file = make_file(*arguments)
            self._replace_methods(file)
            return file

        fs._file = make_traced  # type: ignore[method-assign, assignment]  # noqa: SLF001 - as above

    def _replace_methods(self, owner: object) -> None:
        kind = type(owner)
        for name, function in inspect.getmembers(kind, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                label = f"{kind.__name__}.{name}"
                setattr(owner, name, self._traced(label, function.__get__(owner)))

    def _traced(
        self, label: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            span = self._begin(label)
            if span is None:
                return await method(*arguments, **options)
            with span:
                return await method(*arguments, **options)

        return call

    def _begin(self, label: str) -> Span | None:
        if live.count and current() is not None:
            return None  # a part of a call that is traced
        if self._cause is not None:
            return self._tracer.join(self._cause, label)
        return self._tracer.root(label) if self._tracer.is_due() else None
