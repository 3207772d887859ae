"""Spans of several processes, put together."""

from fs.admin.traces import join


def span(trace_id, span_id, parent_id="", began_ms=0, took_ms=1, *, name="x"):
    return {
        "trace_id": trace_id, "span_id": span_id, "parent_id": parent_id, "name": name, "kind": "internal", "error": "",
        "began_ns": began_ms * 10**6, "ended_ns": (began_ms + took_ms) * 10**6, "attributes": {},
    }  # fmt: skip


def test_spans_stand_below_what_caused_them_in_whichever_process():
    told = {
        "storage 11": [span("t", "3", "2", 12), span("u", "9", "8", 5, name="orphan")],
        "mount": [span("t", "1", "", 10, 7, name="write"), span("t", "2", "1", 11), span("t", "4", "1", 15)],
    }  # fmt: skip
    first, second = join(told)
    assert (first.trace_id, first.name) == ("u", "orphan")  # its cause is not told
    assert (second.trace_id, second.name, second.took_s) == ("t", "write", 0.007)
    rows = list(second.rows())
    assert [(r["span_id"], r["depth"], r["where"]) for r in rows] == [
        ("1", 0, "mount"),
        ("2", 1, "mount"),
        ("3", 2, "storage 11"),
        ("4", 1, "mount"),
    ]
    assert [round(r["at_s"] * 1e3) for r in rows] == [0, 1, 2, 5]


def test_a_trace_with_several_tops_begins_with_the_one_that_nobody_caused():
    (found,) = join({"a": [span("t", "5", "4", 1), span("t", "1", "", 2, name="read")]})
    assert found.name == "read"
    assert found.began_ns == 10**6
    assert join({}) == []
