"""Changes of chains asked for by hand: exhaustively for short chains,
and mixed with failures at random.
"""

import itertools
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fs.mgmtd.chain_changes import (
    check_may_leave,
    exchanged,
    is_replaceable,
    next_rotation,
    rotated_last_serving,
    substituted,
    with_member,
    with_preferred_order,
    without_member,
)
from fs.mgmtd.chain_state import ORDER, is_legal, next_chain
from fs.schema.ids import ChainId, TargetId
from fs.schema.routing import REPLICA_COUNT_MAX, Chain, ChainTarget, LocalState
from fs.schema.status import FsError, Status
from tests.mgmtd.test_chain_state import chain_of, legal_chains

S, L, Y, W, O = ORDER  # noqa: E741
LENGTHS = [1, 2, 3, 4, 5]


def refused(status, change, *arguments):
    with pytest.raises(FsError) as caught:
        change(*arguments)
    assert caught.value.status is status, caught.value


def changes_of(chain: Chain):
    """Yield what every change without accepted loss makes of a chain; refusals are left out."""
    members = [m.target_id for m in chain.targets]
    calls = [lambda: with_member(chain, TargetId(99)), lambda: with_preferred_order(chain, members)]
    calls += [lambda t=t: without_member(chain, t) for t in members]
    for leaving, joining in itertools.permutations(members, 2):
        if is_replaceable(chain, leaving, joining):
            calls.append(lambda a=leaving, b=joining: exchanged(chain, a, b))
    for call in calls:
        try:
            yield call()
        except FsError as error:
            assert error.status is Status.UNSAFE_CHANGE  # noqa: PT017 - the others are not refused


@pytest.mark.parametrize("length", LENGTHS)
def test_no_change_costs_an_up_to_date_copy_or_whom_the_chain_waits_for(length):
    seen = 0
    for chain in legal_chains(length):
        for after in changes_of(chain):
            seen += 1
            assert is_legal(after)
            assert after.serving == chain.serving
            assert after.keepers == chain.keepers
            assert after is chain or after.chain_version == chain.chain_version + 1
    assert seen >= length


def test_a_member_is_added_at_the_end_and_wanted_from_then_on():
    chain = Chain(ChainId(7), 5, chain_of(S, O).targets, (TargetId(2), TargetId(1)))
    after = with_member(chain, TargetId(3))
    assert after.targets == (*chain.targets, ChainTarget(TargetId(3), O))
    assert (after.preferred_order, after.created_order) == ((2, 1, 3), (2, 1))
    assert after.replica_count == 3
    assert with_member(after, TargetId(3)) is after
    back = without_member(after, TargetId(3))
    assert (back.preferred_order, back.created_order) == ((2, 1), ())
    assert without_member(back, TargetId(3)) is back
    assert back.chain_version == 7


def test_no_chain_has_more_members_than_it_may():
    chain = chain_of(*[S] * REPLICA_COUNT_MAX)
    refused(Status.UNSAFE_CHANGE, with_member, chain, TargetId(9))
    after = with_member(chain, TargetId(9), is_wanted=False)
    assert len(after.targets) == REPLICA_COUNT_MAX + 1
    with pytest.raises(FsError):
        with_member(after, TargetId(10), is_wanted=False)


@pytest.mark.parametrize("states", [(S,), (L,), (W,), (O,), (L, O), (S, O)])
def test_the_keeper_of_the_newest_data_is_not_removed(states):
    refused(Status.UNSAFE_CHANGE, without_member, chain_of(*states), TargetId(1))
    refused(Status.UNSAFE_CHANGE, check_may_leave, chain_of(*states), TargetId(1))


def test_who_may_stand_in_for_the_last_server_is_not_removed():
    chain = replace(chain_of(L, O, O), stand_ins=(TargetId(2),))
    for check in (check_may_leave, without_member):
        refused(Status.UNSAFE_CHANGE, check, chain, TargetId(2))
    after = without_member(chain, TargetId(3))  # who failed earlier
    assert (after.stand_ins, len(after.targets)) == ((TargetId(2),), 2)


def test_one_of_several_that_serve_has_to_stop_first():
    chain = chain_of(S, S)
    check_may_leave(chain, TargetId(1))
    refused(Status.UNSAFE_CHANGE, without_member, chain, TargetId(1))


def test_a_member_is_exchanged_in_its_place():
    members = (*chain_of(S, S, S).targets, ChainTarget(TargetId(9), O))
    chain = Chain(ChainId(7), 5, members, (TargetId(1), TargetId(9), TargetId(2)))
    assert not is_replaceable(chain, TargetId(3), TargetId(1))  # 3 serves
    after = exchanged(chain, TargetId(9), TargetId(3))
    assert (after.preferred_order, after.created_order) == ((1, 3, 2), (1, 9, 2))
    assert after.serving == (1, 2, 3)
    assert not is_replaceable(chain_of(S, S, O, O), TargetId(4), TargetId(2))  # 3 is missing, too
    assert not is_replaceable(chain_of(S, S, Y, O), TargetId(4), TargetId(3))
    assert not is_replaceable(chain_of(S, S), TargetId(4), TargetId(2))
    with pytest.raises(AssertionError):
        exchanged(chain_of(S, S, Y, O), TargetId(4), TargetId(3))


def test_a_preferred_order_names_every_member_once():
    chain = chain_of(S, S, O)
    assert with_preferred_order(chain, [3, 2, 1]).preferred_order == (3, 2, 1)
    for wrong in ([], [1, 2], [1, 2, 3, 4], [1, 2, 2], [1, 2, 4]):
        refused(Status.CONFLICTING_CHANGE, with_preferred_order, chain, wrong)


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_rotating_reaches_every_order_step_by_step(length):
    for order in itertools.permutations(range(1, length + 1)):
        chain = with_preferred_order(chain_of(*[S] * length), order)
        steps = 0
        while (target_id := next_rotation(chain)) is not None:
            steps += 1
            rest = [m for m in chain.targets if m.target_id != target_id]
            chain = Chain(
                chain.chain_id,
                chain.chain_version + 3,
                (*rest, ChainTarget(target_id, S)),
                chain.preferred_order,
            )
        assert chain.serving == order
        assert steps < length


@pytest.mark.parametrize("states", [(S, O), (S, Y), (L, O), (S, S, W)])
def test_a_chain_that_misses_somebody_is_not_rotated(states):
    order = range(len(states), 0, -1)
    refused(Status.UNSAFE_CHANGE, next_rotation, with_preferred_order(chain_of(*states), order))


def test_a_chain_that_prefers_others_is_not_rotated():
    members = chain_of(S, S).targets
    refused(Status.UNSAFE_CHANGE, next_rotation, Chain(ChainId(7), 1, members, (TargetId(2),)))


def test_the_last_to_serve_is_given_up_for_one_that_is_alive():
    chain = chain_of(L, O, W, O)
    after = rotated_last_serving(chain, TargetId(1), None, {3})
    assert [(t.target_id, t.public_state) for t in after.targets] == [
        (3, L),
        (2, O),
        (4, O),
        (1, O),
    ]
    assert rotated_last_serving(after, TargetId(1), TargetId(3), {3}) is after  # done already
    refused(Status.UNSAFE_CHANGE, rotated_last_serving, after, TargetId(1), None, {3})
    after = rotated_last_serving(chain, TargetId(1), TargetId(2), {3})
    assert [(t.target_id, t.public_state) for t in after.targets] == [
        (2, L),
        (3, W),
        (4, O),
        (1, O),
    ]
    assert rotated_last_serving(chain, TargetId(1), None, set()).targets[0].target_id == 2
    assert (chain.loss_count, after.loss_count) == (0, 1)  # clients are told


def test_nobody_stands_in_for_who_was_chosen_by_a_person():
    chain = replace(chain_of(L, O, O, O), stand_ins=(TargetId(2), TargetId(3)))
    after = rotated_last_serving(chain, TargetId(1), TargetId(4), {4})
    assert (after.candidates, is_legal(after)) == ((4,), True)


def test_only_what_is_lost_is_given_up():
    unsafe = Status.UNSAFE_CHANGE
    refused(unsafe, rotated_last_serving, chain_of(L, O), TargetId(1), None, {1, 2})
    refused(unsafe, rotated_last_serving, chain_of(S, O), TargetId(1), None, {2})
    refused(unsafe, rotated_last_serving, chain_of(L, W), TargetId(2), None, {2})
    refused(unsafe, rotated_last_serving, chain_of(L, W), TargetId(9), None, {2})
    conflict = Status.CONFLICTING_CHANGE
    refused(conflict, rotated_last_serving, chain_of(L, W), TargetId(1), TargetId(1), {2})
    refused(conflict, rotated_last_serving, chain_of(L, W), TargetId(1), TargetId(9), {2})
    refused(conflict, rotated_last_serving, chain_of(L), TargetId(1), None, set())


class Operations(RuleBasedStateMachine):
    """Operations and failures in any order; `content`
    is the newest acknowledged write each target holds.
    """

    def __init__(self) -> None:
        super().__init__()
        members = tuple(ChainTarget(TargetId(t), S) for t in (1, 2, 3))
        self.chain = Chain(ChainId(7), 1, members, tuple(TargetId(t) for t in (1, 2, 3)))
        self.local = {TargetId(t): LocalState.UPTODATE for t in range(1, 8)}
        self.content = dict.fromkeys(self.local, 0)
        self.written = 0

    def take(self, after: Chain) -> None:
        assert after is self.chain or after.chain_version == self.chain.chain_version + 1
        self.chain = after
        while (judged := next_chain(self.chain, self.local)) is not self.chain:
            for member in judged.targets:  # who leaves service comes back through resync
                if member.public_state in {O, W} and self.local[member.target_id] is (
                    LocalState.UPTODATE
                ):
                    self.local[member.target_id] = LocalState.ONLINE
            self.chain = judged

    @rule()
    def write(self) -> None:
        if self.chain.serving:
            self.written += 1
            for target_id in self.chain.serving:
                self.content[target_id] = self.written

    @rule(target_id=st.integers(1, 7))
    def fail(self, target_id) -> None:
        self.local[TargetId(target_id)] = LocalState.OFFLINE
        self.take(self.chain)

    @rule(target_id=st.integers(1, 7))
    def come_back(self, target_id) -> None:
        if self.local[TargetId(target_id)] is LocalState.OFFLINE:
            self.local[TargetId(target_id)] = LocalState.ONLINE
            self.take(self.chain)

    @rule()
    def finish_resync(self) -> None:
        for member in self.chain.targets:
            if member.public_state is Y:
                self.content[member.target_id] = self.content[self.chain.serving[0]]
                self.local[member.target_id] = LocalState.UPTODATE
        self.take(self.chain)

    @rule(target_id=st.integers(1, 7), is_wanted=st.booleans())
    def add(self, target_id, is_wanted) -> None:
        if self.local[TargetId(target_id)] is not LocalState.OFFLINE:
            is_new = self.chain.state_of(TargetId(target_id)) is None
            if is_new:  # a target in no chain is online
                self.local[TargetId(target_id)] = LocalState.ONLINE
        self.attempt(with_member, TargetId(target_id), is_wanted=is_wanted)

    @rule(target_id=st.integers(1, 7))
    def remove(self, target_id) -> None:
        self.attempt(without_member, TargetId(target_id))

    @rule(pair=st.permutations(range(1, 8)))
    def exchange(self, pair) -> None:
        if is_replaceable(self.chain, pair[0], pair[1]):
            self.take(exchanged(self.chain, pair[0], pair[1]))

    @precondition(lambda self: len(self.chain.serving) == len(self.chain.targets) > 1)
    @rule(data=st.data())
    def rotate(self, data) -> None:
        order = data.draw(st.permutations([m.target_id for m in self.chain.targets]))
        self.take(with_preferred_order(self.chain, order))
        if (target_id := next_rotation(self.chain)) is not None:
            self.local[target_id] = LocalState.OFFLINE
            self.take(self.chain)

    def attempt(self, change, *arguments, **options) -> None:
        before = len(self.chain.serving)
        try:
            after = change(self.chain, *arguments, **options)
        except FsError as error:
            assert error.status is Status.UNSAFE_CHANGE  # noqa: PT017
            return
        self.take(after)
        assert len(self.chain.serving) >= before

    @invariant()
    def everything_acknowledged_is_kept(self) -> None:
        assert is_legal(self.chain)
        assert self.chain.keepers
        assert all(self.content[t] == self.written for t in self.chain.keepers)
        assert set(self.chain.created_order or self.chain.preferred_order) == {1, 2, 3}


TestOperations = pytest.mark.thorough(Operations.TestCase)
TestOperations.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_substitute_takes_the_place_of_one_that_is_offline(length):
    for plain in legal_chains(length):
        members = {m.target_id: m.public_state for m in plain.targets}
        chain = replace(plain, preferred_order=tuple(reversed(members)))
        for leaving, state in members.items():
            if state is not O or not chain.serving:
                refused(Status.UNSAFE_CHANGE, substituted, chain, leaving, TargetId(99))
                continue
            after = substituted(chain, leaving, TargetId(99))
            kept = {t: s for t, s in members.items() if t != leaving}
            assert {m.target_id: m.public_state for m in after.targets} == {**kept, 99: O}
            assert [t for t in after.preferred_order if t != 99] == [
                t for t in chain.preferred_order if t != leaving
            ]
            assert after.preferred_order.index(99) == chain.preferred_order.index(leaving)
            for member in kept:
                refused(Status.UNSAFE_CHANGE, substituted, chain, leaving, member)
