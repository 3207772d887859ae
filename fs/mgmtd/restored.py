"""Who has the newest data of a chain whose record comes from a backup.  Pure.

A backup says who kept the newest data when it was made; since then others may have gone on
without them.  So every member of a restored chain is offline (fs/admin/rebase.py) until those are
heard who can know: each target that serves notes the version of its chain and who serves with it
on its disk, and acknowledges nothing under a version in which somebody has gone before that note
is durable (fs/storage/standings.py).

Why the newest note is enough, once all that it names have been heard: who keeps the newest data of
a later version descends from them.  Whoever acknowledged anything without one of them has noted
that, and whoever was brought up to date is named by the note of the one that did it, so that note
would be the newer one (tests/mgmtd/test_restored.py walks through failures and restores).

A target that has noted nothing though the newest note names it among those that served is on
another disk, empty since: the one that served may have known more, so a person has to give it up.

Does not see what nobody who was heard can know: after a restore of an old state, a restore of one
that is newer than that one, or from before a last server was given up by hand, may believe a target
of the other history, if those that served since are away.

What was noted under chains of another store (births.py) counts as nothing noted: its versions
say nothing of those of this one.

Source: decisions 0059 and 0140.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..schema.ids import TargetId
from ..schema.routing import RESTORED_LOSSES, Chain, ChainTarget, PublicState
from ..schema.standing import Standing
from ..schema.status import FsError, Status

Heard = Mapping[TargetId, Standing | None]
"""What each target that was heard has noted; None: nothing."""


CHAIN_VERSIONS: Final = 1 << 16
"""A restored chain goes on so far beyond its backup.

Of 32 bits; a chain that changes once a minute has as many in 45 days.
"""


def guarded(chain: Chain, now_ns: int) -> Chain:
    """Return a chain nobody of which serves until it is known who has the newest data."""
    return replace(
        chain,
        chain_version=chain.chain_version + CHAIN_VERSIONS,
        loss_count=chain.loss_count + RESTORED_LOSSES,
        targets=tuple(replace(m, public_state=PublicState.OFFLINE) for m in chain.targets),
        generation=max(now_ns, chain.generation + 1),
        restored=chain.restored or chain.standing,
        stand_ins=(),  # of the time of the backup; all of them have to be heard
    )


def settled(chain: Chain, heard: Heard) -> Chain:
    """Return the chain with its last server found: it is waited for, others resync from it.

    The same object while that cannot be known yet, or when the chain is not one that was restored.
    """
    if chain.restored is None or missing(chain, heard):
        return chain
    newest = _newest(chain, heard)
    return _believing(chain, newest.keepers, heard)


def outranked(chain: Chain, noted: Standing | None) -> bool:
    """Return whether a note counts as newer than the chain itself, though the chain goes on.

    So it is after a restore by a clock that was behind, and after a manager of a
    release that knows no generations.
    """
    if noted is None or not _is_about(noted, chain) or chain.restored is not None:
        return False
    return noted.age_key > (chain.generation, chain.chain_version)


def beyond(chain: Chain, heard: Heard) -> Chain:
    """Return the chain with numbers beyond all notes,
    so that after another restore its own count as the newer ones.
    """
    above = [s for s in heard.values() if s is not None and outranked(chain, s)]
    if not above:
        return chain
    newest = max(above, key=lambda standing: standing.age_key)
    version = max(chain.chain_version, newest.chain_version) + 1
    return replace(chain, generation=newest.generation, chain_version=version)


def missing(chain: Chain, heard: Heard) -> Sequence[TargetId]:
    """Return the targets that have to be heard, as far as is known now; empty: nobody has.

    If only targets that are no members in the backup have the newest data: those.
    """
    newest = _newest(chain, heard)
    own = _own(chain, heard)
    unheard = [t for t in newest.heirs if t not in own or _has_forgotten(t, newest, own)]
    if unheard or any(chain.state_of(t) is not None for t in newest.keepers):
        return unheard
    return list(newest.keepers)


def given_up(chain: Chain, heard: Heard, lost: TargetId, chosen: TargetId | None) -> Chain:
    """Return the chain without waiting for `lost`, or for anybody else:
    the newest of those that were heard is believed.

    Counts as a loss.

    Raises:
        FsError: UNSAFE_CHANGE when the chain does not wait for `lost`, or when nobody was heard;
            CONFLICTING_CHANGE when `chosen` is no member that was heard.
    """
    name = f"chain {chain.chain_id}, which was restored,"
    awaited = missing(chain, heard)
    if lost not in awaited:
        others = ", ".join(map(str, awaited)) or "nobody"
        detail = f"{name} does not wait for target {lost}, but for {others}"
        raise FsError(Status.UNSAFE_CHANGE, detail)
    members = [m.target_id for m in chain.targets]
    candidates = [t for t in members if t in heard and t != lost]
    if chosen is not None and chosen not in candidates:
        raise FsError(Status.CONFLICTING_CHANGE, f"{name} has not heard of a member {chosen}")
    after = _believing(chain, candidates if chosen is None else [chosen], heard)
    if after is chain:
        raise FsError(Status.UNSAFE_CHANGE, f"{name} has heard of no member; start their nodes")
    return replace(after, loss_count=chain.loss_count + 1)


def _is_about(noted: Standing, chain: Chain) -> bool:
    return noted.chain_id == chain.chain_id and not noted.is_of_other_store(chain.birth_ns)


def _own(chain: Chain, heard: Heard) -> Heard:
    """Return what was heard without what was noted under another store."""
    other = {t: None for t, s in heard.items() if s and s.is_of_other_store(chain.birth_ns)}
    return {**heard, **other} if other else heard


def _newest(chain: Chain, heard: Heard) -> Standing:
    assert chain.restored is not None, chain
    noted = [s for s in heard.values() if s is not None and _is_about(s, chain)]
    return max((chain.restored, *noted), key=lambda standing: standing.age_key)


def _has_forgotten(target: TargetId, newest: Standing, heard: Heard) -> bool:
    """Return whether a disk does not remember what another one says of it:
    it is not the one that served then, so it was not heard.

    A target that was told to serve, and died before it had noted that, looks the same; to wait
    for a person then does no harm.
    """
    others = [s for t, s in heard.items() if t != target and s is not None]
    return heard.get(target) is None and any(
        target in s.keepers and (s.chain_id, s.age_key) == (newest.chain_id, newest.age_key)
        for s in others
    )


def _believing(chain: Chain, keepers: Sequence[TargetId], heard: Heard) -> Chain:
    """Return the chain that waits for the one of `keepers` with the latest note;
    the same object if no one is a member.
    """
    members = [t for t in keepers if chain.state_of(t) is not None]
    if not members:
        return chain

    def age_key(target_id: TargetId) -> tuple[int, int]:
        noted = heard.get(target_id)
        return noted.age_key if noted is not None and _is_about(noted, chain) else (0, 0)

    last = max(members, key=age_key)
    others = [m.target_id for m in chain.targets if m.target_id != last]
    newest = _newest(chain, heard)
    return replace(
        chain,
        chain_version=max(chain.chain_version, newest.chain_version) + 1,
        generation=max(chain.generation, newest.generation),
        targets=(
            ChainTarget(last, PublicState.LASTSRV),
            *(ChainTarget(t, PublicState.OFFLINE) for t in others),
        ),
        restored=None,
    )
