"""The page of a manager, and what it is told."""

import json
import re

from fs.app.status_page import FORMAT, PAGE_PATH, Taken, documents, status_document
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
    headers, body = documents(lambda: taken(routing()))["/"]()()
    assert body.decode() == page
    assert "default-src 'none'" in dict(headers)["Content-Security-Policy"]
    headers, body = documents(lambda: taken(routing()))["/status.json"]()()
    assert json.loads(body)["format"] == FORMAT


def test_the_page_reads_only_what_is_told():
    """Names after `status.`, `facts.` and of rows that the script uses are keys of the document."""
    page = PAGE_PATH.read_text()
    told = status_document(taken(routing(), moves=MOVES))
    keys = {"status": set(told), "facts": set(told["cluster"]), "node": set(told["nodes"][0]), "chain": set(told["chains"][0]), "move": set(told["moves"][0])}  # fmt: skip
    for owner, known in keys.items():
        assert set(re.findall(rf"\b{owner}\.([a-z_]+)", page)) <= known | {"length", "json"}, owner
