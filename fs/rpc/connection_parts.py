"""What the ways of serving a request share of their connection.

Part of fs/rpc/server_connection.py, which makes it once its stream has a task to serve it.
"""

from collections.abc import Callable, Coroutine, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import trio

from .failed_answers import FailedAnswers
from .frame_sender import Spawn
from .framed_stream import FramedStream
from .method_runs import MethodRuns
from .replies import Replies
from .server_parts import ServerParts
from .serving import Work

NOBODYS: Final = trio.CancelScope()
"""Stands for requests that nobody cancels: they were begun, or their methods have ended."""


@dataclass(frozen=True, slots=True)
class ConnectionParts:
    """Of one connection."""

    server: ServerParts
    framed: FramedStream
    runs: MethodRuns
    replies: Replies
    scopes: MutableMapping[int, trio.CancelScope]
    """Of the requests under way, by id."""
    spawn: Spawn
    """Starts a task that ends with the connection at the latest."""
    finish: Callable[[Work], Coroutine[Any, Any, None]]
    """Answers a request whose method has ended, with waiting."""
    go_on: Callable[[Work, trio.CancelScope], Coroutine[Any, Any, None]]
    """Awaits what is the result of a request, and answers."""
    give_back: Callable[[Work], None]
    """Gives back what a request holds; at most once for each."""
    failed: FailedAnswers


class WayOfAnswering:
    """Base of what answers without a task for each request;
    keeps the parts by themselves, since every request needs most of them.
    """

    def __init__(self, parts: ConnectionParts) -> None:
        self._server = parts.server
        self._framed = parts.framed
        self._runs = parts.runs
        self._replies = parts.replies
        self._scopes = parts.scopes
        self._spawn = parts.spawn
        self._finish = parts.finish
        self._go_on = parts.go_on
        self._give_back = parts.give_back
        self._failed = parts.failed
        self.has_ended = False
        """The connection takes no more tasks."""

    def _answer_failed(self, work: Work, error: Exception) -> None:
        """Have a task say why there is no reply, of which nothing has been sent; raises nothing."""
        if self._failed.replace(work, error) and not self.has_ended:
            work.is_run = True
            try:
                self._spawn(self._finish, work)
            except Exception as again:  # noqa: BLE001 - there is no task for it
                self._failed.end(str(work), again)
            else:
                return
        self._give_back(work)
