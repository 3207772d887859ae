"""Is there an order of deeds, one after the other, that explains all that was answered?  Pure.

Strict serializability of a history of the whole namespace: some order that keeps A
before B whenever A was answered before B was asked makes the model
(tests/meta/model.py) answer each deed as it was answered.  A deed whose outcome nobody
knows may stand anywhere after it was asked, or nowhere.

The search is that of tests/sim/linearizable.py with a namespace for a state: depth first, those
answered earliest first, with a memory of (done set, state).  A reader, or a deed that was
refused, is taken as soon as it fits: it changes nothing wherever it stands, so it never needs to
come later.  Only the others branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fs.schema.status import Status
from tests.meta.deeds import QUIET, Deed, Expectation
from tests.meta.model import Model
from tests.sim.linearizable import FOREVER, may_be_next

STATE_COUNT_MAX = 20_000
"""A history that takes more is given up as not explained; real ones take a few hundred."""


@dataclass
class Event:
    """A deed of a history; begin and end are positions among all begins and ends."""

    deed: Deed
    begin_s: float
    end_s: float = FOREVER
    seen: object = None
    """The answer; None: unknown."""
    client: str = ""

    def changes_nothing(self) -> bool:
        """Whether its answer says so."""
        return self.deed.kind in QUIET or isinstance(self.seen, Status)

    def __str__(self):
        return f"[{self.begin_s}, {self.end_s}] {self.client}: {self.deed} -> {self.seen}"


class NotSerialError(AssertionError):
    """No order explains the history."""


@dataclass
class Search:
    """One search."""

    events: Sequence[Event]
    expect: type[Expectation] = Expectation
    state_count: int = 0
    best: tuple = (0, None)
    """(deeds explained, (done, model)) of the furthest state reached."""

    def order_exists(self, model: Model) -> bool:
        self.events = sorted(self.events, key=lambda e: e.begin_s)
        known = sum(1 << i for i, e in enumerate(self.events) if e.end_s < FOREVER)
        tried: set[tuple[int, object]] = set()
        stack = [(0, model.copy())]
        while stack:
            done, here = stack.pop()
            done = self._take_at_once(done, here)
            if done & known == known:
                return True
            if (done, here.state()) in tried:
                continue
            tried.add((done, here.state()))
            self.state_count += 1
            if self.state_count > STATE_COUNT_MAX:
                return False
            self._note(done, here)
            stack.extend(self._branches(done, here))
        return False

    def _note(self, done: int, here: Model) -> None:
        if done.bit_count() > self.best[0]:
            self.best = (done.bit_count(), (done, here))

    def _take_at_once(self, done: int, here: Model) -> int:
        """Add what fits and changes nothing, until nothing does."""
        while True:
            fitting = [
                i
                for i in may_be_next(self.events, done)
                if self.events[i].changes_nothing() and self._fits_now(here, self.events[i])
            ]
            if not fitting:
                return done
            for i in fitting:
                done |= 1 << i

    def _fits_now(self, here: Model, event: Event) -> bool:
        # A reader may teach the model which inode something is; a deed that the
        # model grants would change it.
        return self._fits(here if event.deed.kind in QUIET else here.copy(), event)

    def _fits(self, model: Model, event: Event) -> bool:
        return self.expect(model, event.deed).agrees(event.seen)

    def _branches(self, done: int, here: Model) -> list[tuple[int, Model]]:
        """What may come next, the most promising last."""
        found = []
        for i in sorted(may_be_next(self.events, done), key=lambda i: -self.events[i].end_s):
            event, trial = self.events[i], here.copy()
            if not event.changes_nothing() and self._fits(trial, event):
                found.append((done | 1 << i, trial))
        return found

    def explain_failure(self) -> str:
        """Say how far the best attempt came, and what would not fit then."""
        count, reached = self.best
        if reached is None:
            return "not even the first deed can be explained"
        done, model = reached
        lines = [
            (
                f"{count} of {len(self.events)} deeds explained ({self.state_count} states); then "
                "none fits of"
            )
        ]
        for i in may_be_next(self.events, done):
            event = self.events[i]
            answer = self.expect(model.copy(), event.deed).answer
            lines.append(f"  {event}; the model says {answer}")
        return "\n".join(lines)


def require_serial(
    events: Sequence[Event], model: Model, expect: type[Expectation] = Expectation
) -> Search:
    """Raise NotSerialError unless some order explains the history from the state of `model`."""
    search = Search(events, expect)
    if not search.order_exists(model):
        raise NotSerialError(search.explain_failure())
    return search
