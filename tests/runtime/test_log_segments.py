"""Which stretch of a log is missing between others:
seen whichever one it is, and never where all are there.
"""

from hypothesis import given
from hypothesis import strategies as st

from fs.runtime.log_mark import Mark, what_lacks
from fs.runtime.log_segments import WINDOW, Held, LogSegments, held

PREFIX = b"p/"


class Store:
    """Rows by segment, as if each were a log or a table of its own."""

    def __init__(self) -> None:
        self.parts: list[dict[bytes, bytes | None]] = []
        self.change = 0
        self.reopen()

    def rows(self, without: int | None = None) -> list[tuple[bytes, bytes]]:
        merged: dict[bytes, bytes | None] = {}
        for index, part in enumerate(self.parts):
            if index != without:
                merged.update(part)
        return [(key, value) for key, value in sorted(merged.items()) if value is not None]

    def reopen(self) -> None:
        self.segments = LogSegments(PREFIX, self.rows(), 3)

    def write(self) -> bool:
        rows = self.segments.opening_rows(lambda: self.change)
        if rows:
            self.parts.append({})
        self.parts[-1].update(rows)
        self.change += 1
        return self.segments.note(1)


@st.composite
def stores(draw) -> Store:
    store = Store()
    for step in draw(st.lists(st.sampled_from("wwwwro"), max_size=80)):
        if (step == "w" and store.write()) or step == "r":
            store.segments.end()
        elif step == "o":
            store.reopen()
    return store


@given(stores(), st.data())
def test_a_missing_segment_is_seen_whichever_it_is(store, data) -> None:
    count = len(store.parts)
    assert held(PREFIX, store.rows(), store.change) == Held(store.change, count)
    assert not what_lacks(held(PREFIX, store.rows(), store.change), Mark(store.change, count))
    if count:
        lost = data.draw(st.integers(0, count - 1))
        found = held(PREFIX, store.rows(without=lost), store.change)
        assert what_lacks(found, Mark(store.change, count))
        assert (found.gap is None) == (lost == count - 1)


def test_rows_are_forgotten_after_a_window() -> None:
    store = Store()
    for _ in range(3 * WINDOW):
        store.write()
        store.segments.end()
        assert len(store.rows()) <= WINDOW
        store.reopen()
    assert held(PREFIX, store.rows(), store.change) == Held(store.change, 3 * WINDOW)
    for lost in range(2 * WINDOW, 3 * WINDOW):
        gap = held(PREFIX, store.rows(without=lost), store.change).gap
        assert (gap is None) == (lost == 3 * WINDOW - 1), lost


def test_a_gap_that_was_accepted_is_forgotten() -> None:
    store = Store()
    for _ in range(5):
        store.write()
        store.segments.end()
    store.parts[2] = {}
    assert held(PREFIX, store.rows(), 5).gap == (1, 4)
    store.reopen()
    assert held(PREFIX, store.rows(), 5).gap == (1, 4), "nothing was written yet"
    store.write()
    assert held(PREFIX, store.rows(), 6) == Held(6, 6)
    assert len(store.rows()) == 1


def test_a_store_without_rows_lacks_nothing() -> None:
    assert held(PREFIX, [], 7) == Held(7, 0)
    assert what_lacks(Held(7, 0), Mark(7)) == ""
    assert what_lacks(Held(6, 0), Mark(7)) == "synced changes 7 to 7 are missing"
    assert "segment 2" in what_lacks(Held(9, 1), Mark(7, 2))
