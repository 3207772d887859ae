"""The status of a cluster as a web page, for people without a command line:
`/` and `/status.json` of a manager's metrics address.

Any manager tells what it knows: the acting one also of moves.  The page is one text without
anything from elsewhere, so it works without a network beyond this one; it asks for the JSON every
few seconds.  Nothing can be changed through it.

Asks nobody who he is, as the metrics beside it do not; whom it is shown says
process/page_rule.py.  However many look, and however often, it is made once in AGE_S_MAX.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ...admin.doctor import Snapshot, diagnose
from ...admin.facts import chain_rows, cluster_facts, drain_rows, node_rows, target_rows
from ...schema.proto import mgmtd_pb2
from ...schema.routing import RoutingInfo
from ..process.exposition import Content, Document
from .status_view import move_row

FORMAT: Final = 1
"""Of /status.json: grows when a key changes its meaning or goes."""

AGE_S_MAX: Final = 1.0
"""Of what is told: making it takes a while in a large cluster, and many may look."""

PAGE_PATH: Final = Path(__file__).with_name("status.html")


@dataclass(frozen=True, slots=True)
class Taken:
    """What is known at one moment; taken on the event loop, made a document of elsewhere."""

    info: RoutingInfo
    moves: mgmtd_pb2.ListMovesRsp
    node_id: int
    is_primary: bool
    release: str
    wall_ns: int


def status_document(taken: Taken) -> dict[str, Any]:
    """Return /status.json."""
    info = taken.info
    primary = taken.node_id if taken.is_primary else 0
    found = diagnose(Snapshot(info, taken.moves, {}, {}, wall_ns=taken.wall_ns))
    return {
        "format": FORMAT,
        "wall_ns": taken.wall_ns,
        "node_id": taken.node_id,
        "is_primary": taken.is_primary,
        "release": taken.release,
        "cluster": cluster_facts(info, primary=primary),
        "findings": [asdict(one) | {"severity": one.severity.name.lower()} for one in found],
        "nodes": node_rows(info),
        "chains": chain_rows(info),
        "syncing": [row for row in target_rows(info) if row["resync"] is not None],
        "moves": [move_row(one) for one in taken.moves.moves],
        "drains": drain_rows(taken.moves),
        "is_rebalancing": taken.moves.is_rebalancing,
    }


HTML_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    ("X-Content-Type-Options", "nosniff"),
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src "
            "data:; connect-src 'self'; frame-ancestors 'none'"
        ),
    ),
)
JSON_HEADERS: Final = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))


class _Made:
    """What was known at one moment, made a document of by the first thread that wants it."""

    def __init__(self, taken: Taken, at_s: float) -> None:
        self.at_s = at_s
        self._taken = taken
        self._lock = threading.Lock()
        self._content: Content | None = None

    def content(self) -> Content:
        with self._lock:
            if self._content is None:
                self._content = (JSON_HEADERS, json.dumps(status_document(self._taken)).encode())
            return self._content


def documents(take: Callable[[], Taken], now_s: Callable[[], float]) -> dict[str, Document]:
    """Return what a manager shows besides its metrics, by path.

    Args:
        take: called on the event loop, at most once in AGE_S_MAX.
        now_s: a clock that never goes back.
    """
    newest: list[_Made] = []

    def page() -> Content:
        return HTML_HEADERS, PAGE_PATH.read_bytes()

    def status() -> Callable[[], Content]:
        if not newest or now_s() - newest[0].at_s >= AGE_S_MAX:
            newest[:] = [_Made(take(), now_s())]
        return newest[0].content

    return {"/": lambda: page, "/status.json": status}
