"""What benchmarks compare large blocks with:
new files with new ones, files written over with their like, no holes, huge pages.
"""

import os
from contextlib import nullcontext
from shutil import which

import pytest

from benchmarks import bare, batch, disk, fio
from benchmarks.native import Sizes
from benchmarks.table import Row
from benchmarks.used import Meter, Used
from benchmarks.workloads import MIB


def test_a_new_file_is_new_each_time_and_one_written_over_stays(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    assert disk.new_file_mib_s(path, 5) > 0
    link.hardlink_to(path)
    first = path.read_bytes()
    assert disk.written_over_mib_s(path) > 0
    assert path.samefile(link)
    assert path.stat().st_size == 5 * MIB
    again = path.read_bytes()
    assert not any(first[at : at + MIB] == again[at : at + MIB] for at in range(0, 5 * MIB, MIB))
    assert disk.new_file_mib_s(path, 3) > 0
    assert not path.samefile(link)
    assert disk.held_bytes(path.parent) >= 3 * MIB
    assert path.stat().st_size == 3 * MIB


def test_a_file_is_read_several_times_and_the_median_counts(tmp_path, monkeypatch):
    path = tmp_path / "file"
    disk.new_file_mib_s(path, 5)
    assert disk.read_mib_s(path) > 0
    seconds, lengths = iter([5.0, 0.5, 1.0, 0.1, 9.0]), []

    def moved_s(_move, _descriptor, length, blocks):
        lengths.append((length, len(blocks)))
        return next(seconds)

    monkeypatch.setattr(disk, "_moved_s", moved_s)
    assert disk.read_mib_s(path) == 5.0
    assert lengths == [(5 * MIB, disk.THREAD_COUNT)] * 5


def test_every_block_is_moved_once():
    places = []

    def move(descriptor, buffers, offset):
        places.append((descriptor, offset, len(buffers[0])))
        return len(buffers[0])

    blocks = [memoryview(bytearray(disk.BLOCK_BYTES)) for _ in range(3)]
    disk._moved_s(move, 7, 5 * MIB, blocks)
    assert sorted(places) == [(7, 0, 2 * MIB), (7, 2 * MIB, 2 * MIB), (7, 4 * MIB, MIB)]


def test_a_file_with_holes_says_nothing_of_a_disk(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB))
    os.truncate(path, 3 * MIB)
    with pytest.raises(ValueError, match="has holes"):
        disk.read_mib_s(path)


def test_what_files_hold_of_a_disk(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "full").write_bytes(os.urandom(MIB))
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert disk.held_bytes(tmp_path) == MIB


def test_long_files_are_written_less_often():
    assert [disk.rounds_of(mib) for mib in (1, 256, 512, 1024, 4096)] == [3, 3, 2, 1, 1]


def test_memory_of_huge_pages_is_there_before_it_is_used():
    memory = disk.huge_memory(4 * MIB)
    assert len(memory) == 4 * MIB
    assert not memory.readonly


class Client:
    """Opens files of a folder, and notes which and how."""

    def __init__(self, steps):
        self._steps = steps

    def open(self, path, mode):
        self._steps.append((path.rpartition("/")[2], mode))
        with open(path, "ab") as file:
            file.write(b"x")
        return nullcontext()


class Fio:
    """Notes what it is asked to do beside."""

    def __init__(self, steps):
        self._steps = steps

    def measure(self, kind):
        self._steps.append(kind)

    def mib_s(self, kind, share):
        assert share == 3
        return {fio.Large.NEW: 150.0, fio.Large.OVER: 1500.0}[kind]


def test_what_is_written_is_compared_with_its_like(tmp_path, monkeypatch):
    steps, held = [], iter(range(0, 1_000_000_000, 12 * MIB))
    new, over = iter([900.0, 300.0, 600.0]), iter([3000.0, 9000.0, 6000.0])
    paces = iter([10, 100, 20, 200, 30, 300, 1, 1, 40, 400, 50, 500, 60, 600])

    def told(figures, what):
        def figure(path, *_):
            assert path == tmp_path / "local-written"
            path.touch()
            steps.append(what)
            return next(figures)

        return figure

    def by_bare(_local, mib, limit, *, is_over=False):
        assert mib == 8
        steps.append(("bare", limit, is_over))
        return Row("bare", 150.0, "MiB/s", limit)

    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(batch, "new_file_mib_s", told(new, "new"))
    monkeypatch.setattr(batch, "written_over_mib_s", told(over, "over"))
    monkeypatch.setattr(batch, "held_bytes", lambda path: next(held) if path.name == "data" else 0)
    monkeypatch.setattr(batch, "buffers", lambda *_: [])
    monkeypatch.setattr(batch, "Meter", lambda _: Meter())
    monkeypatch.setattr(batch, "sequential", lambda *_, **__: next(paces))
    monkeypatch.setattr(bare, "write_row", by_bare)
    sizes = Sizes(file_mib=8, seconds=1.0)
    client, local = Client(steps), tmp_path / "local"
    rows, paths = batch.measure_written(client, folder, tmp_path, local, sizes, fio=Fio(steps))
    again = ("new-2-8", "r+")
    assert steps == [
        *("new", fio.Large.NEW, ("new-0-8", "x"), ("new-0-32", "x")),
        *("new", fio.Large.NEW, ("new-1-8", "x"), ("new-1-32", "x")),
        *("new", fio.Large.NEW, ("new-2-8", "x"), ("new-2-32", "x")),
        *(again, again),
        *(("over", fio.Large.OVER, again, again) * 3),
        *(("bare", 200.0, False), ("bare", 2000.0, True)),
    ]
    assert [path.name for path in paths] == sorted(
        f"new-{number}-{count}" for number in range(3) for count in (8, 32)
    )[:-1]
    goals = [(row.name, row.value, row.limit, row.fio) for row in rows if row.goal == 0.8]
    new_name, over_name = (
        "new files (of a new local file / 3)",
        "written over (of a local file written over / 3)",
    )
    assert goals == [
        (f"1 MiB in batches of 8, {new_name}", 20, 200.0, 150.0),
        (f"1 MiB in batches of 32, {new_name}", 200, 200.0, 150.0),
        (f"1 MiB in batches of 8, {over_name}", 50, 2000.0, 1500.0),
        (f"1 MiB in batches of 32, {over_name}", 500, 2000.0, 1500.0),
    ]
    shares = [row.value for row in rows if row.unit == "%"]
    assert shares == [50.0, 50.0]  # 12 MiB for each 8, three times
    least = [row.limit for row in rows if "the lesser" in row.name]
    assert least == [150.0] * 4
    assert all(isinstance(row.used, Used) for row in rows if row.goal)
    assert not (tmp_path / "local-written").exists()


needs_fio = pytest.mark.skipif(which("fio") is None, reason="fio is not installed")


@needs_fio
@pytest.mark.slow
def test_fio_moves_large_blocks_of_each_kind(tmp_path):
    with fio.large_blocks(tmp_path, mib=4) as blocks:
        blocks.measure(fio.Large.READ)  # makes the file that it reads
        assert blocks.mib_s(fio.Large.READ) > 0
        assert blocks.mib_s(fio.Large.NEW) is None  # nobody has asked for it
        blocks.measure(*fio.Large)
        assert blocks.mib_s(fio.Large.OVER) == 3 * blocks.mib_s(fio.Large.OVER, 3) > 0
        assert blocks.mib_s(fio.Large.NEW) > 0
    assert not list(tmp_path.iterdir())


@needs_fio
@pytest.mark.slow
def test_a_fio_that_fails_is_told_of_once(tmp_path, capsys):
    blocks = fio.LargeBlocks(tmp_path, mib=4)  # no file
    blocks.measure(fio.Large.READ, fio.Large.OVER)
    assert {blocks.mib_s(kind) for kind in fio.Large} == {None}
    assert capsys.readouterr().err.count("no figures beside fio's: it failed: ") == 1


def test_without_fio_its_figures_are_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fio, "which", lambda _: None)
    blocks = fio.LargeBlocks(tmp_path / "large", mib=4)
    blocks.measure(*fio.Large)
    assert {blocks.mib_s(kind) for kind in fio.Large} == {None}
    assert not list(tmp_path.iterdir())
    assert "it is not installed" in capsys.readouterr().err


def test_the_lesser_of_fio_and_another_limit_counts():
    assert [fio.least_of(found, 5.0) for found in (None, 4.0, 6.0)] == [None, 4.0, 5.0]
