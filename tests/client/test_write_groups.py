# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Writes of one chain that wait together go together, and each is told what became of it."""

import gc
import random
import weakref
from types import SimpleNamespace

import pytest
import trio
import trio.lowlevel
import trio.testing

from fs.client import write_groups
from fs.client.write_groups import (
    AT_ONCE_MAX,
    BACK_SHARE,
    ENOUGH_BYTES,
    GROUP_BYTES_MAX,
    GROUP_COUNT_MAX,
    SHARE_WAIT_S_MAX,
    SHARE_WAIT_S_MIN,
    SMALL_BYTES_MAX,
    TOOK_COUNT,
    TRUST_STEP,
    WriteGroups,
)
from fs.rpc.api import Received
from fs.schema import services
from fs.schema.proto import storage_pb2 as pb
from fs.schema.routing import Node, Role, RoutingInfo
from fs.schema.status import FsError, Status
from tests.examples import first_quick

NODE = 5
PAGE = 4096


class Nodes:
    """Answers when a test says so; knows what is under way."""

    def __init__(self):
        self.sent = []
        """Of each request the chunk indices, in order."""
        self.payloads = []
        self.refusals = {}
        """Status of single chunks in a group, by index."""
        self.failure = None
        self._ends = []

    async def call(self, _node_id, method, request, *, payload):
        is_group = method is services.STORAGE_WRITE_GROUP
        updates = list(request.updates) if is_group else [request]
        assert len(updates) > 1 or not is_group
        assert [len(data) for data in payload] == [one.length for one in updates]
        end = trio.Event()
        self.sent.append([one.chunk_index for one in updates])
        self._ends.append(end)
        await end.wait()
        self.payloads.append([bytes(data) for data in payload])
        if self.failure is not None and (is_group or self.failure is not Status.RPC_UNKNOWN_METHOD):
            raise FsError(self.failure, "as the test wants it")
        if not is_group:
            return Received(pb.UpdateRsp(update_ver=request.chunk_index + 1))
        return Received(pb.UpdateGroupRsp(outcomes=[self._outcome(one) for one in updates]))

    def _outcome(self, one):
        status = self.refusals.get(one.chunk_index)
        if status is not None:
            return pb.UpdateOutcomePb(status=status, detail="refused")
        return pb.UpdateOutcomePb(reply=pb.UpdateRsp(update_ver=one.chunk_index + 1))

    async def end(self, position=0):
        """Let one request under way be answered."""
        self._ends.pop(position).set()
        await trio.testing.wait_all_tasks_blocked()

    async def end_all(self):
        while self._ends:
            await self.end()


class Bytes(bytearray):
    """That can be referred to weakly."""


class Writers:
    """Tasks that write, and what they were told."""

    def __init__(self, nursery):
        self.nodes = Nodes()
        self.routing = SimpleNamespace(info=RoutingInfo())
        self.started_anew("a")
        self.groups = WriteGroups(self.nodes, self.routing)
        self.told = {}
        self.written = []
        """Weak references to the bytes of each write."""
        self._nursery = nursery
        self.scopes = {}

    def started_anew(self, incarnation):
        node = Node(NODE, frozenset({Role.STORAGE}), "mem:node-5", incarnation)
        self.routing.info = RoutingInfo(nodes={NODE: node})

    async def write(self, indices, size=100, *, chain_id=1, version=1):
        for index in indices:
            self._nursery.start_soon(self._write, index, size, chain_id, version)
            await trio.testing.wait_all_tasks_blocked()

    async def _write(self, index, size, chain_id, version):
        data = Bytes(bytes([index % 256]) * size)
        self.written.append(weakref.ref(data))
        request = pb.UpdateReq(
            chunk_index=index,
            chain_id=chain_id,
            chain_version=version,
            type=pb.UpdateTypePb.WRITE,
            length=size,
        )
        with trio.CancelScope() as self.scopes[index]:
            try:
                reply = await self.groups.send(NODE, request, data)
                self.told[index] = reply.update_ver
            except FsError as error:
                self.told[index] = error.status


@pytest.fixture
def writers(nursery):
    return Writers(nursery)


async def test_the_first_goes_at_once_and_those_behind_it_together(writers):
    nodes = writers.nodes
    await writers.write(range(5))
    assert nodes.sent == [[0]]
    await nodes.end()
    assert nodes.sent == [[0], [1, 2, 3, 4]]
    await writers.write([5])
    assert len(nodes.sent) == 2
    await nodes.end_all()
    assert nodes.sent[2:] == [[5]]
    assert writers.told == {index: index + 1 for index in range(6)}
    assert nodes.payloads[1] == [bytes([index]) * 100 for index in range(1, 5)]
    assert nothing_is_left(writers)


async def test_those_that_begin_in_the_same_moment_go_together(writers, nursery):
    nodes = writers.nodes
    for index in range(4):
        nursery.start_soon(writers._write, index, 100, 1, 1)
    nursery.start_soon(writers._write, 4, 100, 2, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(map(sorted, nodes.sent)) == [[0, 1, 2, 3], [4]]
    await nodes.end_all()
    assert writers.told == {index: index + 1 for index in range(5)}
    assert nothing_is_left(writers)


async def test_who_is_cancelled_in_the_moment_of_beginning_keeps_nobody_waiting(writers, nursery):
    for index in range(3):
        nursery.start_soon(writers._write, index, 100, 1, 1)
    await trio.lowlevel.checkpoint()
    for scope in writers.scopes.values():
        scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    await writers.write([7])
    await writers.nodes.end_all()
    assert writers.told.pop(7) == 8
    assert nothing_is_left(writers)


@pytest.mark.parametrize("by_count", [True, False])
async def test_a_full_request_waits_for_no_other_but_too_many_do(writers, by_count):
    each = 1 if by_count else GROUP_BYTES_MAX // 4
    full = GROUP_COUNT_MAX if by_count else 4
    await writers.write(range(1 + full - 1), each)
    assert writers.nodes.sent == [[0]]
    await writers.write(range(full, 3 * full + 1), each)
    assert writers.nodes.sent == [[0], list(range(1, full + 1))]
    assert AT_ONCE_MAX == 2  # else more of them
    await writers.nodes.end_all()
    assert [len(sent) for sent in writers.nodes.sent] == [1, full, full, full]
    assert len(writers.told) == 3 * full + 1


async def test_a_write_larger_than_a_group_goes_by_itself(writers):
    await writers.write(range(3), GROUP_BYTES_MAX + 1)
    await writers.nodes.end_all()
    assert writers.nodes.sent == [[0], [1], [2]]


async def test_chains_and_their_versions_do_not_mix(writers):
    await writers.write([0, 1])
    await writers.write([2, 3], chain_id=2)
    await writers.write([4, 5], version=2)
    assert writers.nodes.sent == [[0], [2], [4]]
    await writers.nodes.end_all()
    assert writers.nodes.sent[3:] == [[1], [3], [5]]


LARGE = SMALL_BYTES_MAX + 1


async def busy_chains(writers):
    """Have two chains with a request under way, and five writes waiting for these."""
    await writers.write([0], LARGE)
    await writers.write([1], LARGE, chain_id=2)
    await writers.write([2, 3, 4], LARGE)
    await writers.write([5, 6], LARGE, chain_id=2)
    assert writers.nodes.sent == [[0], [1]]


def nothing_is_left(writers):
    load = writers.groups._load
    return (load.lines, load.writes, load.began_s) == ({}, 0, [])


async def test_a_free_chain_waits_for_its_share_of_what_there_is_to_write(autojump_clock, writers):
    nodes = writers.nodes
    await busy_chains(writers)
    await writers.write([7, 8, 9], LARGE, chain_id=3)
    assert nodes.sent == [[0], [1]]
    await writers.write([10], LARGE, chain_id=3)
    assert nodes.sent[2:] == [[7, 8, 9, 10]]
    await nodes.end_all()
    assert writers.told == {index: index + 1 for index in range(11)}
    assert nothing_is_left(writers)


async def test_a_free_chain_waits_no_longer_than_a_round_of_those_under_way(
    autojump_clock, writers
):
    nodes = writers.nodes
    await busy_chains(writers)
    await writers.write([7], LARGE, chain_id=3)
    await nodes.end()
    assert nodes.sent[2:] == [[2, 3, 4]]
    await nodes.end()
    assert sorted(nodes.sent[3:]) == [[5, 6], [7]]
    await nodes.end_all()
    assert writers.told == {index: index + 1 for index in range(8)}
    assert nothing_is_left(writers)


@pytest.mark.parametrize("size", [SMALL_BYTES_MAX, ENOUGH_BYTES])
async def test_small_writes_and_very_large_ones_wait_for_no_share(autojump_clock, writers, size):
    await busy_chains(writers)
    await writers.write([7], size, chain_id=3)
    assert writers.nodes.sent[2:] == [[7]]
    await writers.nodes.end_all()
    assert nothing_is_left(writers)


async def test_a_chain_that_is_held_up_does_not_hold_up_another(autojump_clock, writers):
    nodes = writers.nodes
    await writers.write(range(4), size=1 << 20)
    assert nodes.sent == [[0]]
    await writers.write([10], size=1 << 20, chain_id=2)
    assert nodes.sent == [[0]], "it waits for its share, as long as the other may end"
    await trio.sleep(1.5 * SHARE_WAIT_S_MIN)
    assert nodes.sent == [[0], [10]]
    await nodes.end(1)
    assert writers.told == {10: 11}
    await writers.write([11], size=1 << 20, chain_id=2)
    assert nodes.sent[2:] == [[11]], "nor does it wait again for one that has taken long already"
    await nodes.end_all()
    assert writers.told == {k: k + 1 for k in (*range(4), 10, 11)}


async def test_writes_of_a_chain_that_has_waited_for_long_enough_go_together(
    autojump_clock, writers
):
    nodes = writers.nodes
    await writers.write(range(8), size=1 << 20)
    await writers.write([10, 11], size=1 << 20, chain_id=2)
    writers.scopes[10].cancel()
    await trio.sleep(2 * SHARE_WAIT_S_MIN)
    assert nodes.sent == [[0], [11]], "the next one's patience ends, too"
    await nodes.end_all()
    assert 10 not in writers.told


async def test_who_begins_to_wait_for_a_share_behind_a_request_of_the_chain_is_not_held_up(
    autojump_clock, writers
):
    nodes = writers.nodes
    await writers.write([0], LARGE)
    await writers.write([10], LARGE, chain_id=2)
    await writers.write([1, 2, 3], LARGE)
    await writers.write([11, 12], LARGE, chain_id=2)
    await nodes.end(1)
    assert nodes.sent == [[0], [10]], "they wait for their share now, as long as the other may end"
    writers.scopes[11].cancel()
    await trio.sleep(1.5 * SHARE_WAIT_S_MIN)
    assert nodes.sent[2:] == [[12]]
    await nodes.end_all()
    assert writers.told == {k: k + 1 for k in (*range(4), 10, 12)}
    assert nothing_is_left(writers)


async def test_whose_patience_ends_as_the_last_that_waits_is_cancelled_is_still_sent(
    autojump_clock, writers
):
    nodes = writers.nodes
    for base in range(0, 400, 20):  # whichever of the three is run first
        await writers.write(range(base, base + 8), LARGE)
        await writers.write([base + 10, base + 11, base + 12], LARGE, chain_id=2)
        patience_s = writers.groups._load.patience_s
        writers.scopes[base + 12].deadline = trio.current_time() + patience_s
        await trio.sleep(2 * patience_s)
        await nodes.end_all()
        assert {base + 10, base + 11} <= writers.told.keys()
        assert nothing_is_left(writers)


async def have_taken(writers, seconds):
    """Have the last requests taken so long, each in turn."""
    for position, took_s in enumerate(seconds):
        await writers.write([1000 + position], LARGE)
        await trio.sleep(took_s)
        await writers.nodes.end()
    writers.nodes.sent.clear()
    writers.told.clear()


async def waits_for_its_share(writers, patience_s):
    """Check how long a chain waits for its share beside one that does not answer."""
    await writers.write(range(4), LARGE)
    await writers.write([10], LARGE, chain_id=2)
    await trio.sleep(0.9 * patience_s)
    assert writers.nodes.sent == [[0]]
    await trio.sleep(0.2 * patience_s)
    assert writers.nodes.sent == [[0], [10]]
    await writers.nodes.end_all()
    assert nothing_is_left(writers)


@pytest.mark.parametrize(
    ("took_s", "patience_s"),
    [(0.001, SHARE_WAIT_S_MIN), (0.04, 0.08), (3.0, SHARE_WAIT_S_MAX)],
)
async def test_a_chain_waits_for_its_share_as_long_as_two_requests_usually_take(
    autojump_clock, writers, took_s, patience_s
):
    await have_taken(writers, [took_s] * TOOK_COUNT)
    await waits_for_its_share(writers, patience_s)


async def test_requests_of_a_slow_node_make_nobody_wait_longer_while_most_are_quick(
    autojump_clock, writers
):
    await have_taken(writers, [5.0, 0.02] * (TOOK_COUNT // 2) + [0.02])
    await waits_for_its_share(writers, 0.04)


async def test_where_there_are_hardly_more_writes_than_chains_nobody_waits_for_a_share(
    autojump_clock, writers
):
    nodes = writers.nodes
    for chain_id in range(4):
        await writers.write([chain_id], LARGE, chain_id=chain_id)
    await writers.write([10], LARGE, chain_id=0)
    await writers.write([11], LARGE, chain_id=4)
    assert nodes.sent == [[0], [1], [2], [3], [11]], "six writes, five chains: few would ever meet"
    await nodes.end_all()
    assert nothing_is_left(writers)


REQUEST_S = 0.04
BACK_S = BACK_SHARE * REQUEST_S


async def wait_for_two_programs(writers, *, comes_back):
    """Have two chains with a write of one program under way, and one of another waiting;
    and answer the former.
    """
    nodes = writers.nodes
    await have_taken(writers, [REQUEST_S] * int(2 / TRUST_STEP))
    if not comes_back:
        for _ in range(int(1 / TRUST_STEP)):
            await writers.write([500], LARGE)
            await trio.sleep(REQUEST_S)
            await nodes.end()
            await trio.sleep(1.1 * BACK_S)
        nodes.sent.clear()
    for chain_id in (1, 2):
        await writers.write([chain_id], LARGE, chain_id=chain_id)
    for chain_id in (1, 2):
        await writers.write([10 + chain_id], LARGE, chain_id=chain_id)
    await trio.sleep(REQUEST_S / 10)
    await nodes.end()
    await nodes.end()


async def test_writes_that_are_expected_are_waited_for(autojump_clock, writers):
    nodes = writers.nodes
    await wait_for_two_programs(writers, comes_back=True)
    assert nodes.sent == [[1], [2]]
    await trio.sleep(BACK_S / 3)
    await writers.write([21], LARGE, chain_id=1)
    assert nodes.sent[2:] == [[11, 21]], "its share; another write is expected still"
    await writers.write([22], LARGE, chain_id=2)
    assert nodes.sent[3:] == [[12, 22]]
    await nodes.end_all()
    assert nothing_is_left(writers)


async def test_what_waits_goes_when_nobody_is_expected_any_more(autojump_clock, writers):
    nodes = writers.nodes
    await wait_for_two_programs(writers, comes_back=True)
    await writers.write([21], LARGE, chain_id=3)
    await writers.write([22], LARGE, chain_id=4)
    assert sorted(nodes.sent[2:]) == [[11], [12], [21], [22]]
    await nodes.end_all()
    assert nothing_is_left(writers)


async def test_writes_that_are_expected_and_do_not_come_are_not_waited_for_long(
    autojump_clock, writers
):
    nodes = writers.nodes
    await wait_for_two_programs(writers, comes_back=True)
    await trio.sleep(0.9 * BACK_S)
    assert nodes.sent == [[1], [2]]
    await trio.sleep(1.2 * BACK_S)
    assert sorted(nodes.sent[2:]) == [[11], [12]]
    await nodes.end_all()
    assert nothing_is_left(writers)


async def test_nobody_is_expected_where_such_writes_mostly_came_late(autojump_clock, writers):
    await wait_for_two_programs(writers, comes_back=False)
    assert sorted(writers.nodes.sent[2:]) == [[11], [12]]
    await writers.nodes.end_all()
    assert nothing_is_left(writers)


@pytest.mark.parametrize("seed", first_quick(range(6), 2))
async def test_every_write_goes_whatever_others_do(autojump_clock, writers, nursery, seed):
    """Threads with batches and pauses of any length, some cancelled, over nodes of any speed."""
    rng = random.Random(seed)
    slow_s = rng.choice([0.001, 0.01, 0.1])
    waits = []

    async def answer_all():
        while True:
            ends, writers.nodes._ends = writers.nodes._ends, []
            rng.shuffle(ends)
            for end in ends:
                await trio.sleep(rng.expovariate(4 / slow_s))
                end.set()
            await trio.sleep(slow_s / 10)

    async def one(index, chain_id):
        began_s = trio.current_time()
        await writers._write(index, rng.choice([LARGE, ENOUGH_BYTES, 100]), chain_id, 1)
        waits.append(trio.current_time() - began_s)

    async def program(base):
        for batch in range(6):
            await trio.sleep(rng.expovariate(1 / slow_s) * rng.choice([0, 0.1, 2]))
            async with trio.open_nursery() as batch_nursery:
                for position in range(rng.randrange(1, 9)):
                    index = base + 100 * batch + position
                    batch_nursery.start_soon(one, index, rng.randrange(6))
                await trio.lowlevel.checkpoint()
                if rng.random() < 0.1 and base + 100 * batch in writers.scopes:
                    writers.scopes[base + 100 * batch].cancel()

    async with trio.open_nursery() as programs:
        nursery.start_soon(answer_all)
        for number in range(rng.randrange(1, 5)):
            programs.start_soon(program, 10_000 * number)
    assert nothing_is_left(writers)
    assert max(waits) < 2 * SHARE_WAIT_S_MAX + 60 * slow_s


async def test_a_chain_whose_only_write_is_cancelled_while_it_waits_is_forgotten(
    autojump_clock, writers
):
    await busy_chains(writers)
    await writers.write([7], LARGE, chain_id=3)
    writers.scopes[7].cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert len(writers.groups._load.lines) == 2
    await writers.write([8], LARGE, chain_id=3)
    await writers.nodes.end_all()
    assert writers.told == {index: index + 1 for index in [*range(7), 8]}
    assert nothing_is_left(writers)


async def test_a_chain_for_each_writer_waits_for_nobody(autojump_clock, writers):
    for chain_id in range(16):
        await writers.write([chain_id], LARGE, chain_id=chain_id)
    assert writers.nodes.sent == [[index] for index in range(16)]
    await writers.nodes.end_all()
    assert nothing_is_left(writers)


async def test_nobody_keeps_the_bytes_of_a_write_that_has_ended(writers, nursery):
    """Without the garbage collector, which comes late:
    a mount receives the next ones in their memory.
    """
    gc.disable()
    try:
        await writers.write(range(4))
        for index in range(4, 6):
            nursery.start_soon(writers._write, index, 100, 2, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert [data() is not None for data in writers.written] == [True] * 6
        await writers.nodes.end_all()
        assert sorted(map(len, writers.nodes.sent)) == [1, 2, 3]
        assert [data() is not None for data in writers.written] == [False] * 6
    finally:
        gc.enable()


async def test_whole_pages_come_first_in_a_request(writers):
    await writers.write([0])
    await writers.write([1], PAGE + 1)
    await writers.write([2], PAGE)
    await writers.write([3], 7)
    await writers.write([4], 2 * PAGE)
    await writers.nodes.end_all()
    assert writers.nodes.sent == [[0], [2, 4, 1, 3]]
    assert writers.told == {index: index + 1 for index in range(5)}


async def test_each_is_told_its_own_refusal(writers):
    writers.nodes.refusals = {2: Status.NO_SPACE, 3: Status.OUTCOME_UNKNOWN}
    await writers.write(range(5))
    await writers.nodes.end_all()
    assert writers.told == {0: 1, 1: 2, 2: Status.NO_SPACE, 3: Status.OUTCOME_UNKNOWN, 4: 5}


async def test_all_of_a_request_that_fails_are_told(writers):
    await writers.write(range(4))
    await writers.nodes.end()
    writers.nodes.failure = Status.ROUTING_MISMATCH
    await writers.nodes.end()
    assert writers.told == {0: 1} | dict.fromkeys([1, 2, 3], Status.ROUTING_MISMATCH)
    assert nothing_is_left(writers)


async def test_a_reply_about_fewer_is_none(writers, monkeypatch):
    monkeypatch.setattr(Nodes, "_outcome", lambda _self, _one: pb.UpdateOutcomePb())
    monkeypatch.setattr(write_groups.pb, "UpdateGroupRsp", pb_of_one)
    await writers.write(range(3))
    await writers.nodes.end_all()
    assert writers.told == {0: 1, 1: Status.RPC_BAD_FRAME, 2: Status.RPC_BAD_FRAME}


_GROUP_RSP = pb.UpdateGroupRsp


def pb_of_one(outcomes):
    return _GROUP_RSP(outcomes=outcomes[:1])


async def test_a_node_of_an_older_release_gets_them_one_by_one(writers):
    writers.nodes.failure = Status.RPC_UNKNOWN_METHOD
    await writers.write(range(3))
    await writers.nodes.end()
    await writers.nodes.end()
    assert writers.nodes.sent == [[0], [1, 2], [1], [2]]
    await writers.nodes.end_all()
    await writers.write(range(3, 6))
    assert writers.nodes.sent[4:] == [[3], [4], [5]]
    await writers.nodes.end_all()
    writers.started_anew("b")  # of a newer release
    writers.nodes.failure = None
    await writers.write(range(6, 9))
    await writers.nodes.end_all()
    assert writers.nodes.sent[7:] == [[6], [7, 8]]
    assert writers.told == {index: index + 1 for index in range(9)}


async def test_one_that_waits_is_taken_out_when_it_is_cancelled(writers):
    await writers.write(range(4))
    writers.scopes[2].cancel()
    await trio.testing.wait_all_tasks_blocked()
    await writers.nodes.end_all()
    assert writers.nodes.sent == [[0], [1, 3]]
    assert sorted(writers.told) == [0, 1, 3]


async def test_one_that_is_being_sent_by_another_stays_until_its_bytes_are_free(writers):
    await writers.write(range(3))
    await writers.nodes.end()
    writers.scopes[2].cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert not writers.scopes[2].cancelled_caught
    await writers.nodes.end()
    assert writers.nodes.payloads[-1] == [b"\1" * 100, b"\2" * 100]
    assert writers.told[1] == 2


async def test_when_the_sender_is_cancelled_the_others_may_repeat(writers):
    await writers.write(range(5))
    await writers.nodes.end()
    assert writers.nodes.sent[-1] == [1, 2, 3, 4]
    await writers.write([5])
    writers.scopes[1].cancel()
    await trio.testing.wait_all_tasks_blocked()
    lost = Status.RPC_CONNECTION_LOST
    assert writers.told == {0: 1, 2: lost, 3: lost, 4: lost}
    assert not FsError(lost).definite
    assert writers.nodes.sent[-1] == [5]
    await writers.nodes.end_all()
    assert writers.told[5] == 6
    assert nothing_is_left(writers)


async def test_a_sender_that_is_cancelled_before_it_runs_passes_its_turn_on(writers):
    await writers.write(range(3))
    writers.nodes._ends[0].set()
    writers.scopes[1].cancel()  # whichever of the two is seen first
    await trio.testing.wait_all_tasks_blocked()
    await writers.nodes.end_all()
    assert 1 not in writers.told
    assert writers.told[2] in {3, Status.RPC_CONNECTION_LOST}
    assert nothing_is_left(writers)
