"""Chain-state transition: every legal short chain under every local state, and the published table.

Rewrite the table in specs/chain-state.md with: EMBER_REWRITE=1 python -m pytest
tests/mgmtd/test_chain_state.py
"""

import itertools
import os
import pathlib
from collections.abc import Iterator

import pytest

from fs.mgmtd.chain_state import ORDER, is_legal, keeping_state, next_chain, with_loss
from fs.schema.ids import ChainId, TargetId
from fs.schema.routing import (
    Chain,
    ChainTarget,
    LocalState,
    PublicState,
    chain_from_pb,
    chain_to_pb,
)

S, L, Y, W, O = ORDER  # noqa: E741
PAGE = pathlib.Path(__file__).parents[2] / "specs" / "chain-state.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def chain_of(*states: PublicState) -> Chain:
    members = tuple(ChainTarget(TargetId(i + 1), s) for i, s in enumerate(states))
    return Chain(ChainId(7), 5, members)


def legal_chains(length: int) -> Iterator[Chain]:
    for states in itertools.combinations_with_replacement(ORDER, length):
        chain = chain_of(*states)
        if is_legal(chain):
            yield chain


def inputs(length: int) -> Iterator[tuple[Chain, dict[TargetId, LocalState]]]:
    for chain in legal_chains(length):
        for locals_ in itertools.product(LocalState, repeat=length):
            yield chain, {TargetId(i + 1): s for i, s in enumerate(locals_)}


def states_of(chain: Chain) -> list[PublicState]:
    return [member.public_state for member in chain.targets]


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_invariants_hold_for_every_input(length):
    seen = 0
    for chain, locals_ in inputs(length):
        seen += 1
        after = next_chain(chain, locals_)
        assert is_legal(after), (chain, locals_, after)
        assert {t.target_id for t in after.targets} == {t.target_id for t in chain.targets}
        if after is not chain:
            assert after.targets != chain.targets
            assert after.chain_version == chain.chain_version + 1
            assert (after.chain_id, after.preferred_order) == (7, ())
        had_keeper = {S, L} & set(states_of(chain))
        assert not had_keeper or {S, L} & set(states_of(after)), (chain, locals_)
        for member in after.targets:
            before, now = chain.state_of(member.target_id), member.public_state
            alive = locals_[member.target_id] is not LocalState.OFFLINE
            assert now in {L, O} or alive, (chain, locals_)  # nobody dead is given work
            if now is S:
                assert before in {S, L, Y}
            if before is Y and now is S:
                assert locals_[member.target_id] is LocalState.UPTODATE
            if now is L:
                assert before in {S, L}
    assert seen > 3**length


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_loss_is_counted_where_a_rebooted_target_keeps_the_newest_data(length):
    counted = 0
    for chain, locals_ in inputs(length):
        after = next_chain(chain, locals_)
        for rebooted in locals_:
            told = with_loss(chain, after, {rebooted})
            is_lost = rebooted in chain.candidates and rebooted in after.candidates
            assert told.loss_count == is_lost
            assert told.targets == after.targets
            if is_lost:
                assert told.chain_version == chain.chain_version + 1
                counted += 1
            else:
                assert told is after
        assert with_loss(chain, after, set()) is after
    assert counted > length


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_repeating_the_judgement_settles(length):
    for chain, locals_ in inputs(length):
        steps, current = 0, chain
        while (after := next_chain(current, locals_)) is not current:
            current, steps = after, steps + 1
            assert steps <= 3, (chain, locals_)


def reference(chain: Chain, locals_: dict[TargetId, LocalState]) -> list[tuple[int, PublicState]]:
    """Write the rules a second time, as five loops and two lists,
    the way their source tells them.
    """
    new: list[tuple[int, PublicState]] = []

    def has(state):
        return any(s is state for _, s in new)

    for state in ORDER:
        for member in chain.targets:
            if member.public_state is not state:
                continue
            target, local = member.target_id, locals_[member.target_id]
            alive = local in (LocalState.ONLINE, LocalState.UPTODATE)
            if state is S:
                result = S if alive else (O if has(L) else L)
            elif state is L:
                result = O if has(S) else (S if alive else L)
            elif state is Y:
                if local is LocalState.UPTODATE:
                    result = S
                elif local is LocalState.ONLINE:
                    result = Y if has(S) else W
                else:
                    result = O
            elif local is LocalState.ONLINE and has(S) and not has(Y):
                result = Y
            else:
                result = W if alive else O
            new.append((target, result))
    if has(S):
        new = [(t, O if s is L else s) for t, s in new]
    return sorted(new, key=lambda pair: ORDER.index(pair[1]))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_agrees_with_the_rules_written_a_second_time(length):
    for chain, locals_ in inputs(length):
        after = [(t.target_id, t.public_state) for t in next_chain(chain, locals_).targets]
        expected = reference(chain, locals_)
        assert dict(after) == dict(expected), (chain, locals_)
        alive = [pair for pair in after if pair[1] is not O]
        assert alive == [pair for pair in expected if pair[1] is not O]


def test_unknown_local_state_counts_as_offline():
    assert states_of(next_chain(chain_of(S, S), {TargetId(2): LocalState.UPTODATE})) == [S, O]
    assert states_of(next_chain(chain_of(S), {})) == [L]


def test_an_illegal_chain_is_a_bug():
    for states in [(O, S), (Y, Y), (S, L), (L, L)]:
        with pytest.raises(AssertionError):
            next_chain(chain_of(*states), {})


def test_the_presumed_local_state_keeps_every_chain_as_it_is():
    for length in (1, 2, 3, 4):
        for chain in legal_chains(length):
            if Y in states_of(chain) and S not in states_of(chain):
                continue  # cannot be left standing: nobody can bring the syncing target up to date
            presumed = {t.target_id: keeping_state(t.public_state) for t in chain.targets}
            assert next_chain(chain, presumed) is chain


def test_a_failed_middle_target_goes_behind_the_living():
    after = next_chain(
        chain_of(S, S, S), {TargetId(1): LocalState.UPTODATE, TargetId(3): LocalState.UPTODATE}
    )
    assert [t.target_id for t in after.targets] == [1, 3, 2]


def rows() -> Iterator[str]:
    """Judge the second of two members, beside a first one that serves,
    syncs after one, or is absent.
    """
    yield (
        "| public state | local state | nothing serves | another serves | another serves, one "
        "syncs |"
    )
    yield "|---|---|---|---|---|"
    for state in ORDER:
        for local in LocalState:
            cells = []
            for others in ((), (S,), (S, Y)):
                chain = chain_of(*sorted((*others, state), key=ORDER.index))
                if not is_legal(chain):
                    cells.append("-")
                    continue
                me = [t.target_id for t in chain.targets if t.public_state is state][-1]
                locals_ = {t.target_id: keeping_state(t.public_state) for t in chain.targets}
                judged = next_chain(chain, locals_ | {me: local}).state_of(me)
                cells.append(judged.name.lower())
            yield f"| {state.name.lower()} | {local.name.lower()} | " + " | ".join(cells) + " |"


def test_the_published_table_is_what_the_code_does():
    text = PAGE.read_text()
    head, rest = text.split(BEGIN + "\n")
    table, tail = rest.split(END)
    expected = "\n".join(rows()) + "\n"
    if os.environ.get("EMBER_REWRITE"):
        PAGE.write_text(head + BEGIN + "\n" + expected + END + tail)
        return
    assert table == expected


ON, OFF = LocalState.ONLINE, LocalState.OFFLINE


def judged(chain, **locals_):
    """Judge until nothing changes; a, b, c are the first, second and third target."""
    heard = {TargetId(ord(name) - ord("a") + 1): local for name, local in locals_.items()}
    while (after := next_chain(chain, heard)) is not chain:
        chain = after
    assert is_legal(chain)
    return chain


def test_of_those_that_failed_together_the_first_to_come_back_serves():
    down = judged(chain_of(S, S, S))
    assert (states_of(down), down.stand_ins) == ([L, O, O], (2, 3))
    assert down.candidates == (1, 2, 3)
    assert judged(down, a=ON, b=ON).serving[0] == 1  # the last server itself, if it is there
    taken = next_chain(down, {TargetId(3): ON})
    assert [(m.target_id, m.public_state) for m in taken.targets] == [(3, S), (1, O), (2, O)]
    assert taken.stand_ins == ()
    assert judged(taken, c=ON, a=LocalState.UPTODATE, b=OFF).state_of(TargetId(1)) is W
    alone = judged(taken)
    assert (alone.keepers, alone.stand_ins) == ((3,), ())  # the others may lack something by now
    assert judged(alone, a=ON, b=ON).serving == ()


def test_who_failed_before_or_was_being_resynced_stands_in_for_nobody():
    first = judged(chain_of(S, S, S), b=LocalState.UPTODATE, c=LocalState.UPTODATE)
    down = judged(first)
    assert (down.keepers, down.stand_ins) == ((2,), (3,))
    assert judged(down, a=ON).serving == ()
    assert judged(chain_of(S, S, Y)).stand_ins == (2,)
    assert judged(chain_of(S, W, O)).stand_ins == ()
    assert judged(down, c=LocalState.UPTODATE).serving == ()  # it has not left its old service yet


def test_stand_ins_that_were_rebooted_count_a_loss():
    """Nobody would know of it later, when one of them takes over."""
    down = judged(chain_of(S, S))
    for rebooted in (1, 2):
        assert with_loss(down, down, {TargetId(rebooted)}).loss_count == 1
    assert chain_from_pb(chain_to_pb(down)) == down
    assert down.standing.keepers == (1, 2)
