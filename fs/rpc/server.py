"""Serving: connections to requests, requests to methods, results to replies.

A service object has one `async def snake_name(self, call, request)` per method of its service in
the schema; it returns the reply message, or a `Reply` when raw bytes go with it, or raises FsError.
A plain `def` returns the same, or what has to be awaited for it: what such a method ends at once,
with a small reply, costs neither a cancel scope nor a coroutine.

Invariants:
    - Every request is answered exactly once, unless it was cancelled or its connection died.
    - No method runs for a peer that the guard has not let in for it.
    - A method is cancelled when its deadline passes, its caller gives up, or its connection dies.
    - A connection that is stuck inside a frame ends: its peer may be stopped for hours.
    - Nothing a peer sends ends the server: what cannot be trusted ends its connection.
    - Nor does an error of ours between a request and its reply: it is answered
      (failed_answers.py), or ends one connection.
    - A failed assertion in a method is a bug: it is logged with its traceback, reported to
      `on_bug`, and answered by INTERNAL_ERROR.
    - A method that got no memory, thread or descriptor is answered by
      OUT_OF_RESOURCES: whoever asked asks again.

Concurrency: requests of one connection run side by side, at most `inflight_per_connection_max`.
One task per connection receives; it serves what it received by itself until that has to wait, when
another task goes on receiving.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import iscoroutinefunction
from typing import Any, Final

import trio

from ..runtime.background import open_background
from ..runtime.figures import Figures
from ..runtime.ports import Network, Stream
from ..schema import metrics, services
from ..schema.lacks import lack_among
from ..schema.method import Method
from .api import Handler
from .server_connection import ServerConnection
from .server_parts import ServerParts
from .serving import Binding

log = logging.getLogger(__name__)

STUCK_S: Final = 15.0
"""A peer that is in the middle of a frame and moves no byte for this long,
or up to twice, is given up.
"""

AWAKE_S: Final = 1.0

ENDED_CLIENT_COUNT_MAX: Final = 4096
"""As many that are gone are refused; what the first of them sent has been lost long before."""


@cache
def snake_name(name: str) -> str:
    """Return get_info for GetInfo."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def methods_of(service_name: str) -> list[Method[Any, Any]]:
    """Return the methods of a service of the schema, by its name there (`Core`, `Meta` ...)."""
    found = [
        value
        for value in vars(services).values()
        if isinstance(value, Method) and value.service_name == service_name
    ]
    assert found, f"no service {service_name} in the schema"
    return found


@dataclass(eq=False, repr=False)
class Server(ServerParts):
    """The serving side of one process; made without services."""

    _connections: set[ServerConnection] = field(default_factory=set, init=False)

    @property
    def service_names(self) -> Sequence[str]:
        """The services offered, in order of their numbers."""
        names = {key[0]: binding.method.service_name for key, binding in self._bindings.items()}
        return [names[number] for number in sorted(names)]

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return len(self._connections)

    def say(self, figures: Figures) -> None:
        """Say how much is connected and buffered."""
        figures.note(metrics.SERVER_CONNECTIONS, self.connection_count)
        figures.note(metrics.SERVER_LENT, self.lent_bytes)
        figures.note(metrics.SERVER_LENT_REPLIES, self.lent_replies.lent_bytes)
        figures.note(metrics.SERVER_LENT_RANGES, self.lent_replies.range_bytes)
        figures.note(metrics.SERVER_LENT_HELD, self.lent_replies.held_bytes)
        figures.note(metrics.SERVER_BUFFERS_USED, self.pool.used_bytes)
        idle_bytes = self.pool.idle_bytes + self.pool.shelf.slab_bytes
        figures.note(metrics.SERVER_BUFFERS_IDLE, idle_bytes)

    def add_service(self, service: str | Iterable[Method[Any, Any]], target: object) -> None:
        """Bind every method of a service to `target`.

        Args:
            service: the service's name in the schema, or the methods themselves.
            target: has an `async def` named in snake case for each of them (asserted); may
                have an `Admit`, `Quick`, `Packed` and `Begin` forms, and names in
                `tried_methods`: of methods that hardly ever wait, which are begun outside of
                any task, and called once more where that is in vain: what they have done by
                then must not be done twice by that.
        """
        methods = methods_of(service) if isinstance(service, str) else list(service)
        missing = [
            m.name for m in methods if not callable(getattr(target, snake_name(m.name), None))
        ]
        assert not missing, f"{type(target).__name__} lacks {missing}"
        for method in methods:
            key = (method.service_number, method.number)
            assert key not in self._bindings, f"{method} is bound twice"
            handler: Handler = getattr(target, snake_name(method.name))
            observed = None if self.observer is None else self.observer.served(method)
            admit = getattr(target, "admit", None)
            is_plain = not iscoroutinefunction(handler)
            is_tried = method.name in getattr(target, "tried_methods", ())
            quick = getattr(target, f"quick_{snake_name(method.name)}", None)
            packed = getattr(target, f"packed_{snake_name(method.name)}", None)
            begin = getattr(target, f"begin_{snake_name(method.name)}", None)
            has_forms = quick is not None or packed is not None
            assert is_plain or not has_forms, f"{method} has other forms, but is not plain"
            self._bindings[key] = Binding(
                method, handler, admit, observed, is_plain, is_tried, quick, packed, begin
            )

    async def run(
        self,
        network: Network,
        address: str,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen at `address` and serve until cancelled; reports the bound address.

        Raises:
            FsError: START_FAILED when the address cannot be bound.
        """
        async with open_background() as nursery:
            nursery.start_soon(self._end_stuck)
            await network.serve(address, self._serve_stream, task_status=task_status)

    async def end_client(self, client_id: str) -> None:
        """Serve nothing of a client any more whose process is gone.

        Returns when none of its requests is under way in a task.  What a method has begun that
        answers later (`Call.answer`, `Begin`) goes on: who binds such methods waits for that.
        """
        ended = self.ended_clients
        ended[client_id] = None
        if len(ended) > ENDED_CLIENT_COUNT_MAX:
            del ended[next(iter(ended))]
        for connection in [c for c in self._connections if c.client_id == client_id]:
            await connection.end()

    async def _end_stuck(self) -> None:
        """Bound how long a peer that neither sends nor reads on, but is there, holds buffers."""
        while True:
            await trio.sleep(STUCK_S)
            await trio.sleep(AWAKE_S)  # had this process been stopped, it reads first what is there
            for connection in list(self._connections):
                await connection.end_if_stuck()

    async def _serve_stream(self, stream: Stream) -> None:
        connection = ServerConnection(self, stream)
        is_full = len(self._connections) >= self.limits.connection_count_max
        self._connections.add(connection)
        try:
            await connection.run(is_full=is_full)
        except Exception as error:  # noqa: BLE001 - the edge: it ends one connection, not the process
            if lack_among(error) is None:
                self.on_bug(f"connection from {stream.peer_name}", error)
            else:
                log.warning("connection from %s ends: %r", stream.peer_name, error)
            await stream.aclose()
        finally:
            self._connections.discard(connection)
