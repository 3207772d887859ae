"""Spans of several processes, put together."""

import json

from fs.admin.traces import join
from fs.app.admin import traces
from fs.schema.routing import NodeState, Role, RoutingInfo

from .test_doctor import node


def span(trace_id, span_id, parent_id="", began_ms=0, took_ms=1, *, name="x"):
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": parent_id,
        "name": name,
        "kind": "internal",
        "error": "",
        "began_ns": began_ms * 10**6,
        "ended_ns": (began_ms + took_ms) * 10**6,
        "attributes": {},
    }


def test_spans_stand_below_what_caused_them_in_whichever_process():
    told = {
        "storage 11": [span("t", "3", "2", 12), span("u", "9", "8", 5, name="orphan")],
        "mount": [
            span("t", "1", "", 10, 7, name="write"),
            span("t", "2", "1", 11),
            span("t", "4", "1", 15),
        ],
    }
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


async def test_a_kv_process_is_found_by_the_settings_of_those_that_use_it(monkeypatch):
    """It is no node of the cluster, and is to be asked for spans all the same."""
    kv = {"engine": "remote", "address": "unix:/kv.sock"}
    configs = {1: {"kv": kv}, 2: {"kv": kv}, 3: {"kv": {"engine": "rocksdb", "address": ""}}}

    async def configs_of(_channels, info):
        assert set(info.nodes) == {1, 2, 3}, (
            "storage nodes do not use it, failed ones do not answer"
        )
        return {n: json.dumps(configs[n]) for n in info.nodes}, {}

    monkeypatch.setattr(traces, "configs_of", configs_of)
    nodes = [
        node(1, Role.MGMTD), node(2, Role.META), node(3, Role.META),
        node(4, Role.META, state=NodeState.FAILED), node(11, Role.STORAGE),
    ]  # fmt: skip
    info = RoutingInfo(nodes={one.node_id: one for one in nodes})
    assert await traces.store_addresses(None, info) == ["unix:/kv.sock"]
