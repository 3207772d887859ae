"""The shell around `lease.decide`: reads and writes the lease record, watches the owner,
knows when we may act.

Concurrency: `step` and `release` are called by one task; `may_act` and `record` by anybody.
"""

import logging
from dataclasses import replace
from typing import Final

import trio

from ..rpc.api import Channels
from ..runtime.ports import Clock
from ..schema.config import MgmtdSection, certain_s
from .lease import (
    NOBODY,
    Candidate,
    Held,
    LeaseRecord,
    Observation,
    Verdict,
    decide,
    extended,
    is_owned,
    may_act,
    observe,
    released,
    taken,
)
from .probe import Proof, probe
from .store import Store

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S: Final = 0.25
"""Between two probes of the owner: a killed primary is replaced within about this."""

PAUSE_S_MIN: Final = 0.02
"""Between two steps, however urgent."""


class Election:
    """One manager's part in the election."""

    def __init__(
        self, me: Candidate, store: Store, clock: Clock, channels: Channels, section: MgmtdSection
    ) -> None:
        self.me = me
        self.record = LeaseRecord()
        """As last read or written; whom others should turn to."""
        self._store = store
        self._clock = clock
        self._channels = channels
        self._section = section
        self._held: Held | None = None
        self._observation: Observation | None = None

    def adopt(self, section: MgmtdSection) -> None:
        """Go on with other settings; the times of the lease must be the same."""
        self._section = section

    @property
    def epoch(self) -> int:
        """The epoch we hold; 0 for none."""
        return self._held.epoch if self._held is not None else 0

    def may_act(self) -> bool:
        """Tell whether we are the primary, beyond doubt, at this moment."""
        now_s = self._clock.monotonic_s()
        return may_act(self._held, now_s=now_s, lease_s=self._section.primary_lease_s)

    @property
    def margin_s(self) -> float:
        """Seconds for which we may still act; negative,
        or 0 for one who holds nothing: we may not.
        """
        if self._held is None:
            return 0.0
        end_s = self._held.confirmed_s + certain_s(self._section.primary_lease_s)
        return end_s - self._clock.monotonic_s()

    def forget(self) -> None:
        """Hold nothing any more, because a write of ours had no certain outcome."""
        self._held = None

    async def step(self) -> Verdict:
        """Read the record, decide, write; return what was decided.

        Raises:
            FsError: the store did not answer; what we hold lapses by itself.
        """
        started_s, now_ns = self._clock.monotonic_s(), self._clock.wall_ns()
        lease_s = self._section.primary_lease_s
        verdict = Verdict.FOLLOW

        def choose(record: LeaseRecord) -> LeaseRecord:
            nonlocal verdict
            verdict = decide(
                record,
                self.me,
                held=self._held,
                observation=self._observation,
                now_s=started_s,
                lease_s=lease_s,
                extend_interval_s=self._section.primary_extend_interval_s,
            )
            match verdict:
                case Verdict.TAKE_OVER:
                    return taken(record, self.me, now_ns=now_ns, lease_s=lease_s)
                case Verdict.EXTEND:
                    return extended(record, now_ns=now_ns, lease_s=lease_s)
                case Verdict.KEEP | Verdict.GIVE_UP | Verdict.FOLLOW:
                    return record

        _, self.record = await self._store.elect(choose)
        self._note(verdict, started_s)
        return verdict

    def _note(self, verdict: Verdict, started_s: float) -> None:
        match verdict:
            case Verdict.TAKE_OVER | Verdict.EXTEND:
                self._held = Held(self.record.epoch, started_s)
            case Verdict.GIVE_UP:
                self._held = None
                logger.warning(
                    "node %d lost the primary's lease to node %d",
                    self.me.node_id,
                    self.record.node_id,
                )
            case Verdict.KEEP | Verdict.FOLLOW:
                pass
        seen_s = self._clock.monotonic_s()  # not before the write that made the record began
        self._observation = observe(self._observation, self.record, seen_s)

    async def wait_turn(self) -> None:
        """Wait until the next step of one who holds nothing is due.

        Watches the owner meanwhile: the wait ends when its process is proved gone,
        or its lease may have lapsed.
        """
        wait_s = self._section.primary_extend_interval_s
        seen = self._observation
        if seen is not None:
            lapse_s = seen.since_s + self._section.primary_lease_s - self._clock.monotonic_s()
            wait_s = max(PAUSE_S_MIN, min(wait_s, lapse_s))
        with trio.move_on_after(wait_s):
            while True:
                await trio.sleep(PAUSE_S_MIN)
                await self._watch_owner()
                if self._observation is not None and self._observation.is_owner_gone:
                    return
                await trio.sleep(WATCH_INTERVAL_S)

    async def _watch_owner(self) -> None:
        seen = self._observation
        if seen is None or seen.record.node_id in {NOBODY, self.me.node_id} or seen.is_owner_gone:
            return
        record = seen.record
        proof, _ = await probe(
            self._channels,
            record.address,
            record.node_id,
            record.incarnation,
            timeout_s=self._section.probe_timeout_s,
        )
        if proof is Proof.GONE:
            logger.warning("the primary, node %d at %s, is gone", record.node_id, record.address)
            self._observation = replace(seen, is_owner_gone=True)

    async def release(self) -> None:
        """Give the lease up, so that another manager need not wait for its end."""
        held, self._held = self._held, None
        if held is None:
            return

        def choose(record: LeaseRecord) -> LeaseRecord:
            return released(record) if is_owned(record, self.me, held.epoch) else record

        _, self.record = await self._store.elect(choose)
