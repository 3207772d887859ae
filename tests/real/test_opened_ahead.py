"""Opens that are done with the look-up of the name (decision 0222), by the kernel as it is:
each sees what was closed on another mount before it.
"""

import os
import re

import pytest

from fs.app.monitoring.metrics_commands import fetch

from .conftest import scaled

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = scaled(40, 400)


@pytest.fixture(scope="module")
def second_mount(cluster, tmp_path_factory):
    mount = tmp_path_factory.mktemp("second")
    cluster.ember("mount", mount, "--dir", cluster.directory)
    yield mount
    cluster.ember("umount", mount, "--dir", cluster.directory)


@pytest.fixture
def other(second_mount, place):
    """The directory `place` on the second mount."""
    return second_mount / place.name


def ahead_count(cluster, mount):
    """Return how many opens of a mount were done with their look-up."""
    (service,) = [s for s in cluster.status()["services"] if s["mount_point"] == str(mount)]
    text = fetch(service["metrics_address"].removeprefix("tcp:"))
    (count,) = re.findall(r'cache_hits_total\{cache="opens"\} (\S+)', text)
    return float(count)


def write(path, content):
    path.write_text(f"{content:08}" * 100)


def read(path):
    return int(path.read_text()[:8])


def test_who_opens_new_files_finds_what_was_closed_last(cluster, place, other, second_mount):
    before = ahead_count(cluster, second_mount)
    for number in range(COUNT):
        write(place / f"{number}", 0)
        write(place / f"{number}", number)
        assert read(other / f"{number}") == number
    assert ahead_count(cluster, second_mount) > before


def test_what_is_held_is_opened_anew_after_a_call_that_failed(place, other):
    """A call that fails looks the file up, too, and what is held is opened without a look-up."""
    write(place / "0", 0)
    held = os.open(other / "0", os.O_PATH)
    for number in range(COUNT):
        write(place / f"new-{number}", number)
        assert read(other / f"new-{number}") == number
        os.rename(place / f"{number}", place / f"{number + 1}")
        with pytest.raises(NotADirectoryError):
            os.open(other / f"{number + 1}" / "x", os.O_RDONLY)
        write(place / f"{number + 1}", number + 1)
        fd = os.open(f"/proc/self/fd/{held}", os.O_RDONLY)
        assert int(os.read(fd, 8)) == number + 1
        os.close(fd)
    os.close(held)
