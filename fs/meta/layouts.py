"""Gives new files their layout from the newest routing info.  No waiting here."""

import random
import struct
from typing import Final

from ..node.api import RoutingView
from ..schema.proto.common_pb2 import LayoutPb
from ..schema.routing import ChainTable
from ..schema.status import FsError, Status
from . import chain_pick

_SEEDS: Final = struct.Struct("<128Q")


class RoutedLayouts:
    """The LayoutSource of a running service; first chains go round per instance."""

    def __init__(self, routing: RoutingView, source: random.Random) -> None:
        self._routing = routing
        self._random = source
        # A random start: several services do not all begin with the same chain.
        self._turn = source.getrandbits(16)
        self._info = routing.info
        self._tables: dict[tuple[int, int], ChainTable] = {}
        """Those of `_info` that have been asked for, by table and version;
        version 0: the newest.
        """
        self._seeds: list[int] = []
        """Drawn, and not given to any file yet."""

    def place(self, default: LayoutPb) -> LayoutPb:
        """Return a layout with table version, first chain and seed filled in.

        Raises:
            FsError: CHAIN_TABLE_UNKNOWN when the table is not known (yet) or has no chains.
        """
        table = self._table(default.table_id, default.table_version)
        if not self._seeds:
            # Together: the system is asked for them with one call.
            self._seeds.extend(_SEEDS.unpack(self._random.randbytes(_SEEDS.size)))
        self._turn += 1
        return chain_pick.place(default, table, self._turn, self._seeds.pop())

    def _table(self, table_id: int, table_version: int) -> ChainTable:
        info = self._routing.info
        if info is not self._info:
            self._info, self._tables = info, {}
        found = self._tables.get((table_id, table_version))
        if found is None:
            found = info.chain_table(table_id, table_version)
            if not found.chain_ids:
                raise FsError(Status.CHAIN_TABLE_UNKNOWN, f"chain table {table_id} is empty")
            self._tables[table_id, table_version] = found
        return found
