"""Syncs that share requests, against a node that answers when a test lets it."""

import pytest
import trio

from fs.client.shared_syncs import SharedSyncs
from fs.schema.status import FsError, Status

DISK, OTHER = frozenset({0}), frozenset({1})


class Node:
    """Requests wait until a test answers them, in the order in which they came."""

    def __init__(self):
        self.asked = []
        self._answers = []

    async def send(self, node_id, chains):
        done = trio.Event()
        answer = [done, None]
        self.asked.append((node_id, list(chains)))
        self._answers.append(answer)
        try:
            await done.wait()
        except trio.Cancelled:
            self._answers.remove(answer)
            raise
        if answer[1] is not None:
            raise answer[1]

    async def answer(self, error=None):
        answer = self._answers.pop(0)
        answer[1] = error
        answer[0].set()
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def ask(node, nursery):
    syncs, ended = SharedSyncs(node.send), {}

    async def one(name, chain, disks, scope):
        with scope:
            try:
                await syncs.sync(1, disks, [(chain, 1)])
                ended[name] = None
            except FsError as error:
                ended[name] = error

    async def ask(name, chain, disks=DISK):
        scope = trio.CancelScope()
        nursery.start_soon(one, name, chain, disks, scope)
        await trio.testing.wait_all_tasks_blocked()
        return scope

    ask.ended = ended
    return ask


async def test_who_comes_while_one_is_under_way_shares_the_next(node, ask):
    await ask("a", 101)
    await ask("b", 102)
    await ask("c", 103)
    assert node.asked == [(1, [(101, 1)])]
    await node.answer()
    assert list(ask.ended) == ["a"], "a request that was sent before covers nobody else"
    assert node.asked[1:] == [(1, [(102, 1), (103, 1)])]
    await ask("d", 102)
    await node.answer()
    assert sorted(ask.ended) == ["a", "b", "c"]
    await node.answer()
    assert set(ask.ended.values()) == {None}
    assert len(node.asked) == 3


async def test_other_disks_are_not_waited_for(node, ask):
    await ask("slow", 101)
    await ask("quick", 102, OTHER)
    assert [chains for _, chains in node.asked] == [[(101, 1)], [(102, 1)]]
    await node.answer()
    await node.answer()
    assert sorted(ask.ended) == ["quick", "slow"]


async def test_all_who_share_are_told_of_the_error_and_the_next_begins_anew(node, ask):
    await ask("a", 101)
    await ask("b", 102)
    await ask("c", 103)
    await node.answer()
    await node.answer(FsError(Status.ROUTING_MISMATCH, "moved"))
    assert ask.ended["a"] is None
    assert ask.ended["b"].status is ask.ended["c"].status is Status.ROUTING_MISMATCH
    assert ask.ended["b"] is not ask.ended["c"]
    await ask("d", 104)
    await node.answer()
    assert ask.ended["d"] is None


@pytest.mark.parametrize("is_sent", [False, True])
async def test_who_is_cancelled_takes_nobody_along(node, ask, is_sent):
    await ask("a", 101)
    leader = await ask("b", 102)
    await ask("c", 103)
    if is_sent:
        await node.answer()
    leader.cancel()
    await trio.testing.wait_all_tasks_blocked()
    if not is_sent:
        await node.answer()
    assert node.asked[-1] == (1, [(103, 1)])
    await node.answer()
    assert ask.ended == {"a": None, "c": None}
