"""What a program reads of a listing that it began before says nothing
of what was done meanwhile.
"""

import os
import subprocess
import sys
import time

import pytest

ATTRIBUTES_S = 1.1
"""After so long the kernel asks anew."""

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def wants_attributes(place):
    """This thread looks at what it lists: so it is shown attributes with the names."""
    (place / "few").mkdir()
    for name in "abc":
        (place / "few" / name).touch()
    with os.scandir(place / "few") as entries:
        assert all(entry.stat(follow_symlinks=False) for entry in entries)
    for name in "abc":
        (place / "few" / name).unlink()
    (place / "few").rmdir()


def listed(place):
    """Some files, more than one request of the kernel tells of, and a listing that has begun."""
    for i in range(500):
        (place / f"{i:03}").write_bytes(b"old")
    listing = os.scandir(place)
    next(listing)
    return listing


def test_a_name_that_was_removed_while_others_list_is_free(place):
    listing = listed(place)
    os.unlink(place / "400")
    list(listing)
    assert not (place / "400").exists()
    os.close(os.open(place / "400", os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def test_what_was_written_while_others_list_has_its_length(place):
    listing = listed(place)
    (place / "400").write_bytes(b"newer")
    list(listing)
    assert (place / "400").stat().st_size == 5


@pytest.fixture
def second_mount(cluster, tmp_path):
    cluster.ember("mount", tmp_path, "--dir", cluster.directory)
    yield tmp_path
    cluster.ember("umount", tmp_path, "--dir", cluster.directory)


def test_each_open_of_a_name_that_a_listing_showed_finds_what_it_means(second_mount, place):
    """Another mount puts a new file in its place,
    and the first one holds the one that was there.
    """
    (place / "f").write_bytes(b"old")
    other = second_mount / place.name
    assert len(list(os.scandir(place))) == 1
    with open(place / "f", "rb") as held:
        assert held.read() == b"old"
        (other / "g").write_bytes(b"new")
        os.rename(other / "g", other / "f")
        assert (place / "f").read_bytes() == b"new"


def test_an_open_by_a_name_that_was_listed_never_empties_what_has_moved(second_mount, place):
    """Another mount gives the file a new name, this one finds it there,
    and writes a file by the old one within the second.
    """
    (place / "f.part").write_bytes(b"whole")
    other = second_mount / place.name
    assert len(list(os.scandir(place))) == 1
    os.rename(other / "f.part", other / "f")
    assert (place / "f").stat().st_size == 5
    (place / "f.part").write_bytes(b"next")
    assert (place / "f").read_bytes() == b"whole"
    assert (other / "f").read_bytes() == b"whole"
    assert (place / "f.part").read_bytes() == b"next"


def test_who_looks_through_a_large_directory_after_listing_it_sees_what_is_there(
    second_mount, place
):
    """Names alone come first, then attributes of many at a time; what another mount changes
    meanwhile shows when those may no longer be used.
    """
    other = second_mount / place.name
    names = sorted(f"{number:03}" for number in range(300))
    for name in names:
        (other / name).write_bytes(bytes(int(name)))
    script = (
        "import os, sys\n"
        "names = sorted(os.listdir(sys.argv[1]))\n"
        "print(*(os.stat(os.path.join(sys.argv[1], name)).st_size for name in names))\n"
    )

    def sizes():
        run = [sys.executable, "-I", "-S", "-c", script, place]
        return list(map(int, subprocess.check_output(run, timeout=60).split()))

    assert sizes() == list(range(300))
    for name in names[:100]:
        (other / name).write_bytes(bytes(1000))
    time.sleep(ATTRIBUTES_S)
    assert sizes() == [1000] * 100 + list(range(100, 300))
    for name in names[200:]:
        (place / name).unlink()
    assert sizes() == [1000] * 100 + list(range(100, 200))
