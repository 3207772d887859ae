"""A few histories of tests/meta/histories.py, what it must find, and that its judge is strict."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fs.schema.status import Status
from tests.meta.deeds import DONE, Deed
from tests.meta.histories import History, run_many
from tests.meta.model import SUPERUSER, Model
from tests.meta.serial import Event, NotSerialError, require_serial
from tests.sim.determinism import run_deterministic

pytestmark = pytest.mark.thorough

ROOT_DIRECTORY = Path(__file__).resolve().parents[2]
ROOT = 1


def test_histories_are_strictly_serializable():
    outcomes = run_many(range(1, 9), {})
    assert [o["problems"] for o in outcomes] == [[]] * 8
    assert sum(o["done"] for o in outcomes) > 600, "most deeds were refused"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ["idempotency_record_ignored", "readers_lag"])
def test_a_mutant_is_found(mutant):
    command = ["-m", "tests.meta.histories", "--count", "5", "--broken", mutant]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT_DIRECTORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "NotSerialError" in done.stdout, done.stdout + done.stderr


# ---- the judge -----------------------------------------------------------------------------------


def deed(kind, *args):
    return Deed(kind, SUPERUSER, args)


def test_what_overlaps_may_stand_in_either_order():
    made = Event(deed("mkdir", ROOT, b"d", 0o755), 1, 4, (DONE, 7))
    missed = Event(deed("lookup", ROOT, b"d"), 2, 3, Status.NOT_FOUND)
    require_serial([made, missed], Model())


def test_what_was_answered_before_stands_before():
    made = Event(deed("mkdir", ROOT, b"d", 0o755), 1, 2, (DONE, 7))
    missed = Event(deed("lookup", ROOT, b"d"), 3, 4, Status.NOT_FOUND)
    with pytest.raises(NotSerialError, match="lookup"):
        require_serial([made, missed], Model())


@pytest.mark.parametrize("happened", [False, True])
def test_a_deed_of_unknown_outcome_may_have_happened_or_not(happened):
    tried = Event(deed("mkdir", ROOT, b"d", 0o750), 1)
    facts = ("dir", 0o750, 0, 0, 2, 0, b"", 0, None, None, "")
    answer = (DONE, 9, facts) if happened else Status.NOT_FOUND
    first = Event(deed("lookup", ROOT, b"d"), 2, 3, Status.NOT_FOUND)
    then = Event(deed("lookup", ROOT, b"d"), 4, 5, answer)
    require_serial([tried, first, then], Model())
    gone = replace(first, begin_s=6, end_s=7)
    if happened:
        with pytest.raises(NotSerialError):
            require_serial([tried, then, gone], Model())


def test_two_who_swap_directories_into_each_other():
    """Each of two renames is allowed alone; together they would close a loop."""
    prelude = [
        Event(deed("mkdir", ROOT, b"a", 0o755), 1, 2, (DONE, 7)),
        Event(deed("mkdir", ROOT, b"b", 0o755), 3, 4, (DONE, 8)),
    ]
    one = Event(deed("rename", ROOT, b"a", 8, b"a", "replace"), 5, 8, (DONE, 7, 0))
    two = Event(deed("rename", ROOT, b"b", 7, b"b", "replace"), 6, 7, (DONE, 8, 0))
    with pytest.raises(NotSerialError):
        require_serial([*prelude, one, two], Model())
    require_serial([*prelude, one, replace(two, seen=Status.INVALID_ARGUMENT)], Model())


def damaged(event):
    """The event with an answer that nothing explains."""
    kind, seen = event.deed.kind, event.seen
    if kind == "append":
        return replace(event, seen=(DONE, seen[1] + 1))
    if kind in {"attr", "lookup"}:
        facts = list(seen[2])
        facts[4] += 50  # one more may be what somebody else did meanwhile
        return replace(event, seen=(DONE, seen[1], tuple(facts)))
    if kind == "list":
        return replace(event, seen=(DONE, (*seen[1], (b"z", 99, None))))
    return replace(event, seen=(DONE, ROOT, *seen[2:]))


def test_damaged_histories_are_rejected():
    history = History(3)
    run_deterministic(history.run, 3)
    source = random.Random(5)
    where = [i for i, e in enumerate(history.events) if isinstance(e.seen, tuple) and e.seen[1:]]
    for i in source.sample(where, 20):
        events = list(history.events)
        events[i] = damaged(events[i])
        with pytest.raises(NotSerialError):
            require_serial(events, Model())
