"""Names that are certainly absent: the kept names alone, against a model of directories, leases and late replies."""

import random
from dataclasses import dataclass, field

import pytest

from fs.client.vfs import leased_names
from fs.client.vfs.leased_names import LeasedNames
from fs.client.vfs.ports import Caller
from fs.schema.name_lease import LEASE_S, WAIT_S
from fs.schema.proto.common_pb2 import DIRECTORY, InodePb

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


def change(leased, name, *, caller=ROOT, **fields):
    asked = leased.ask(caller, ((5, name),))
    leased.note_told([inode(**fields, changed=True)], asked)


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


# ---- against a model --------------------------------------------------------------------------------


NAME_COUNT = 12


@dataclass
class Told:
    """What a directory was like when meta made up a reply."""

    reply: InodePb
    asked: object
    is_made: bool


@dataclass
class Model:
    """Directories as meta has them, changed by this mount and another one; replies come in any order, some never."""

    random: random.Random
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self):
        self.leased = LeasedNames(ME, self.random.choice([3, 30, 1000]), self.clock)
        self.names: dict[int, set[bytes]] = {}
        self.holder: dict[int, str] = {}
        self.ctime: dict[int, int] = {}
        self.ending_since: dict[int, float] = {}
        self.sent, self.arriving = [], []
        self.hit_count = 0

    def tell(self, directory_id, asked, *, is_made=False):
        reply = inode(directory_id, client_id=self.holder[directory_id])
        reply.directory.is_lease_ending = directory_id in self.ending_since
        reply.ctime_ns = self.ctime[directory_id]
        self.arriving.append(Told(reply, asked, is_made))

    def make(self):
        self.sent.append((None, b"", "make", self.leased.ask(ROOT, ())))

    def ask(self):
        if self.names:
            known = [d for d in self.names if self.leased.may_know(d)]
            is_any = self.random.random() < 0.1 or not known
            directory_id = self.random.choice([*self.names] if is_any else known)
            name = b"%d" % self.random.randrange(NAME_COUNT)
            kind = self.random.choice(["add", "add", "remove", "look"])
            asked = self.leased.ask(ROOT, ((directory_id, name),))
            self.sent.append((directory_id, name, kind, asked))

    def execute(self):
        """Meta does one of the requests that are under way; it may do it once more, later."""
        if not self.sent:
            return
        number = self.random.randrange(len(self.sent))
        directory_id, name, kind, asked = self.sent[number]
        if self.random.random() < 0.9 or kind == "make":
            del self.sent[number]
        if kind == "make":
            directory_id = len(self.names) + 1
            self.names[directory_id], self.holder[directory_id] = set(), ME
            self.ctime[directory_id] = 7
            if self.random.random() < 0.8:
                self.tell(directory_id, asked, is_made=True)
            return
        if kind == "add":
            self.names[directory_id].add(name)
        elif kind == "remove":
            self.names[directory_id].discard(name)
        self.ctime[directory_id] += kind != "look"
        if self.random.random() < 0.8:
            self.tell(directory_id, asked)

    def arrive(self):
        if self.arriving:
            told = self.arriving.pop(self.random.randrange(len(self.arriving)))
            if told.is_made:
                self.leased.note_made(told.reply, told.asked)
            else:
                self.leased.note_told([told.reply], told.asked)

    def intrude(self):
        """The other mount adds a name, as meta lets it."""
        if not self.names:
            return
        directory_id = self.random.choice([*self.names])
        if self.holder[directory_id] == ME:
            since_s = self.ending_since.setdefault(directory_id, self.clock.now_s)
            if self.clock.now_s - since_s < WAIT_S:
                return
            self.holder[directory_id] = ""
            del self.ending_since[directory_id]
        self.names[directory_id].add(b"%d" % self.random.randrange(NAME_COUNT))
        self.ctime[directory_id] += 1

    def remove(self):
        """The other mount removes a name, without waiting."""
        if self.names:
            names = self.names[self.random.choice([*self.names])]
            if names:
                names.remove(self.random.choice(sorted(names)))

    def lose(self):
        """The store loses its last changes: names are back that were removed."""
        if self.names:
            directory_id = self.random.choice([*self.names])
            directory = self.leased._directories.get(directory_id)
            if directory is not None and self.holder[directory_id] == ME and directory.names:
                self.names[directory_id].add(self.random.choice(sorted(directory.names)))

    def look(self):
        for directory_id, names in self.names.items():
            for name in names:
                assert not self.leased.is_absent(directory_id, name, ROOT), (directory_id, name)
            for number in range(NAME_COUNT):
                self.hit_count += self.leased.is_absent(directory_id, b"%d" % number, ROOT)
        assert self.leased._name_count == sum(
            len(d.names) for d in self.leased._directories.values()
        )

    def run(self):
        acts = [*[self.ask] * 3, *[self.execute] * 5, *[self.arrive] * 5]
        acts += [self.intrude, self.remove, self.lose]
        for number in range(300):
            if number % 60 == 0:
                self.make()
            self.random.choice(acts)()
            self.clock.now_s += self.random.choice([0.0, 0.0, 0.001, 0.01, 0.05])
            self.look()
        return self.hit_count


@pytest.mark.parametrize("seed", range(40))
def test_no_name_is_called_absent_that_is_there(seed):
    Model(random.Random(seed)).run()


def test_the_model_finds_absent_names():
    assert sum(Model(random.Random(seed)).run() for seed in range(10)) > 1000


def test_the_model_finds_a_name_where_nobody_waits(monkeypatch):
    monkeypatch.setitem(globals(), "WAIT_S", 0.0)
    wrong = 0
    for seed in range(40):
        try:
            Model(random.Random(seed)).run()
        except AssertionError:
            wrong += 1
    assert wrong > 3
