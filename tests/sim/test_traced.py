"""One write, followed through client, metadata service, head, middle and tail."""

import pytest

from fs.runtime import tracing
from fs.runtime.tracing import SpanKind

from .traced import CLIENT, Told, traced_write

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def told() -> list[Told]:
    return traced_write()


def children(told, span):
    return [t for t in told if t.span.parent_id == span.span_id]


def only(told, name, parent):
    (found,) = [t for t in children(told, parent) if t.span.name == name]
    return found


def test_a_write_is_one_tree(told):
    assert tracing.live.count == 0
    roots = [t for t in told if not t.span.parent_id]
    assert [(t.process, t.span.name) for t in roots] == [(CLIENT, "EmberFs.write_file")]
    ids = {t.span.span_id for t in told}
    assert len(ids) == len(told)
    assert {t.span.trace_id for t in told} == {roots[0].span.trace_id}
    assert all(t.span.parent_id in ids for t in told if t is not roots[0])
    assert {t.process.partition("-")[0] for t in told} == {CLIENT, "meta", "storage"}


def test_the_name_is_made_and_the_length_reported_by_the_metadata_service(told):
    (root,) = [t.span for t in told if not t.span.parent_id]
    for method in ("Meta.Create", "Meta.Close"):
        asked = only(told, method, root)
        assert (asked.process, asked.span.kind) == (CLIENT, SpanKind.CLIENT)
        served = only(told, method, asked.span)
        assert (served.process, served.span.kind) == ("meta-1", SpanKind.SERVER)
        assert only(told, "kv commit", served.span).process == "meta-1"


def test_the_bytes_pass_down_the_chain(told):
    (root,) = [t.span for t in told if not t.span.parent_id]
    asked = only(told, "Storage.Write", root)
    nodes = []
    for position in ("head", "middle", "tail"):
        method = "Storage.Write" if position == "head" else "Storage.Update"
        served = only(told, method, asked.span)
        nodes.append(served.process)
        assert served.span.attributes["position"] == position
        assert served.span.attributes["chain"] == 1
        written = only(told, "disk access", served.span)
        assert written.process == served.process and written.span.attributes["bytes"] == 5
        if position == "tail":
            names = [t.span.name for t in children(told, served.span)]
            assert names == ["disk access", "disk flush"]  # the update is the last of a close
        else:
            asked = only(told, "Storage.Update", served.span)
            assert asked.process == served.process
    assert sorted(nodes) == ["storage-1", "storage-2", "storage-3"]


def test_closing_flushes_every_disk(told):
    flushes = [t for t in told if t.span.name == "disk flush"]
    assert sorted(t.process for t in flushes) == ["storage-1", "storage-2", "storage-3"]


def test_spans_lie_within_their_time(told):
    by_id = {t.span.span_id: t.span for t in told}
    for t in told:
        assert t.span.ended_ns >= t.span.began_ns
        assert not t.span.error
        parent = by_id.get(t.span.parent_id)
        if parent is not None and t.span.kind is not SpanKind.SERVER:  # of the same clock
            assert parent.began_ns <= t.span.began_ns and t.span.ended_ns <= parent.ended_ns
