"""Whoever serves, or is waited for as the last that did, has all that was acknowledged:
every order of failures in a row.

A chain whose members die, are noticed in any order and as late as may be, come back and are
resynced, searched until there is nothing new.  An update is acknowledged only while every writable
member lives (fs/storage/forward.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import pytest

from fs.mgmtd import chain_state
from fs.schema.ids import ChainId, TargetId
from fs.schema.routing import Chain, ChainTarget, LocalState, PublicState


@dataclass(frozen=True)
class World:
    """What is true, and what the manager believes."""

    chain: Chain
    alive: frozenset[TargetId]
    heard: tuple[tuple[TargetId, LocalState], ...]
    """Local states as the manager has them."""
    complete: frozenset[TargetId]
    """Those with every acknowledged update."""

    def told(self, target: TargetId, local: LocalState) -> "World":
        """The manager hears of one target, and judges until nothing changes."""
        return self.told_of({target: local})

    def told_of(self, locals_: dict[TargetId, LocalState]) -> "World":
        """It hears of several before it judges."""
        heard = dict(self.heard) | locals_
        chain = self.chain
        while (after := replace(chain_state.next_chain(chain, heard), chain_version=1)) != chain:
            chain = after
        return replace(self, chain=chain, heard=tuple(sorted(heard.items())))


def steps(world: World) -> Iterator[World]:
    heard = dict(world.heard)
    writable = {t.target_id for t in world.chain.targets if t.public_state.is_writable}
    if world.chain.serving and writable <= world.alive:
        yield replace(world, complete=world.complete & writable)  # an update is acknowledged
    dead = [t for t in heard if t not in world.alive]
    for count in range(2, len(dead) + 1):
        for several in combinations(dead, count):
            yield world.told_of(dict.fromkeys(several, LocalState.OFFLINE))
    for target, local in heard.items():
        public = world.chain.state_of(target)
        if target not in world.alive:
            yield world.told(target, LocalState.OFFLINE)
            if local is LocalState.OFFLINE:  # only then does it come back
                back = replace(world, alive=world.alive | {target})
                yield back.told(target, LocalState.ONLINE)
            continue
        yield replace(world, alive=world.alive - {target})
        if public is PublicState.SYNCING and world.chain.serving[-1] in world.alive:
            done = replace(world, complete=world.complete | {target})
            yield done.told(target, LocalState.UPTODATE)


def search(length: int) -> tuple[int, World | None]:
    """Return how many worlds there are, and one in which somebody who lacks an update is taken
    for the newest.
    """
    members = [TargetId(n) for n in range(1, length + 1)]
    chain = Chain(ChainId(7), 1, tuple(ChainTarget(m, PublicState.SERVING) for m in members))
    everybody = frozenset(members)
    first = World(chain, everybody, tuple((m, LocalState.UPTODATE) for m in members), everybody)
    seen, todo = {first}, [first]
    while todo:
        world = todo.pop()
        if not set(world.chain.candidates) <= world.complete:
            return len(seen), world
        new = set(steps(world)) - seen
        seen |= new
        todo.extend(new)
    return len(seen), None


@pytest.mark.parametrize(("length", "worlds_min"), [(1, 4), (2, 50), (3, 1000)])
def test_no_order_of_failures_chooses_one_that_lacks_an_update(length, worlds_min):
    worlds, broken = search(length)
    assert broken is None
    assert worlds >= worlds_min


@pytest.mark.parametrize("state", [PublicState.SYNCING, PublicState.WAITING, PublicState.OFFLINE])
def test_a_wrong_choice_is_found(monkeypatch, state):
    """Whoever lives is taken when nobody serves."""
    real = chain_state._judge

    def judge(public, local, judged):
        if public is state and local is not LocalState.OFFLINE and not judged[PublicState.SERVING]:
            return PublicState.SERVING
        return real(public, local, judged)

    monkeypatch.setattr(chain_state, "_judge", judge)
    assert search(3)[1] is not None


def test_who_failed_earlier_stands_in_for_nobody(monkeypatch):
    """Whoever once served is taken for as good as the last that did."""

    def stand_ins(chain, lasts):
        return (
            tuple(m.target_id for m in chain.targets if m.target_id not in lasts) if lasts else ()
        )

    monkeypatch.setattr(chain_state, "_stand_ins", stand_ins)
    assert search(3)[1] is not None
