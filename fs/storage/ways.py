"""Whether the ways from here to other nodes are free, tried once for all that want to know.

What is passed on to a node that does not answer makes us try the way to it (relay.py), and hundreds
of requests may wait for the same node.  If each of them tried, a slow node would be connected to
hundreds of times within seconds.  A stopped one accepts none of these connections, and its kernel
keeps only so many for it: then it would look cut off.

Invariants:
    - One connection at a time is tried to a process, and none for HOLDS_S after that one.
    - What cannot be found out, for want of a descriptor or memory here, counts as free.
    - Whoever waits for a try of a request that is given up tries by himself.

Concurrency: trio; any number may ask at once.
"""

import logging
from typing import Final

import trio

from ..rpc.free_way import is_way_free
from ..runtime.ports import Network
from ..schema.ids import NodeId
from ..schema.lacks import require_passing
from ..schema.routing import Node

log = logging.getLogger(__name__)

TRY_S: Final = 1.5
HOLDS_S: Final = 1.0
"""For so long what was found out is told to others as well."""


class _Try:
    """One connection that is made to find out whether it can be."""

    __slots__ = ("done", "ended_s", "is_free")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.ended_s = 0.0
        self.is_free: bool | None = None
        """None: nobody has found it out."""

    def holds(self) -> bool:
        """Tell whether nobody else needs to try now."""
        if not self.done.is_set():
            return True
        return self.is_free is not None and trio.current_time() - self.ended_s < HOLDS_S


class Ways:
    """See module head."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._tries: dict[tuple[NodeId, str], _Try] = {}
        """The last one of each process, by node and incarnation."""

    async def is_free(self, node: Node) -> bool:
        """Tell whether a connection to a node can be made, now or a moment ago."""
        process = node.node_id, node.incarnation
        while True:
            found = self._tries.get(process)
            if found is None or not found.holds():
                return await self._try(process, node)
            await found.done.wait()
            if found.is_free is not None:
                return found.is_free

    async def _try(self, process: tuple[NodeId, str], node: Node) -> bool:
        made = _Try()
        others = {key: one for key, one in self._tries.items() if one.holds()}
        self._tries = {**others, process: made}
        try:
            made.is_free = await self._find_out(node)
        finally:  # also for who is given up, and has found nothing out: others wait for it
            made.ended_s = trio.current_time()
            made.done.set()
        return made.is_free

    async def _find_out(self, node: Node) -> bool:
        try:
            return await is_way_free(self._network, node.address, TRY_S)
        except Exception as error:  # noqa: BLE001 - raised again if it is a bug
            require_passing(error)
            log.info("whether node %d is reached cannot be tried: %s", node.node_id, error)
            return True
