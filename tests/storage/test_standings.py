"""Who serves is on the disks before anything is acknowledged
that somebody who has gone does not have.
"""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

from dataclasses import replace

import pytest
import trio

from fs.mgmtd.chain_state import next_chain
from fs.mgmtd.restored import guarded, settled
from fs.schema.ids import TargetId
from fs.schema.routing import LocalState, PublicState
from fs.schema.status import FsError, Status
from fs.storage import standings
from fs.storage.update_notes import read_note

from .cluster import content, open_caller, open_cluster


def remembered(cluster, node_id):
    node = cluster.nodes[node_id]
    found = standings.load_standing(node.engine, node.target.target_id)
    assert found == node.target.standing
    return found


async def test_every_serving_target_remembers_its_chain(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        await cluster.nodes[3].kill()
        await cluster.wait_judged(3)
        await client.write(0, b"two")
        for node_id in (1, 2):
            assert remembered(cluster, node_id) == cluster.chain.standing
        await cluster.start_node(3)
        assert set(remembered(cluster, 3).keepers) == {101, 102, 103}
        assert remembered(cluster, 3).chain_version < cluster.chain.chain_version
        await cluster.wait_all_serving()
        await trio.sleep(1)
        assert {remembered(cluster, n) for n in (1, 2, 3)} == {cluster.chain.standing}


async def test_a_note_waits_for_no_data(mock_clock, monkeypatch):
    note_standing, steps = standings.note_standing, []

    def note(*arguments):
        disk = cluster.nodes[1].disk
        disk.on_step = steps.append
        note_standing(*arguments)
        disk.on_step = None

    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"not flushed")
        monkeypatch.setattr(standings, "note_standing", note)
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        await client.write(0, b"x")
        assert remembered(cluster, 1).keepers == (101,)
    assert "meta_sync" in steps
    assert "flush" not in steps


async def test_nothing_is_acknowledged_before_it_is_noted_who_has_gone(mock_clock, monkeypatch):
    is_full = False
    note_standing = standings.note_standing

    def note(*arguments):
        if is_full:
            raise FsError(Status.NO_SPACE, "full")
        note_standing(*arguments)

    monkeypatch.setattr(standings, "note_standing", note)
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        is_full = True
        await cluster.nodes[3].kill()
        await cluster.wait_judged(3)
        done = trio.Event()

        async def write():
            await client.write(0, b"two")
            done.set()

        cluster.nursery.start_soon(write)
        await trio.sleep(2)
        assert not done.is_set()
        assert 103 in remembered(cluster, 1).keepers
        is_full = False
        with trio.fail_after(60):
            await done.wait()
        assert content(cluster, 1)[2] == content(cluster, 2)[2] == b"two"
        assert remembered(cluster, 1) == remembered(cluster, 2) == cluster.chain.standing


async def test_nobody_is_brought_up_to_date_unnoted(mock_clock, monkeypatch):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        await client.write(0, b"two")
        joining = []
        note_standing = standings.note_standing

        def note(engine, target_id, standing):
            joining.append(standing.joining)
            note_standing(engine, target_id, standing)

        monkeypatch.setattr(standings, "note_standing", note)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        assert joining[0] == 102
        assert content(cluster, 2)[2] == b"two"


async def test_the_newest_of_a_restored_chain_still_knows_what_clients_did(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        cluster.is_frozen = True
        for node_id in (1, 2, 3):
            await cluster.nodes[node_id].kill()
        cluster.publish(guarded(cluster.chain, 10**18))
        for node_id in (1, 2, 3):
            await cluster.start_node(node_id)
        await trio.sleep(2)
        assert {s.name for s in cluster.local_states.values()} == {"ONLINE"}
        assert all(updates_on(cluster, n) for n in (1, 2, 3))
        heard = {n.target.target_id: n.target.standing for n in cluster.nodes.values()}
        after = settled(cluster.chain, heard)
        cluster.publish(after)
        await trio.sleep(2)
        last = after.keepers[0] - 100
        assert [bool(updates_on(cluster, n)) for n in (1, 2, 3)] == [n == last for n in (1, 2, 3)]
        cluster.is_frozen = False
        await cluster.wait_all_serving()
        assert all(len(n.target.channels) == 1 for n in cluster.nodes.values())
        assert remembered(cluster, last).generation == 10**18
        await client.write(0, b"two")
        assert {content(cluster, n)[2] for n in (1, 2, 3)} == {b"two"}


@pytest.mark.parametrize("first", [1, 2])
async def test_whoever_may_stand_in_keeps_what_it_knows_until_somebody_serves(mock_clock, first):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        cluster.is_frozen = True
        for node_id in (1, 2, 3):
            await cluster.nodes[node_id].kill()
        down = next_chain(cluster.chain, {})
        assert len(down.stand_ins) == 2
        cluster.publish(down)
        for node_id in (1, 2, 3):
            await cluster.start_node(node_id)
        await trio.sleep(2)
        assert {s.name for s in cluster.local_states.values()} == {"ONLINE"}
        assert all(updates_on(cluster, n) for n in (1, 2, 3))
        local = dict.fromkeys(down.candidates, LocalState.OFFLINE)
        after = next_chain(down, local | {TargetId(100 + first): LocalState.ONLINE})
        assert after.serving == (100 + first,)
        cluster.publish(after)
        await trio.sleep(2)
        assert [bool(updates_on(cluster, n)) for n in (1, 2, 3)] == [n == first for n in (1, 2, 3)]
        cluster.is_frozen = False
        await cluster.wait_all_serving()
        assert all(len(n.target.channels) == 1 for n in cluster.nodes.values())
        await client.write(0, b"two")
        assert {content(cluster, n)[2] for n in (1, 2, 3)} == {b"two"}


def updates_on(cluster, node_id):
    node = cluster.nodes[node_id]
    return [n for n in map(read_note, node.engine.notes(node.target.target_id)) if n]


async def test_a_disk_of_another_store_does_not_serve_until_its_own_is_back(mock_clock):
    """Chains were made anew while their nodes had leases:
    nobody is asked before these tell whether they serve.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        cluster.publish(replace(cluster.chain, chain_version=9, birth_ns=5))
        await trio.sleep(2)
        await client.write(0, b"one")
        assert remembered(cluster, 1).birth_ns == 5
        own = cluster.chain
        cluster.is_frozen = True
        for node_id in (1, 2):
            await cluster.nodes[node_id].kill()
        cluster.publish(guarded(own, 10**18))
        for node_id in (1, 2):
            await cluster.start_node(node_id)
        await trio.sleep(2)
        assert {s.name for s in cluster.local_states.values()} == {"ONLINE"}
        version = cluster.chain.chain_version
        cluster.publish(replace(own, chain_version=version + 1, birth_ns=6))
        await trio.sleep(2)
        assert {s.name for s in cluster.local_states.values()} == {"ONLINE"}
        assert remembered(cluster, 1).birth_ns == 5
        cluster.publish(replace(own, chain_version=version + 2))
        await trio.sleep(2)
        assert {s.name for s in cluster.local_states.values()} == {"UPTODATE"}
        await client.write(0, b"two")


async def test_a_disk_keeps_what_clients_did_while_another_store_is_there(mock_clock):
    """So that writes which clients repeat to it, when its own is back, are done once."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        cluster.publish(replace(cluster.chain, chain_version=9, birth_ns=5))
        await trio.sleep(2)
        await client.write(0, b"one")
        own = cluster.chain
        cluster.is_frozen = True
        for node_id in (1, 2):
            await cluster.nodes[node_id].kill()
        away = tuple(replace(m, public_state=PublicState.OFFLINE) for m in own.targets)
        cluster.publish(replace(own, targets=away, chain_version=10, birth_ns=6))
        for node_id in (1, 2):
            await cluster.start_node(node_id)
        await trio.sleep(2)
        assert {s.name for s in cluster.local_states.values()} == {"ONLINE"}
        assert all(updates_on(cluster, n) for n in (1, 2))
        last = replace(away[0], public_state=PublicState.LASTSRV)
        cluster.publish(replace(own, targets=(last, away[1]), chain_version=11))
        await trio.sleep(2)
        assert [bool(updates_on(cluster, n)) for n in (1, 2)] == [True, False]
        cluster.is_frozen = False
        await cluster.wait_all_serving()
        assert all(len(n.target.channels) == 1 for n in cluster.nodes.values())
        await client.write(0, b"two")
        assert {content(cluster, n)[2] for n in (1, 2)} == {b"two"}
