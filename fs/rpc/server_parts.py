"""What the connections of a server know of it:
its services, limits and buffers, and who judges and measures.

Part of fs/rpc/server.py, whose `Server` is one of these.  Nothing here serves.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Final

from ..runtime.tracing import Tracer
from ..schema.config import RpcSection
from .api import Identity
from .buffer_pool import BufferPool
from .frame import FrameLimits
from .guard import Guard
from .lent_replies import LentTotals
from .observer import RpcObserver
from .refusal_log import RefusalLog
from .serving import Binding
from .slabs import SlabShelf

log = logging.getLogger(__name__)

POOL_BYTES_MAX: Final = 256 * 1024 * 1024


def log_bug(where: str, error: BaseException) -> None:
    """Log a bug with its traceback: the default policy."""
    log.error("%s failed on a bug", where, exc_info=error)


@dataclass(eq=False, repr=False)
class ServerParts:
    """Of one server."""

    identity: Identity
    """Who this process is."""
    limits: RpcSection
    _: KW_ONLY
    guard: Guard | None = None
    """Judges peers; None: everybody is accepted."""
    on_bug: Callable[[str, BaseException], None] = log_bug
    """Called with (where, error) for each bug in a method; must not raise."""
    observer: RpcObserver | None = None
    """Measures what is served; None: nobody does."""
    tracer: Tracer | None = None
    """Begins a span for each traced request; None: what such a request causes is not traced."""
    shelf: InitVar[SlabShelf | None] = None
    """Where idle slabs of receive buffers are kept; None: one that nobody shares."""
    on_disconnect: Callable[[Identity], None] | None = field(default=None, init=False)
    """Called with what the peer said of itself when a connection that served has ended;
    must not raise.
    """
    ended_clients: dict[str, None] = field(default_factory=dict, init=False)
    """Clients whose processes are gone: nothing of them is served any more."""
    refusals: RefusalLog = field(default_factory=RefusalLog, init=False)
    frame_limits: FrameLimits = field(init=False)
    pool: BufferPool = field(init=False)
    """Of receive buffers."""
    lent_bytes: int = field(default=0, init=False)
    """Of payloads that were read where their callers have them."""
    lent_replies: LentTotals = field(default_factory=LentTotals, init=False)
    _bindings: dict[tuple[int, int], Binding] = field(default_factory=dict, init=False)

    def __post_init__(self, shelf: SlabShelf | None) -> None:
        limits = self.limits
        self.frame_limits = FrameLimits(limits.message_bytes_max, limits.payload_bytes_max)
        self.pool = BufferPool(max(POOL_BYTES_MAX, limits.payload_bytes_max), shelf)

    @property
    def bindings(self) -> Mapping[tuple[int, int], Binding]:
        """Every bound method by (service number, method number)."""
        return self._bindings
