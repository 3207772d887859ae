"""Looking before sleeping: where events come soon, as long as nobody else wants the core."""

from fs.runtime.looking import (
    CROWDED_S,
    ENOUGH,
    ENOUGH_MAX,
    LEFT_AFTER_S,
    PASSED_MAX,
    REST_S_MAX,
    REST_S_MIN,
    Looking,
)

LIMIT_S = 0.0003
LOOK_S = 0.00001
EVENT = [(5, 1)]


class Machine:
    """A clock, and a poll that says what it was asked for;
    each event comes so long after the wait for it began.
    """

    def __init__(self):
        self.now_s = 1000.0
        self.comes_s = None
        self.slept_s = []
        self.looked_count = 0
        self.yield_s = 0.0

    def poll(self, timeout_s, _count_max):
        if timeout_s == 0.0:
            self.looked_count += 1
            self.now_s += LOOK_S
        else:
            self.slept_s.append(timeout_s)
            until_s = self.now_s + timeout_s
            self.now_s = (
                until_s if self.comes_s is None else min(max(self.comes_s, self.now_s), until_s)
            )
        if self.comes_s is not None and self.now_s >= self.comes_s:
            self.comes_s = None
            return EVENT
        return []

    def yield_core(self):
        self.now_s += self.yield_s

    def looking(self, limit_s=LIMIT_S):
        found = Looking(self.poll, 64, time_s=lambda: self.now_s, yield_core=self.yield_core)
        found.limit_s = limit_s
        return found

    def wait(self, looking, comes_in_s, timeout_s=60.0):
        """Return what came, and whether it was slept for."""
        self.comes_s = None if comes_in_s is None else self.now_s + comes_in_s
        count = len(self.slept_s)
        return looking.wait(timeout_s), len(self.slept_s) > count


def settled(machine, looking, enough=ENOUGH):
    """Make waits short for so long that the next one looks first."""
    for _ in range(enough):
        assert machine.wait(looking, LIMIT_S / 2) == (EVENT, True)


def test_what_comes_soon_is_looked_for_once_enough_has():
    machine = Machine()
    looking = machine.looking()
    settled(machine, looking)
    for _ in range(10):
        assert machine.wait(looking, LIMIT_S / 2) == (EVENT, False)


def test_after_a_long_wait_nobody_looks_until_waits_are_short_again():
    machine = Machine()
    looking = machine.looking()
    settled(machine, looking)
    assert machine.wait(looking, 10 * LIMIT_S) == (EVENT, True)
    settled(machine, looking, 2 * ENOUGH)
    assert machine.wait(looking, LIMIT_S / 2) == (EVENT, False)


def test_where_a_long_wait_follows_a_few_short_ones_nobody_looks_soon():
    machine = Machine()
    looking = machine.looking()

    def rounds(count):
        before = machine.looked_count
        for _ in range(count):
            for _ in range(4):
                machine.wait(looking, LIMIT_S / 2)
            machine.wait(looking, 10 * LIMIT_S)
        return machine.looked_count - before

    assert rounds(20) > 0
    assert rounds(100) == 0
    settled(machine, looking, 4 * ENOUGH)
    for _ in range(100):
        assert machine.wait(looking, LIMIT_S / 2) == (EVENT, False)
    assert machine.wait(looking, 10 * LIMIT_S) == (EVENT, True)
    settled(machine, looking, 2 * ENOUGH)
    assert machine.wait(looking, LIMIT_S / 2) == (EVENT, False), "what was found has made up for it"


def test_a_lone_short_wait_between_long_ones_has_nobody_look():
    machine = Machine()
    looking = machine.looking()
    for _ in range(10):
        machine.wait(looking, 10 * LIMIT_S)
        machine.wait(looking, LIMIT_S / 2)
    assert machine.looked_count == 0


def test_it_looks_no_longer_than_it_may():
    machine = Machine()
    looking = machine.looking()
    settled(machine, looking)
    began_s = machine.now_s
    machine.wait(looking, None)
    assert machine.looked_count * LOOK_S <= LIMIT_S + 2 * LOOK_S
    assert machine.now_s - began_s <= 60.0 + 2 * LOOK_S, "a time limit is kept"
    machine.wait(looking, None)
    assert machine.slept_s[-1] == 60.0


def test_a_time_limit_that_is_sooner_is_kept():
    machine = Machine()
    looking = machine.looking()
    settled(machine, looking)
    began_s = machine.now_s
    assert machine.wait(looking, None, timeout_s=LIMIT_S / 3) == ([], False)
    assert machine.now_s - began_s <= LIMIT_S / 3 + 2 * LOOK_S


def test_a_wait_that_only_its_time_limit_ends_is_not_short():
    machine = Machine()
    looking = machine.looking()
    for _ in range(10):
        machine.wait(looking, None, timeout_s=LIMIT_S / 3)
    assert machine.looked_count == 0


def test_who_does_not_wait_does_not_look():
    machine = Machine()
    looking = machine.looking()
    settled(machine, looking)
    assert looking.wait(0.0) == []
    assert machine.looked_count == 1


def test_without_a_limit_it_sleeps_at_once():
    machine = Machine()
    looking = machine.looking(limit_s=0.0)
    for _ in range(10):
        assert machine.wait(looking, LIMIT_S / 2) == (EVENT, True)


def test_where_others_want_the_core_it_rests_for_ever_longer():
    machine = Machine()
    looking = machine.looking()
    settled(machine, looking)
    machine.yield_s = 2 * CROWDED_S
    rests = []
    for _ in range(12):
        began_s, looked_count = machine.now_s, machine.looked_count
        while machine.looked_count == looked_count:
            assert machine.wait(looking, LIMIT_S / 2)[0] == EVENT
        rests.append(machine.now_s - began_s)
    assert rests[0] < REST_S_MIN / 2, "it has not met anybody yet"
    assert REST_S_MIN / 2 <= rests[1] <= 2 * REST_S_MIN
    assert rests == sorted(rests)
    assert REST_S_MAX / 2 <= rests[-1] <= 2 * REST_S_MAX


def test_where_they_want_it_no_more_the_next_rest_is_short():
    machine = Machine()
    looking = machine.looking()
    settled(machine, looking)

    def crowd():
        machine.yield_s = 2 * CROWDED_S
        machine.wait(looking, 5 * CROWDED_S)
        machine.yield_s = 0.0
        return machine.now_s

    def again():
        for _ in range(3 * ENOUGH_MAX):
            machine.wait(looking, LIMIT_S / 2)

    for _ in range(4):
        crowd()
        machine.now_s += REST_S_MAX
        again()
    machine.now_s += 3 * REST_S_MAX
    began_s = crowd()
    for _ in range(ENOUGH_MAX):
        machine.wait(looking, LIMIT_S / 2)
    machine.now_s = began_s + 1.5 * REST_S_MIN
    assert machine.wait(looking, LIMIT_S / 2) == (EVENT, False)


def test_what_is_left_is_done_once_nothing_has_come_for_a_moment():
    machine, done = Machine(), []
    looking = machine.looking()
    settled(machine, looking)
    looking.leave(lambda: done.append(machine.now_s))
    began_s = machine.now_s
    assert machine.wait(looking, LIMIT_S / 2) == ([], False)
    assert len(done) == 1 and LEFT_AFTER_S <= done[0] - began_s < LIMIT_S / 2
    assert machine.wait(looking, LIMIT_S / 2) == (EVENT, False)
    assert len(done) == 1


def test_what_comes_soon_goes_before_what_is_left():
    machine, done = Machine(), []
    looking = machine.looking()
    settled(machine, looking)
    looking.leave(lambda: done.append(machine.now_s))
    for _ in range(5):
        assert machine.wait(looking, LOOK_S / 2) == (EVENT, False)
    assert not done


def test_what_is_left_is_done_before_the_loop_sleeps_and_behind_what_is_there():
    for limit_s in (0.0, LIMIT_S):
        machine, done = Machine(), []
        looking = machine.looking(limit_s)
        looking.leave(lambda done=done: done.append(1))
        assert machine.wait(looking, 0.0) == (EVENT, False)
        assert looking.wait(0.0) == [] and not done  # somebody has a turn next
        assert machine.wait(looking, None, timeout_s=1.0) == ([], False)
        assert done == [1]  # and what that made runnable is run before the loop sleeps
        assert machine.wait(looking, None, timeout_s=1.0) == ([], True)


def test_what_is_left_is_done_also_where_the_loop_never_comes_to_sleep():
    for limit_s, timeouts_s in ((0.0, (60.0,)), (LIMIT_S, (60.0,)), (LIMIT_S, (60.0, 0.0))):
        machine, done = Machine(), []
        looking = machine.looking(limit_s)
        for rounds in range(3):
            looking.leave(lambda done=done: done.append(1))
            for number in range(PASSED_MAX + 1):
                assert len(done) == rounds, number
                timeout_s = timeouts_s[number % len(timeouts_s)]
                assert machine.wait(looking, 0.0, timeout_s)[0] == EVENT
            assert len(done) == rounds + 1
