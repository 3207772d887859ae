"""What a program sees through the caches of Linux, two mounts at once."""

from functools import partial
from itertools import product

import pytest
import trio
from msgspec import structs

from fs.client.vfs.allocation import Allocation
from fs.client.vfs.files import Files
from fs.client.vfs.known import Known, Shown
from fs.meta.ops import unlink
from tests.examples import some_of

from . import coherence, coherence_names
from .coherence import run
from .coherence_cluster import POWER, run_over_cluster
from .coherence_power import LastingPrograms
from .coherence_programs import Programs
from .determinism import run_deterministic

pytestmark = pytest.mark.thorough

NAME = b"file-0"
SEEDS = [3, 9, 17, 1037, 1_100_017]
"""Seeds that failed: the kernel went on with the older of two replies that were under way at once;
a page of a listing showed names and lengths from before changes of the same mount; the second open
of a name that a listing had shown was not checked any more; an open went by what another one was
still having the kernel forget; a listing showed what had changed while it asked again for something
else; a listing showed a name from before a look-up by another one, whose open was refused then.
"""


@pytest.mark.parametrize(("seed", "is_begun"), some_of(product(SEEDS, (False, True)), 4))
def test_all_see_what_was_written(seed, is_begun):
    assert run_deterministic(partial(run, seed, is_begun=is_begun), seed).checked_count > 50


@pytest.mark.parametrize(
    ("seed", "inline_bytes_max"),
    some_of(
        [
            *((180104, 300), (180116, 300), (180506, 300), (180141, 0), (180240, 65_536)),
            *((92004, 65_536), (1_000_030, 65_536), (1_000_043, 300)),
        ],
        4,
    ),
)
def test_nobody_reads_zeros_from_a_file_that_is_cut_all_the_time(seed, inline_bytes_max):
    """Seeds that failed: short answers were given before those to READs that began before them in
    the file, and before the kernel had acted on a truncation; what another mount had cut counted as
    this one's change; a listing counted from which the kernel took nothing (decision 0151).
    """
    one = partial(run, seed, with_cuts=True, inline_bytes_max=inline_bytes_max)
    programs = run_deterministic(one, seed)
    assert programs.checked_count > 50
    assert programs.cut_file.read_count > 20


@pytest.mark.parametrize("seed", [1, 201, 77128])
def test_so_they_do_when_machines_vanish_and_services_restart(seed):
    """Seed 201: a further name could not be given by one that a listing had shown, and that had
    been replaced since.  Seed 77128: an open that was under way while its file was truncated by
    name went on with the length of before.
    """
    assert run_deterministic(partial(run_over_cluster, seed), seed).checked_count > 50


@pytest.mark.parametrize(("seed", "is_begun"), [(101, False), (102, True), (72028, True)])
def test_names_lead_to_the_same_on_both_mounts_at_once(seed, is_begun):
    """Seed 72028: an open was refused twice, as the look-up in between was answered by what meta
    had told ahead.
    """
    programs = run_deterministic(partial(run, seed, with_names=True, is_begun=is_begun), seed)
    assert programs.directories.checked_count > 100
    assert programs.directories.known_count > 20
    assert programs.absent_count > 30


def test_so_they_are_when_machines_vanish_and_services_restart():
    seed = 5000
    programs = run_deterministic(partial(run_over_cluster, seed, with_names=True), seed)
    assert programs.directories.checked_count > 100
    assert programs.directories.known_count > 20
    assert programs.absent_count > 30


@pytest.mark.parametrize(("seed", "is_begun"), [(9_303_114, False), (9_303_304, True)])
def test_what_is_unpacked_and_holes_are_as_they_were_made(seed, is_begun):
    one = partial(run, seed, with_holes=True, is_begun=is_begun, inline_bytes_max=65_536)
    assert run_deterministic(one, seed).checked_count > 50


def test_who_takes_a_hole_for_there_without_looking_is_found_out(monkeypatch):
    async def is_end(_, state, _offset, end):
        return end == state.local_length()

    monkeypatch.setattr(Allocation, "_ends_in_hole", is_end)
    find_out("is not what was written", first=4, with_holes=True)


def test_who_cuts_nothing_without_asking_is_found_out(monkeypatch):
    """What the other mount has added meanwhile is still there."""
    refresh = Files._refresh

    async def ask_later(files, state, caller):
        if state.run is None:
            await refresh(files, state, caller)

    monkeypatch.setattr(Files, "_refresh", ask_later)
    find_out("stat says|is not what was written", with_holes=True, inline_bytes_max=65_536)


async def use_further_names(programs, _is_over):
    """One mount has just listed a name when the other one gives it to another file,
    and both use a further one of that.
    """
    here, there = programs.kernels
    await programs._write_anew(here, NAME)
    for _ in range(20):
        await here.listing(lambda: 0.0)
        programs.mtimes.clear()
        await programs._put_over(there, NAME)
        await programs._use_other_name(there, NAME)
        await trio.sleep(5.1)
        for kernel in programs.kernels:
            assert await kernel.stat(NAME) == len(programs.contents[NAME])


def test_what_a_listed_name_led_to_may_be_told_to_who_wrote_by_another_one(monkeypatch):
    """Seed 4133007 of a cluster whose machines were cut off:
    the model expected more of `stat` than is promised.
    """
    drawn = coherence.section
    longer = {"listed_timeout_s": 5.0, "attr_timeout_s": 5.0}  # than what is done meanwhile
    monkeypatch.setattr(
        coherence, "section", lambda source: structs.replace(drawn(source), **longer)
    )
    monkeypatch.setattr(Programs, "_run", use_further_names)
    assert run_deterministic(partial(run, 1), 1).checked_count > 20


def find_out(match, first=1, **options):
    """Look for a seed that notices a broken build; of some of them one in three does."""
    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match=match), flatten_subgroups=True):
        for seed in range(first, first + 24):
            run_deterministic(partial(run, seed, **(options or {"with_names": True})), seed)


def test_who_does_not_wait_for_the_end_of_a_lease_is_found_out(monkeypatch):
    monkeypatch.setitem(coherence_names.LENGTHS, "WAIT_S", 0.001)
    find_out("in names-.*, not")


def test_who_removes_a_name_without_waiting_is_found_out(monkeypatch):
    monkeypatch.setattr(unlink, "require_unleased", lambda *_: None)
    find_out("in names-.*, not None", first=22)


class Unchecked(int):
    """A length that no other one is different from."""

    __hash__ = int.__hash__

    def __ne__(self, _):
        return False


def test_who_tells_a_length_from_before_is_found_out(monkeypatch):
    def shown(known, inode_id, _):
        if known.given_rights is None or known.given_length == -1:
            return None
        return Shown(inode_id, *known.given_rights, Unchecked(known.given_length), 0)

    monkeypatch.setattr(Known, "shown", shown)
    find_out("shown as")


def test_what_was_closed_is_there_after_a_loss_of_all_power():
    """Seed 1007: what a truncation had cut off was back after the loss,
    and in the file once that was lengthened.
    """
    seed = 1007
    programs = run_deterministic(partial(run_over_cluster, seed, only=[POWER]), seed)
    assert programs.checked_count > 50
    assert isinstance(programs, LastingPrograms)
    assert programs.cut_count
