"""After a restore of any earlier state nobody serves, or is waited for,
who lacks what was acknowledged meanwhile.
"""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from fs.admin.rebase import Rebase, guarded
from fs.kv.buffer import KEY_END
from fs.kv.memory import MemoryEngine
from fs.mgmtd import restored
from fs.mgmtd.chain_changes import without_member
from fs.mgmtd.chain_state import is_legal, next_chain
from fs.runtime.simulated import SimulatedClock
from fs.schema import services
from fs.schema.ids import ChainId, TargetId
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import (
    RESTORED_LOSSES,
    Chain,
    ChainTarget,
    LocalState,
    PublicState,
    chain_from_pb,
    chain_to_pb,
)
from fs.schema.standing import Standing, standing_to_pb
from fs.schema.status import FsError, Status
from fs.storage.standings import is_noted
from tests.mgmtd.harness import cluster_of

pytestmark = pytest.mark.thorough

A, B, C, D = (TargetId(n) for n in (1, 2, 3, 4))
CHAIN = ChainId(7)
NOW_NS = 10**18


def chain_of(states, version=5, **more):
    members = tuple(ChainTarget(t, state) for t, state in states.items())
    return Chain(CHAIN, version, members, tuple(states), **more)


def noted(version, *keepers, generation=0, chain_id=CHAIN):
    return Standing(chain_id, generation, version, keepers)


SERVING = dict.fromkeys((A, B, C), PublicState.SERVING)
AFTER = guarded(chain_of(SERVING), NOW_NS)


def last_of(chain):
    (last,) = chain.keepers
    assert chain.state_of(last) is PublicState.LASTSRV
    assert is_legal(chain)
    assert chain.restored is None
    return last


def test_nobody_serves_a_restored_chain_until_it_is_settled():
    assert not AFTER.keepers
    assert is_legal(AFTER)
    assert AFTER.restored == noted(5, A, B, C)
    assert AFTER.generation == NOW_NS
    assert chain_from_pb(chain_to_pb(AFTER)) == AFTER
    assert next_chain(AFTER, {}) is AFTER
    with pytest.raises(FsError) as e:
        without_member(AFTER, A)
    assert e.value.status is Status.UNSAFE_CHANGE


def test_a_backup_of_an_unsettled_chain_says_what_the_first_one_said():
    again = guarded(AFTER, NOW_NS - 1)
    assert again.restored == AFTER.restored
    assert again.generation > AFTER.generation


@pytest.mark.parametrize(
    ("heard", "last"),
    [
        ({}, None),
        ({A: None, B: None}, None),  # the third may have gone on without them
        ({A: None, B: None, C: None}, A),  # of a release that noted nothing
        ({A: noted(5, A, B, C), B: noted(5, A, B, C)}, None),
        ({A: noted(5, A, B, C), B: noted(6, B, C)}, None),
        ({A: noted(5, A, B, C), B: noted(6, B, C), C: noted(6, B, C)}, B),
        ({B: noted(9, B)}, B),  # nobody else has to be waited for
        ({B: noted(9, B), C: noted(7, B, C)}, B),
        ({C: noted(9, C), A: noted(8, A, C), B: noted(5, A, B, C)}, C),
        ({B: noted(9, B, chain_id=ChainId(8))}, None),  # it has been in another chain since
        ({B: noted(9, B), C: noted(3, C, generation=1)}, C),  # after a restore in between
        ({A: noted(9, A, D), B: None, C: None}, None),  # D is not known any more, but may exist
        ({A: noted(9, A, D), D: noted(9, A, D)}, A),
        ({D: noted(9, D), A: None, B: None, C: None}, None),  # the data is in no member
        ({A: None, B: noted(5, A, B, C), C: noted(5, A, B, C)}, None),  # the disk of A is another
        ({A: None, B: noted(5, A, B, C), C: noted(6, B, C)}, C),  # nobody needs to hear A
    ],
)
def test_who_is_believed(heard, last):
    after = restored.settled(AFTER, heard)
    if last is None:
        assert after is AFTER
    else:
        assert last_of(after) == last
        assert after.chain_version > max(AFTER.chain_version, 9)


def test_a_chain_goes_on_beyond_every_note_of_itself():
    """Also after a manager of a release without generations,
    and after a restore by a clock that was behind.
    """
    chain = chain_of(SERVING, version=70, generation=0)
    assert restored.beyond(chain, {A: None, B: noted(70, A, B, C)}) is chain
    assert restored.beyond(chain, {B: noted(99, B, generation=9, chain_id=ChainId(8))}) is chain
    after = restored.beyond(chain, {A: noted(70, A), B: noted(99, B, C, generation=9)})
    assert (after.generation, after.chain_version) == (9, 100)
    assert after.targets == chain.targets
    late = noted(99, B, generation=NOW_NS + 5)
    settled = restored.settled(AFTER, {B: late})
    assert settled.generation == NOW_NS + 5


async def test_a_note_from_a_later_generation_raises_its_chain(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        first = cluster.storage_ids[0]
        before = (await cluster.info()).chain(1)
        target_id = TargetId(first * 100 + 1)
        newer = replace(before.standing, generation=NOW_NS, chain_version=500)
        cluster.standings[target_id] = newer
        after = (await cluster.until(lambda i: i.chain(1).generation == NOW_NS)).chain(1)
        assert after.chain_version > 500
        assert after.serving == before.serving


def test_a_version_is_never_given_again_after_many_changes():
    late = noted(AFTER.chain_version + 100, A)
    assert restored.settled(AFTER, {A: late}).chain_version == late.chain_version + 1


def test_what_a_chain_waits_for_can_be_given_up():
    heard = {A: noted(5, A, B, C), B: noted(6, B, C)}
    assert restored.missing(AFTER, heard) == [C]
    with pytest.raises(FsError, match="does not wait for target 1, but for 3"):
        restored.given_up(AFTER, heard, A, None)
    with pytest.raises(FsError, match="no member"):
        restored.given_up(AFTER, {}, C, None)
    with pytest.raises(FsError, match="not heard of a member 4"):
        restored.given_up(AFTER, heard, C, D)
    after = restored.given_up(AFTER, heard, C, None)
    assert last_of(after) == B
    assert after.loss_count == AFTER.loss_count + 1
    assert last_of(restored.given_up(AFTER, heard, C, A)) == A


def test_what_only_a_stranger_has_can_be_given_up():
    heard = {A: noted(5, A, B, C), B: noted(6, A, B), C: None, D: noted(9, D)}
    assert restored.settled(AFTER, heard) is AFTER
    assert restored.missing(AFTER, heard) == [D]
    after = restored.given_up(AFTER, heard, D, None)
    assert last_of(after) == B
    assert after.loss_count == AFTER.loss_count + 1


def test_an_empty_disk_of_who_served_last_is_given_up_by_a_person():
    heard = {A: None, B: noted(5, A, B, C), C: noted(5, A, B, C)}
    assert restored.missing(AFTER, heard) == [A]
    after = restored.given_up(AFTER, heard, A, None)
    assert last_of(after) == B
    assert after.loss_count == AFTER.loss_count + 1


def test_a_note_of_another_chain_lets_nothing_pass():
    chain = chain_of(SERVING)
    place = SimpleNamespace(
        target=SimpleNamespace(standing=chain.standing),
        chain=chain,
        public_state=PublicState.SERVING,
    )
    assert is_noted(place)
    place.target.standing = noted(5, A, B, C, chain_id=ChainId(8))
    assert not is_noted(place)


async def restored_without_the_first(cluster):
    """A backup; changes without one of three; everybody dies, and the backup is restored."""
    await cluster.up()
    rows = await cluster.engine.transaction().get_range(b"", KEY_END)
    first, *others = cluster.storage_ids
    await cluster.storages[first].kill()
    await cluster.until(lambda i: cluster.state_of(i, first) is PublicState.OFFLINE)
    await trio.sleep(1)
    for process in [cluster.storages[n] for n in others] + [cluster.managers[1]]:
        await process.kill()
    cluster.engine = MemoryEngine(SimulatedClock())
    rebase, tr = Rebase(NOW_NS), cluster.engine.transaction()
    kept = [(key, new) for key, value in rows if (new := rebase.row(key, value)) is not None]
    for key, value in [*kept, *rebase.last_rows()]:
        tr.set(key, value)
    await tr.commit()
    await cluster.start_manager(1)
    return first, others


def serving(cluster, node_ids):
    wanted = {TargetId(n * 100 + 1) for n in node_ids}
    return lambda info: set(info.chain(1).serving) == wanted


@pytest.mark.slow
async def test_a_restored_manager_waits_for_those_who_can_know(autojump_clock):
    async with cluster_of() as cluster:
        first, (second, third) = await restored_without_the_first(cluster)
        await cluster.start_storage(first)
        await cluster.start_storage(second)
        await trio.sleep(60)
        info = await cluster.info()
        assert not info.chain(1).keepers
        assert info.chain(1).restored
        await cluster.start_storage(third)
        info = await cluster.until(lambda i: bool(i.chain(1).serving))
        assert first * 100 + 1 not in info.chain(1).serving
        await cluster.until(serving(cluster, cluster.storage_ids))


async def test_a_disk_that_cannot_be_opened_is_not_heard(autojump_clock):
    async with cluster_of() as cluster:
        first, (second, third) = await restored_without_the_first(cluster)
        await cluster.start_storage(first)
        broken = [cluster.storages[n] for n in (second, third)]
        whole = broken[0].disks
        for held in broken:
            held.disks = [replace(whole[0], is_failed=True)]
        for node_id in (second, third):
            await cluster.start_storage(node_id)
        await trio.sleep(60)
        info = await cluster.info()
        assert not info.chain(1).keepers
        for node_id in (second, third):
            await cluster.storages[node_id].kill()
            cluster.storages[node_id].disks = whole
            await cluster.start_storage(node_id)
        info = await cluster.until(lambda i: bool(i.chain(1).serving))
        assert first * 100 + 1 not in info.chain(1).serving


async def test_a_copy_of_a_disk_in_another_machine_is_not_heard(autojump_clock):
    async with cluster_of() as cluster:
        first, (second, _third) = await restored_without_the_first(cluster)
        await cluster.start_storage(first)
        await cluster.start_storage(second)
        await trio.sleep(5)
        other = pb.RegisterNodeReq(node={"node_id": 19, "roles": [3], "address": "mem:n19"})
        await cluster.call(services.MGMTD_REGISTER_NODE, other)
        info = await cluster.info()
        target_id = TargetId(second * 100 + 1)
        newer = replace(info.chain(1).restored, chain_version=10**6, keepers=(target_id,))
        request = pb.HeartbeatReq(heartbeat_version=1)
        request.node.node_id, request.node.address = 19, "mem:n19"
        request.node.incarnation = "new"
        request.targets.add(
            target_id=target_id,
            local_state=int(LocalState.ONLINE),
            standing=standing_to_pb(newer),
        )
        await cluster.call(services.MGMTD_HEARTBEAT, request)
        await trio.sleep(5)
        info = await cluster.info()
        assert not info.chain(1).keepers
        assert info.chain(1).restored


async def test_who_will_not_come_back_after_a_restore_is_given_up(autojump_clock):
    async with cluster_of() as cluster:
        first, (second, third) = await restored_without_the_first(cluster)
        await cluster.start_storage(first)
        await cluster.start_storage(second)
        await trio.sleep(5)

        def request(node_id, **more):
            return pb.RotateLastServingReq(chain_id=1, lost_target_id=node_id * 100 + 1, **more)

        method = services.MGMTD_ROTATE_LAST_SERVING
        for refused in (request(third), request(first, accept_data_loss=True)):
            with pytest.raises(FsError) as e:
                await cluster.call(method, refused)
            assert e.value.status is Status.UNSAFE_CHANGE
        reply = await cluster.call(method, request(third, accept_data_loss=True))
        assert reply.chosen_target_id == second * 100 + 1
        info = await cluster.until(serving(cluster, [first, second]))
        assert info.chain(1).loss_count == RESTORED_LOSSES + 1


class Walk:
    """A chain that changes, is noted, written and restored at random."""

    def __init__(self, seed, *, waits_for_notes):
        self.random = random.Random(seed)
        self.waits_for_notes = waits_for_notes
        self.chain = chain_of(SERVING, version=1)
        self.local = dict.fromkeys(SERVING, LocalState.UPTODATE)
        self.alive = set(SERVING)
        self.complete = set(SERVING)
        self.notes = {}
        self.heard = {}
        self.backups = [self.chain]
        self.restore_count = self.settled_count = 0

    def judge(self):
        while True:
            before = self.chain
            if before.restored is None:
                self.chain = next_chain(before, self.local)
            else:
                self.chain = restored.settled(before, self.heard)
                self.settled_count += self.chain is not before
            if self.chain is before:
                return

    def acknowledge(self):
        chain = self.chain
        may = all(self.is_noted(t) for t in chain.serving) or not self.waits_for_notes
        if chain.serving and set(chain.writable) <= self.alive and may:
            self.complete &= set(chain.writable)

    def is_noted(self, target):
        place = SimpleNamespace(
            target=SimpleNamespace(standing=self.notes.get(target)),
            chain=self.chain,
            public_state=PublicState.SERVING,
        )
        return is_noted(place)

    def note(self, target):
        if target in self.alive and self.chain.state_of(target) is PublicState.SERVING:
            self.notes[target] = self.chain.standing

    def meet(self, target):
        """The manager learns how a target is now; a resync may have ended."""
        public = self.chain.state_of(target)
        if target not in self.alive:
            self.local[target] = LocalState.OFFLINE
        elif public is PublicState.SYNCING and self.may_resync(self.chain.serving[-1]):
            self.complete.add(target)
            self.local[target] = LocalState.UPTODATE
        elif public is not PublicState.SERVING:
            self.local[target] = LocalState.ONLINE
        if target in self.alive:
            self.heard[target] = self.notes.get(target)
        self.judge()

    def may_resync(self, source):
        has_noted = self.notes.get(source) == self.chain.standing or not self.waits_for_notes
        return source in self.alive and has_noted

    def flip(self, target):
        if target in self.alive:
            self.alive.discard(target)
        elif self.local[target] is LocalState.OFFLINE:
            self.alive.add(target)

    def fail_together(self):
        """All die, and are missed in one judgement."""
        self.alive.clear()
        self.local = dict.fromkeys(SERVING, LocalState.OFFLINE)
        self.judge()

    def restore(self):
        self.restore_count += 1
        index = self.random.randrange(len(self.backups))
        self.chain = guarded(self.backups[index], self.restore_count)
        del self.backups[index + 1 :]  # of a history that is over
        self.local = dict.fromkeys(SERVING, LocalState.OFFLINE)
        self.heard = {}

    def step(self):
        target = self.random.choice(list(SERVING))
        kind = self.random.random()
        if kind < 0.25:
            self.acknowledge()
        elif kind < 0.45:
            self.note(target)
        elif kind < 0.8:
            self.meet(target)
        elif kind < 0.94:
            self.flip(target)
        elif kind < 0.97:
            self.fail_together()
        else:
            self.restore()
        self.backups.append(self.chain)
        return set(self.chain.candidates) <= self.complete


@pytest.mark.thorough
@pytest.mark.parametrize("waits_for_notes", [True, False])
def test_walks_through_failures_and_restores(waits_for_notes):
    """Without waiting for notes the walks find somebody who is believed
    and lacks something: they can fail.
    """
    broken = settled_count = 0
    for seed in range(150):
        walk = Walk(seed, waits_for_notes=waits_for_notes)
        broken += not all(walk.step() for _ in range(200))
        settled_count += walk.settled_count
    assert settled_count > 150
    assert bool(broken) is not waits_for_notes
