"""What names certainly lead to, and which are absent:
the kept names alone, against a model of directories, leases, late replies and losses.
"""

import copy
import random
from dataclasses import dataclass, field

import pytest

from fs.client.vfs import leased_names
from fs.client.vfs.leased_names import ABSENT, LeasedNames
from fs.client.vfs.ports import Caller
from fs.schema.name_lease import LEASE_S, SURE_S, WAIT_S
from fs.schema.proto.common_pb2 import DIRECTORY, InodePb
from tests.examples import first_quick

ME, OTHER = "m" * 32, "o" * 32
ROOT, BOB = Caller(0, 0), Caller(7, 7)


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def inode(inode_id=5, *, client_id=ME, is_ending=False, uid=0, mode=0o755, changed=False):
    made = InodePb(inode_id=inode_id, type=DIRECTORY, uid=uid, mode=mode, btime_ns=7)
    made.ctime_ns = 7 + changed
    made.directory.lease_client_id, made.directory.is_lease_ending = client_id, is_ending
    return made


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def leased(clock):
    return LeasedNames(ME, 10, clock)


def make(leased, *, caller=ROOT, **fields):
    leased.note_made(inode(**fields), leased.ask(caller, ()))


def change(leased, name, *, caller=ROOT, leads_to=None, **fields):
    asked = leased.ask(caller, ((5, name),))
    leased.note_told([inode(**fields, changed=True)], asked)
    leased.end(asked, leads_to)


def test_names_that_were_never_given_are_absent_while_the_lease_lasts(leased, clock):
    make(leased)
    change(leased, b"a")
    assert leased.is_absent(5, b"b", ROOT)
    assert not leased.is_absent(5, b"a", ROOT)
    assert not leased.is_absent(6, b"b", ROOT)
    assert (leased.hit_count, leased.miss_count) == (1, 1)
    clock.now_s += LEASE_S - 0.01
    assert leased.is_absent(5, b"b", ROOT)
    clock.now_s += 0.01
    assert not leased.is_absent(5, b"b", ROOT)


def test_it_counts_from_when_meta_was_asked_and_goes_on_with_the_next_change(leased, clock):
    make(leased)
    clock.now_s += 10
    asked = leased.ask(ROOT, ((5, b"a"),))
    clock.now_s += LEASE_S
    leased.note_told([inode(changed=True)], asked)
    assert not leased.is_absent(5, b"b", ROOT)
    change(leased, b"c")
    assert leased.is_absent(5, b"b", ROOT)
    assert not leased.is_absent(5, b"a", ROOT)


def test_a_name_may_be_there_from_when_meta_is_asked_to_make_it(leased):
    make(leased)
    leased.ask(ROOT, ((5, b"a"), (5, b"b")))
    assert not leased.is_absent(5, b"a", ROOT)
    assert not leased.is_absent(5, b"b", ROOT)


@pytest.mark.parametrize("client_id", ["", OTHER])
def test_who_is_not_named_any_more_forgets_for_good(leased, client_id):
    make(leased)
    change(leased, b"a", client_id=client_id)
    assert not leased.may_know(5)
    change(leased, b"c")
    assert not leased.is_absent(5, b"b", ROOT)


def test_a_reply_that_does_not_renew_leaves_what_is_left(leased, clock):
    make(leased)
    clock.now_s += LEASE_S / 2
    change(leased, b"a", is_ending=True)
    assert leased.is_absent(5, b"b", ROOT)
    clock.now_s += LEASE_S / 2
    assert not leased.is_absent(5, b"b", ROOT)
    change(leased, b"c")
    assert leased.is_absent(5, b"b", ROOT)
    assert not leased.is_absent(5, b"a", ROOT)


@pytest.mark.parametrize(
    "fields", [{"client_id": ""}, {"client_id": OTHER}, {"is_ending": True}, {"changed": True}]
)
def test_a_directory_is_not_known_unless_it_is_ours_and_new(leased, fields):
    make(leased, **fields)
    change(leased, b"a")
    assert not leased.is_absent(5, b"b", ROOT)


def test_a_directory_that_was_changed_before_its_making_was_heard_of_is_not_known(
    leased, monkeypatch
):
    asked = leased.ask(ROOT, ())
    leased.ask(ROOT, ((5, b"a"),))
    leased.note_made(inode(), asked)
    assert not leased.may_know(5)
    asked = leased.ask(ROOT, ())
    leased.note_made(inode(), asked)
    assert leased.may_know(5)
    monkeypatch.setattr(leased_names, "TOUCHED_COUNT_MAX", 1)
    asked = leased.ask(ROOT, ())
    leased.ask(ROOT, ((8, b"a"), (9, b"a"), (10, b"a")))
    leased.note_made(inode(8), asked)
    leased.note_made(inode(11), asked)
    assert not leased.may_know(8)
    assert not leased.may_know(11), "it may have been changed as well"


def test_a_number_that_is_given_out_again_is_forgotten(leased):
    make(leased)
    make(leased)
    assert not leased.may_know(5)


def test_only_who_certainly_may_search_is_told(leased):
    make(leased)
    assert not leased.is_absent(5, b"b", BOB)
    change(leased, b"a", caller=BOB)
    assert leased.is_absent(5, b"b", BOB)
    assert leased.is_absent(5, b"b", Caller(7, 7))
    assert not leased.is_absent(5, b"b", Caller(7, 7, (8,)))
    assert not leased.is_absent(5, b"b", ROOT)


@pytest.mark.parametrize("fields", [{"mode": 0o677}, {"uid": 8}])
def test_who_has_made_a_directory_may_not_be_let_in(leased, fields):
    make(leased, caller=BOB, **({"uid": 7} | fields))
    assert not leased.is_absent(5, b"b", BOB)
    change(leased, b"a", caller=BOB)
    assert leased.is_absent(5, b"b", BOB)


@pytest.mark.parametrize("name", [b".", b"..", b"x" * 256])
def test_what_is_no_name_meta_judges(leased, name):
    make(leased)
    assert not leased.is_absent(5, name, ROOT)


def test_too_many_names_are_forgotten_with_those_that_were_changed_longest_ago(leased):
    make(leased, inode_id=4)
    make(leased)
    for number in range(7):
        change(leased, b"%d" % number)
    leased.ask(ROOT, ((4, b"x"),))
    assert leased.may_know(4)
    change(leased, b"8")
    assert not leased.may_know(4)
    assert leased.may_know(5)
    for number in range(10):
        change(leased, b"more %d" % number)
    assert not leased.may_know(5)


def test_settings_that_change_hold_at_once(leased):
    make(leased)
    assert leased.is_wanted
    leased.adopt(0)
    assert not leased.is_wanted
    assert not leased.may_know(5)
    make(leased)
    assert not leased.may_know(5)


def test_what_a_name_leads_to_is_known_while_the_lease_lasts(leased, clock):
    make(leased)
    change(leased, b"a", leads_to=9)
    assert leased.leads_to(5, b"a", ROOT) == 9
    assert leased.leads_to(5, b"a", BOB) is None
    assert leased.leads_to(5, b"b", ROOT) is None
    assert leased.leads_to(6, b"a", ROOT) is None
    change(leased, b"c", leads_to=ABSENT)
    assert leased.leads_to(5, b"c", ROOT) is None
    assert leased.is_absent(5, b"c", ROOT)
    clock.now_s += LEASE_S
    assert leased.leads_to(5, b"a", ROOT) is None
    assert not leased.is_absent(5, b"c", ROOT)
    change(leased, b"d")
    assert leased.leads_to(5, b"a", ROOT) == 9
    change(leased, b"d", client_id=OTHER)
    assert leased.leads_to(5, b"a", ROOT) is None


def test_nothing_is_known_of_a_name_while_it_is_changed(leased):
    make(leased)
    change(leased, b"a", leads_to=9)
    asked = leased.ask(ROOT, ((5, b"a"), (6, b"x")))
    assert leased.leads_to(5, b"a", ROOT) is None
    leased.end(asked, ABSENT, 9)
    assert leased.is_absent(5, b"a", ROOT)
    asked = leased.ask(ROOT, ((5, b"a"),))
    assert not leased.is_absent(5, b"a", ROOT)
    leased.withdraw(asked)
    assert not leased.is_absent(5, b"a", ROOT)
    change(leased, b"a", leads_to=9)
    assert leased.leads_to(5, b"a", ROOT) == 9


def test_of_changes_that_overlap_nobody_knows_which_was_the_last(leased):
    make(leased)
    first, second = (leased.ask(ROOT, ((5, b"a"),)) for _ in range(2))
    leased.end(first, 9)
    assert leased.leads_to(5, b"a", ROOT) is None
    third = leased.ask(ROOT, ((5, b"a"),))
    leased.end(second, 8)
    leased.end(third, 7)
    assert leased.leads_to(5, b"a", ROOT) is None
    change(leased, b"a", leads_to=6)
    assert leased.leads_to(5, b"a", ROOT) == 6


def test_a_change_whose_outcome_was_ever_unknown_tells_nothing(leased):
    make(leased)
    asked = leased.ask(ROOT, ((5, b"a"),))
    leased.fail(asked)
    change(leased, b"a", leads_to=9)
    assert leased.leads_to(5, b"a", ROOT) is None, "it may be made yet"
    leased.fail(asked)
    leased.end(asked, 8)
    assert leased.leads_to(5, b"a", ROOT) is None
    change(leased, b"a", leads_to=9)
    assert leased.leads_to(5, b"a", ROOT) == 9


def test_what_may_have_been_lost_is_not_known_any_more(leased, clock):
    make(leased)
    change(leased, b"a", leads_to=9)
    clock.now_s += SURE_S - 0.01
    change(leased, b"b", leads_to=8)
    assert leased.leads_to(5, b"a", ROOT) == 9
    clock.now_s += SURE_S
    change(leased, b"c", leads_to=7)
    assert [leased.leads_to(5, name, ROOT) for name in (b"a", b"b", b"c")] == [None, None, 7]
    asked = leased.ask(ROOT, ((5, b"d"),))
    clock.now_s += SURE_S
    leased.note_told([inode(changed=True)], asked)
    leased.end(asked, 9)
    change(leased, b"e")
    assert leased.leads_to(5, b"d", ROOT) is None, "this reply may have been under way meanwhile"


@pytest.mark.parametrize(
    ("fields", "reply_s", "is_sure"),
    [
        ({"changed": True}, 0.0, True),
        ({"changed": True}, SURE_S - 0.01, True),
        ({"changed": True}, SURE_S, False),
        ({"changed": False}, 0.0, False),
        ({"changed": True, "client_id": OTHER}, 0.0, False),
        ({"changed": True, "inode_id": 4}, 0.0, False),
    ],
)
def test_a_directory_that_is_as_it_was_left_has_lost_nothing(
    leased, clock, fields, reply_s, is_sure
):
    make(leased)
    change(leased, b"a", leads_to=9)
    clock.now_s += 60
    asked_s = clock.now_s
    clock.now_s += reply_s
    leased.note_shown(inode(**fields), asked_s)
    change(leased, b"b")
    assert leased.leads_to(5, b"a", ROOT) == (9 if is_sure else None)


def test_after_changes_that_overlapped_its_time_tells_nothing(leased, clock):
    """Of two, the one that was made last may have an earlier time:
    without it the directory would look the same.
    """
    make(leased)
    first, second = (leased.ask(ROOT, ((5, name),)) for name in (b"a", b"b"))
    for asked in (first, second):
        leased.note_told([inode(changed=True)], asked)
        leased.end(asked, 9)
    clock.now_s += SURE_S
    leased.note_shown(inode(changed=True), clock.now_s)
    change(leased, b"c")
    assert leased.leads_to(5, b"a", ROOT) is None


# ---- against a model -----------------------------------------------------------------------------


NAME_COUNT = 8


@dataclass(eq=False)
class Request:
    """A change of a name, or (`name` None) a look at a directory;
    `directory_id` 0: the making of one.
    """

    directory_id: int
    name: bytes | None
    asked: object
    number: int = 0
    change_count: int = 0
    """Of the directory, when it was asked for."""
    leads_to: int = ABSENT
    is_done: bool = False


@dataclass
class Told:
    """What a directory was like when meta made up a reply."""

    reply: InodePb
    request: Request


@dataclass
class Directory:
    """As meta has it."""

    names: dict[bytes, int] = field(default_factory=dict)
    holder: str = ME
    ctime: int = 7
    ending_since: float | None = None
    done: set[int] = field(default_factory=set)
    """Changes that are remembered by their request ids."""


@dataclass
class Model:
    """Directories, changed by this mount and another one; replies come in any order, some never;
    the store may lose its last changes.
    """

    random: random.Random
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self):
        self.leased = LeasedNames(ME, self.random.choice([3, 30, 1000, 1000]), self.clock)
        self.directories: dict[int, Directory] = {}
        self.before: list[dict[int, Directory]] = []
        """The store before its last changes."""
        self.sent, self.arriving = [], []
        self.inode_count = 1000
        self.absent_count = self.known_count = 0

    def tell(self, request):
        directory = self.directories[request.directory_id]
        reply = inode(request.directory_id, client_id=directory.holder)
        reply.directory.is_lease_ending = directory.ending_since is not None
        reply.ctime_ns = directory.ctime
        self.arriving.append(Told(reply, request))

    def make(self):
        self.sent.append(Request(0, b"", self.leased.ask(ROOT, ())))

    def ask(self):
        if not self.directories:
            return
        known = [d for d in self.directories if self.leased.may_know(d)]
        is_any = self.random.random() < 0.1 or not known
        directory_id = self.random.choice([*self.directories] if is_any else known)
        name = b"%d" % self.random.randrange(NAME_COUNT)
        asked = self.leased.ask(ROOT, ((directory_id, name),))
        self.inode_count += 1
        leads_to = self.random.choice([ABSENT, self.inode_count, self.inode_count])
        done = self.directories[directory_id].done
        self.sent.append(Request(directory_id, name, asked, self.inode_count, len(done), leads_to))

    def ask_for_attributes(self):
        if self.directories:
            directory_id = self.random.choice([*self.directories])
            self.sent.append(Request(directory_id, None, self.clock.now_s))

    def execute(self):
        """Meta does one of the requests that are under way; it may come once more, later."""
        if not self.sent:
            return
        number = self.random.randrange(len(self.sent))
        request = self.sent[number]
        if self.random.random() < 0.9 or not request.directory_id:
            del self.sent[number]
        if request.name is not None:
            self.before.append(copy.deepcopy(self.directories))
        if not request.directory_id:
            request.directory_id = len(self.directories) + 1
            self.directories[request.directory_id] = Directory()
        elif request.name is not None:
            self.change(request)
        if self.random.random() < 0.9:
            self.tell(request)
        elif request.name and not request.is_done:
            self.leased.fail(request.asked)

    def change(self, request):
        directory = self.directories[request.directory_id]
        if request.number in directory.done:
            return
        directory.done.add(request.number)
        self.set(directory, request.name, request.leads_to)
        # One that overlaps with another one may leave the time as it is.
        overlaps = request.change_count < len(directory.done) - 1
        directory.ctime += 0 if overlaps and self.random.random() < 0.5 else 1

    @staticmethod
    def set(directory, name, leads_to):
        directory.names.pop(name, None)
        if leads_to != ABSENT:
            directory.names[name] = leads_to

    def arrive(self):
        if not self.arriving:
            return
        told = self.arriving.pop(self.random.randrange(len(self.arriving)))
        request, asked = told.request, told.request.asked
        if request.name is None:
            self.leased.note_shown(told.reply, asked)
        elif not request.name:
            self.leased.note_made(told.reply, asked)
        elif not request.is_done:  # who has asked takes the first reply in
            request.is_done = True
            self.leased.note_told([told.reply], asked)
            self.leased.end(asked, request.leads_to)

    def intrude(self):
        """The other mount adds, removes or replaces a name, as meta lets it."""
        if not self.directories:
            return
        directory = self.random.choice([*self.directories.values()])
        if directory.holder == ME:
            if directory.ending_since is None:
                self.before.append(copy.deepcopy(self.directories))
                directory.ending_since = self.clock.now_s
            if self.clock.now_s - directory.ending_since < WAIT_S:
                return
            directory.holder, directory.ending_since = "", None
        self.before.append(copy.deepcopy(self.directories))
        self.inode_count += 1
        leads_to = self.random.choice([ABSENT, self.inode_count])
        self.set(directory, b"%d" % self.random.randrange(NAME_COUNT), leads_to)
        directory.ctime += 1

    def lose(self):
        """The store loses its last changes, but for directories that were made;
        it is away for a while.
        """
        if self.random.random() < 0.8 or not self.before:
            return
        lost_count = min(self.random.choice([1, 1, 2, 5]), len(self.before))
        kept = self.before[-lost_count]
        del self.before[-lost_count:]
        self.directories |= kept
        self.clock.now_s += SURE_S
        for directory_id, directory in self.directories.items():
            if directory.ending_since is not None:  # whoever comes next waits in full
                directory.ending_since = self.clock.now_s
            if self.random.random() < 0.5:  # the next step of a path
                self.tell(Request(directory_id, None, self.clock.now_s))

    def look(self):
        leased = self.leased
        for directory_id, directory in self.directories.items():
            for number in range(NAME_COUNT):
                name = b"%d" % number
                told, meant = leased.leads_to(directory_id, name, ROOT), directory.names.get(name)
                assert told in (None, meant), (directory_id, name, told, meant)
                is_absent = leased.is_absent(directory_id, name, ROOT)
                assert not (is_absent and meant), (directory_id, name, meant)
                self.absent_count += is_absent
                self.known_count += told is not None
        kept = leased._directories.values()
        assert leased._name_count == sum(len(d.names) for d in kept)
        assert all(d.known.keys() <= d.names for d in kept)

    def run(self):
        acts = [*[self.ask] * 3, *[self.execute] * 6, *[self.arrive] * 6]
        acts += [self.ask_for_attributes] * 2
        acts += [self.random.choice([self.intrude, self.lose])]
        for number in range(500):
            if number % 80 == 0:
                self.make()
            self.random.choice(acts)()
            self.clock.now_s += self.random.choice([0.0, 0.0, 0.001, 0.002, 0.02])
            if self.random.random() < 0.01:
                self.clock.now_s += 2 * SURE_S
            self.look()
        return self


@pytest.mark.parametrize("seed", first_quick(range(60), 4))
def test_nothing_is_told_of_a_name_that_is_not_so(seed):
    Model(random.Random(seed)).run()


def test_the_model_finds_names():
    models = [Model(random.Random(seed)).run() for seed in range(5)]
    assert sum(m.absent_count for m in models) > 250
    assert sum(m.known_count for m in models) > 250


def count_wrong():
    wrong = 0
    for seed in range(100):
        try:
            Model(random.Random(seed)).run()
        except (AssertionError, KeyError):
            wrong += 1
    return wrong


@pytest.mark.thorough
def test_the_model_finds_a_name_where_nobody_waits(monkeypatch):
    monkeypatch.setitem(globals(), "WAIT_S", 0.0)
    assert count_wrong() > 3


@pytest.mark.thorough
def test_the_model_finds_a_name_that_was_lost(monkeypatch):
    monkeypatch.setattr(leased_names, "SURE_S", 1e9)
    assert count_wrong() > 3


@pytest.mark.thorough
def test_the_model_finds_which_of_two_changes_was_the_last(monkeypatch):
    def begin(directory, name):
        directory.known.pop(name, None)
        directory.under_way[name] = 1

    monkeypatch.setattr(leased_names._Directory, "begin", begin)
    assert count_wrong() > 3
