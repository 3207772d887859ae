"""The page of a manager, and what it is told."""

import json
import re

import pytest

from fs.app.monitoring.status_page import (
    AGE_S_MAX,
    FORMAT,
    PAGE_PATH,
    Taken,
    documents,
    status_document,
)
from fs.app.process.page_rule import Asked, PageRule
from fs.schema.config import ProcessSection
from fs.schema.proto import mgmtd_pb2
from fs.schema.routing import NodeState, Role
from tests.admin.test_doctor import MOVES, S, chain, node, routing


def taken(info, *, moves=None, is_primary=True):
    return Taken(info, moves or mgmtd_pb2.ListMovesRsp(), 1, is_primary, "1.0", 10**18)


def test_the_document_tells_nodes_chains_findings_and_moves():
    info = routing(
        nodes=[node(13, Role.STORAGE, state=NodeState.FAILED)],
        chains=[chain(2, S.LASTSRV, S.WAITING, S.OFFLINE)],
    )
    told = json.loads(json.dumps(status_document(taken(info, moves=MOVES))))
    assert (told["format"], told["is_primary"], told["cluster"]["primary"]) == (FORMAT, True, 1)
    assert told["findings"][0]["kind"] == "chain-unavailable"
    assert {"node-failed"} <= {one["kind"] for one in told["findings"]}
    assert {n["node_id"]: n["state"] for n in told["nodes"]}[13] == "failed"
    assert {c["chain_id"]: c["serving"] for c in told["chains"]}[2] == 0
    assert len(told["moves"]) == len(MOVES.moves) and len(told["drains"]) == len(MOVES.drains)


def test_a_manager_that_stands_by_does_not_say_who_acts():
    told = status_document(taken(routing(), is_primary=False))
    assert (told["is_primary"], told["cluster"]["primary"], told["moves"]) == (False, 0, [])


def test_the_page_needs_nothing_from_elsewhere_and_puts_in_no_markup():
    page = PAGE_PATH.read_text()
    assert not re.findall(
        r"https?://|//cdn|@import|src=|innerHTML|insertAdjacentHTML|document\.write", page
    )
    headers, body = documents(lambda: taken(routing()), float)["/"]()()
    assert body.decode() == page
    assert "default-src 'none'" in dict(headers)["Content-Security-Policy"]
    headers, body = documents(lambda: taken(routing()), float)["/status.json"]()()
    assert json.loads(body)["format"] == FORMAT


def test_the_page_reads_only_what_is_told():
    """Names after `status.`, `facts.` and of rows that the script uses are keys of the document."""
    page = PAGE_PATH.read_text()
    told = status_document(taken(routing(), moves=MOVES))
    keys = {
        "status": set(told),
        "facts": set(told["cluster"]),
        "node": set(told["nodes"][0]),
        "chain": set(told["chains"][0]),
        "move": set(told["moves"][0]),
    }
    for owner, known in keys.items():
        assert set(re.findall(rf"\b{owner}\.([a-z_]+)", page)) <= known | {"length", "json"}, owner


def test_it_is_made_at_most_once_a_second():
    now_s, taken_count = [5.0], []

    def take():
        taken_count.append(1)
        return taken(routing())

    status = documents(take, lambda: now_s[0])["/status.json"]
    first, second = status(), status()
    assert first()[1] is second()[1] and len(taken_count) == 1
    now_s[0] += AGE_S_MAX
    assert status()()[1] is not first()[1] and len(taken_count) == 2


RULES = [
    ("off", "127.0.0.1", "127.0.0.1", "localhost:9701", "is off"),
    ("local", "127.0.0.1", "127.0.0.1", "localhost:9701", ""),
    ("local", "::ffff:127.0.0.1", "::ffff:127.0.0.1", "[::1]:9701", ""),
    ("local", "10.0.0.1", "10.0.0.1", "10.0.0.1:9701", ""),
    ("local", "10.0.0.2", "10.0.0.1", "10.0.0.1:9701", "own machine only"),
    ("open", "10.0.0.2", "10.0.0.1", "10.0.0.1:9701", ""),
    ("open", "10.0.0.2", "10.0.0.1", "Mgmtd-0.example.:9701", ""),
    ("open", "10.0.0.2", "10.0.0.1", "status.example", ""),
    ("open", "10.0.0.2", "10.0.0.1", "mgmtd-0", ""),
    ("open", "10.0.0.2", "10.0.0.1", "evil.example:9701", "process.status_page_names"),
    ("local", "127.0.0.1", "127.0.0.1", "evil.example:9701", "process.status_page_names"),
    ("local", "127.0.0.1", "127.0.0.1", "127.0.0.1.evil.example", "process.status_page_names"),
    ("local", "127.0.0.1", "127.0.0.1", "", ""),
]


@pytest.mark.parametrize(("shown", "peer", "own", "host", "why"), RULES)
def test_it_is_shown_to_whom_it_is_meant_for_under_names_of_ours(shown, peer, own, host, why):
    section = ProcessSection(
        listen="tcp:mgmtd-0.example:7001", status_page=shown, status_page_names=["status.example"]
    )
    refusal = PageRule.of(section).refusal(Asked(peer, own, host))
    assert why in refusal and bool(why) == bool(refusal)
