"""Births that chains are given later: by a person, for disks of a store that is gone,
and once for clusters of a release that noted none.

Managers that lost a store of their own make chains anew, under another birth than the disks noted
(births.py), though the names, which metadata services keep elsewhere, are those of these disks.  A
person may have the chains take the birth of the disks: these are believed as after a restore, by
what they noted themselves (restored.py).

What speaks against it is found here as far as managers can know:
    - a namespace made anew would give the numbers, and with them the chunks, of old files to new
      ones.  It is younger than what the disks served last: a watermark rises only under a lease,
      and the managers that gave it ended with their store;
    - chains made otherwise than before would be asked for chunks of others;
    - a disk that served under the new chains would be refused in its turn.

Pure.  Decision: specs/decisions/0147-accepting-disks.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from ..schema.ids import ChainId, TargetId
from ..schema.routing import Chain, LocalState, RoutingInfo
from ..schema.standing import Standing
from .restored import Heard, guarded

NAMESPACE_AGE_S_MIN: Final = 3600
"""A namespace is so much older than what the disks served last:
more than clocks differ, and a younger one holds little.
"""


def obstacles(
    info: RoutingInfo,
    heard: Heard,
    watermarks: Mapping[TargetId, int],
    namespace_birth_ns: int,
) -> list[str]:
    """Return what speaks against accepting disks of another store, for people;
    empty: nothing that is known.

    Args:
        info: the chains that were made anew.
        heard: what each target that was heard has noted.
        watermarks: of the targets that are refused: wall time in seconds until
            which they served at least.
        namespace_birth_ns: wall time at which the root directory was made.
    """
    if not watermarks:
        return ["no disk of another store has been heard"]
    found = []
    births = _births(info, heard)
    if len(births) > 1:
        times = ", ".join(_time(ns) for ns in sorted(births))
        found.append(
            f"the disks are of several stores, made {times}: leave out those that are not wanted"
        )
    for target_id, noted in sorted(_noted(info, heard).items()):
        chain_id = info.target(target_id).chain_id
        if noted.birth_ns not in births and noted.birth_ns:
            found.append(
                f"target {target_id} has served under the chains of now: empty its disk first"
            )
        elif target_id in watermarks and noted.chain_id != chain_id:
            found.append(
                f"target {target_id} served chain {noted.chain_id}, and is in chain {chain_id}:"
                " the chains have to be made as they were"
            )
    for chain in info.chains.values():
        if chain.serving:
            new = " and ".join(map(str, chain.serving))
            found.append(
                f"chain {chain.chain_id} serves already, from target {new}: stop its node, and "
                "empty its disk"
            )
    served_until_s = max(watermarks.values())
    if served_until_s - namespace_birth_ns // 10**9 < NAMESPACE_AGE_S_MIN:
        found.append(
            f"the file system was made {_time(namespace_birth_ns)}, the disks served until"
            f" {_time(served_until_s * 10**9)}: its names are not those of their chunks; restore "
            "the metadata first"
        )
    return found


def adopted(info: RoutingInfo, heard: Heard, now_ns: int) -> dict[ChainId, Chain]:
    """Return all chains under the birth that the disks noted,
    waiting for those who can know their newest data.

    Nothing of `obstacles` speaks against it.
    """
    (birth_ns,) = _births(info, heard)
    chains = {}
    for chain in info.chains.values():
        members = tuple(m.target_id for m in chain.targets)
        since = Standing(chain.chain_id, 0, 0, members, None, birth_ns)
        waiting = guarded(replace(chain, birth_ns=birth_ns), now_ns)
        chains[chain.chain_id] = replace(waiting, restored=since)
    return chains


def given_births(
    info: RoutingInfo, heard: Heard, local: Mapping[TargetId, LocalState], now_ns: int
) -> dict[ChainId, Chain]:
    """Return the chains that have no birth yet with one,
    once every member of all chains serves and says so; empty: nothing is to be done.

    That of the other chains, else the one that disks have noted: an earlier release of managers
    forgets it.  Disks of several births are left alone.
    """
    unborn = [c for c in info.chains.values() if not c.birth_ns]
    if not unborn or not all(_is_whole(c, heard, local) for c in info.chains.values()):
        return {}
    known = {c.birth_ns for c in info.chains.values()} - {0}
    known |= {noted.birth_ns for noted in _noted(info, heard).values()} - {0}
    if len(known) > 1:
        return {}
    birth_ns = known.pop() if known else now_ns
    return {
        c.chain_id: replace(c, birth_ns=birth_ns, chain_version=c.chain_version + 1) for c in unborn
    }


def _is_whole(chain: Chain, heard: Heard, local: Mapping[TargetId, LocalState]) -> bool:
    return len(chain.serving) == len(chain.targets) and all(
        t in heard and local.get(t) is LocalState.UPTODATE for t in chain.serving
    )


def _noted(info: RoutingInfo, heard: Heard) -> dict[TargetId, Standing]:
    """Return what members of chains have noted."""
    members = {m.target_id for c in info.chains.values() for m in c.targets}
    return {t: s for t, s in heard.items() if s is not None and t in members}


def _births(info: RoutingInfo, heard: Heard) -> set[int]:
    """Return the births that members noted and that are not those of their chains."""
    noted = _noted(info, heard)
    return {
        s.birth_ns
        for t, s in noted.items()
        if s.is_of_other_store(info.chain(info.target(t).chain_id).birth_ns)
    }


def _time(wall_ns: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # of a clock that was far off
        return f"at {wall_ns} ns"
