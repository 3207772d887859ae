"""Benchmarks of programs: what they measure is what they say, on a small folder;
what they print, draw and leave.
"""

import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from emberfs.posix import PosixClient
from xxhash import xxh3_64_intdigest

from benchmarks import (
    apps,
    bare,
    checkpoint,
    dataloader,
    kvcache,
    machine,
    meta,
    mount,
    sort,
    workloads,
)
from benchmarks.cluster import Nodes
from benchmarks.command import bench_command
from benchmarks.fio import Large
from benchmarks.plot import MISSED, NO_GOAL, REACHED, colour_of, words_of
from benchmarks.relay import wake_ups_us
from benchmarks.table import Row, print_rows
from benchmarks.used import Meter, Used
from benchmarks.workloads import BIG_FILE, MIB, Bound, Sizes
from fs.app.commands.develop import _is_benchmark, checkout, run_bench
from fs.app.terminal.progress import Progress
from fs.schema.status import FsError, Status

pytestmark = pytest.mark.timeout(600)  # processes start slowly on a busy machine
ROWS = [
    Row("reads (of disk)", 50, "MiB/s", 100, goal=0.4),
    Row("  processor", 3, "us"),
    Row("one read (of the goal)", 4, "us", 1, goal=0.5, is_smaller_better=True),
    Row("listing (of disk)", 900, "/s", 300),
]
BENCHMARKS = (
    *("apps", "batch", "calls", "checkpoint", "chunkengine", "dataloader", "kv", "kvcache", "meta"),
    *("meta_scale", "mount", "native", "recovery", "rpc", "sort", "storage"),
)


@pytest.fixture(autouse=True)
def caches(tmp_path_factory, monkeypatch):
    """Stands in for what empties the caches of the machine: all tests that run at the same time
    would read their programs from the disk again, again and again.
    """
    made = tmp_path_factory.mktemp("machine") / "caches"
    monkeypatch.setattr(workloads, "CACHES", made)
    monkeypatch.setattr(workloads.os, "sync", lambda: made.write_text("written back\n"))
    return made


def test_all_are_found():
    found = {path.stem for path in (checkout() / "benchmarks").glob("*.py") if _is_benchmark(path)}
    assert found == set(BENCHMARKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_draws(name):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    told = subprocess.run(command, cwd=checkout(), capture_output=True, text=True, check=True)
    assert told.stdout.startswith(f"usage: ember bench {name} ")
    assert {"--plot", "--full", "--dir"} <= set(re.findall(r"--\w+", told.stdout))


def test_one_picture_of_several_benchmarks_is_refused():
    with pytest.raises(FsError, match="is of one benchmark") as caught:
        run_bench(["kv", "rpc", "--plot=x.png"])
    assert caught.value.status is Status.BAD_CONFIG


def test_help_without_a_name_lists_what_there_is(capsys):
    assert run_bench(["--help"]) == run_bench(["-h"]) == 0
    told = capsys.readouterr().out
    assert set(re.findall(r"^  (\w+)  +\w", told, re.MULTILINE)) == set(BENCHMARKS)


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["apps", "--inline", "65536"], [["apps", "--inline=65536"]]),
        (
            ["--full", "kv", "--plot", "rpc"],
            [["kv", "--full", "--plot"], ["rpc", "--full", "--plot"]],
        ),
        (["mount", "--plot", "x.png", "--at", "/mnt"], [["mount", "--plot=x.png", "--at=/mnt"]]),
        (["mount", "--help"], [["mount", "--help"]]),
    ],
)
def test_options_go_to_each_benchmark_with_their_values(arguments, passed, monkeypatch):
    ran = []
    monkeypatch.setattr(
        "fs.app.commands.develop.run", lambda command, _root: ran.append(command[2:]) or 0
    )
    assert run_bench(arguments) == 0
    assert ran == [[f"benchmarks.{name}", *options] for name, *options in passed]


def test_a_value_of_no_option_is_no_benchmark():
    with pytest.raises(FsError, match="no benchmark '65536'"):
        run_bench(["apps", "--full", "65536"])


@pytest.mark.parametrize("option", ["--dir", "--at"])
def test_a_folder_that_is_not_there_is_wrong_usage(option, capsys):
    with pytest.raises(SystemExit) as ended:
        bench_command(
            "x", "", (1, 2), lambda *_: ROWS, [option, "/nowhere"], measure_at=lambda *_: ROWS
        )
    assert ended.value.code == 2
    assert f"argument {option}: /nowhere is not a directory" in capsys.readouterr().err


def test_a_table_is_printed(capsys):
    told = []

    def measure(sizes, parent, progress):
        progress.step("measuring")
        told.append((sizes, parent))
        return ROWS

    assert bench_command("x", "about", ("small", "large"), measure, []) == 0
    assert bench_command("x", "about", ("small", "large"), measure, ["--full", "--dir=/"]) == 0
    output = capsys.readouterr()
    assert told == [("small", None), ("large", Path("/"))]
    assert "reads (of disk)" in output.out
    assert re.search(r"reads .* 50 .* MiB/s .* 100 .* 0.50 .* 0.4 ", output.out)
    assert "ember: measuring\n" in output.err


def test_a_table_has_the_second_yardstick_where_a_row_has_it(capsys):
    print_rows("x", ROWS)
    assert "fio" not in capsys.readouterr().out
    print_rows("x", [replace(ROWS[0], fio=40), *ROWS[1:]])
    output = capsys.readouterr().out
    assert re.search(r"reads .* 50 .* MiB/s .* 100 .* 0.50 .* 0.4 .* 40 .* 1.25 ", output)
    assert "fio: io_uring, O_DIRECT, 1 MiB" in " ".join(output.split())  # folded


def test_an_interrupted_one_says_so(capsys):
    def measure(*_):
        raise KeyboardInterrupt

    assert bench_command("x", "about", (1, 2), measure, []) == 130
    assert "benchmark x was interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("is_in_task", [True, False])
def test_what_cannot_be_done_is_told_in_one_line(capsys, is_in_task):
    async def work():
        async with trio.open_nursery():
            raise FsError(Status.NO_SPACE, "disk 1")

    def measure(*_):
        if is_in_task:
            trio.run(work)
        Path("/proc/made").mkdir()

    assert bench_command("x", "about", (1, 2), measure, []) == 1
    said = capsys.readouterr().err.splitlines()
    told = "NO_SPACE" if is_in_task else "/proc/made: No such file"
    assert len(said) == 1 and said[0].startswith(f"ember: benchmark x: {told}")


def test_one_that_is_killed_within_trio_ends_in_order(capsys):
    ended = []

    async def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            ended.append(True)

    before = signal.getsignal(signal.SIGTERM)
    assert bench_command("x", "about", (1, 2), lambda *_: trio.run(work), []) == 130
    assert capsys.readouterr().err.endswith("ember: benchmark x was interrupted\n")
    assert ended == [True]
    assert signal.getsignal(signal.SIGTERM) is before


KILLED = """
import os, signal, threading, time, trio
from benchmarks.command import bench_command
def kill():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
def measure(*_):
    threading.Thread(target=kill).start()
    trio.run(trio.sleep_forever)
raise SystemExit(bench_command("x", "about", (1, 2), measure, []))
"""


@pytest.mark.slow
def test_one_that_is_killed_while_trio_waits_says_just_that():
    command = [sys.executable, "-c", KILLED]
    told = subprocess.run(command, cwd=checkout(), capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (130, "ember: benchmark x was interrupted\n")


def test_how_much_and_where_can_be_told(capsys):
    def measure(count, parent, _progress):
        return [Row(f"{count} in {parent}", 1, "/s")]

    def at(count, mounted, _progress):
        return [Row(f"{count} at {mounted}", 1, "/s")]

    for words, found in (
        ([], "10 in None"),
        (["--full", "--dir=/"], "20 in /"),
        (["--count=3"], "3 in None"),
        (["--at=/proc"], "10 at /proc"),
    ):
        assert bench_command("x", "y", (10, 20), measure, words, amount="z", measure_at=at) == 0
        assert found in capsys.readouterr().out
    for words in (["--count=3"], ["--at=/proc"]):
        with pytest.raises(SystemExit):
            bench_command("x", "y", (10, 20), measure, words)
    for word in ("0", "-1", "many"):
        with pytest.raises(SystemExit):
            bench_command("x", "y", (10, 20), measure, [f"--count={word}"], amount="z")
        assert "argument --count" in capsys.readouterr().err


def test_two_mounted_file_systems_are_measured_beside_each_other(capsys):
    def measured(words):
        def beside(count, mounted, other, _progress):
            return [Row(f"{count} at {mounted}", 3, "/s", limit=len(str(other)))]

        ways = {"measure_at": lambda *_: [], "measure_beside": beside}
        return bench_command("x", "y", (1, 2), lambda *_: [], words, **ways)

    assert measured(["--at=/proc", "--beside=/"]) == 0
    said = capsys.readouterr().out
    assert "x in /proc, beside /;" in said
    assert re.search(r"1 at /proc.* 3 .* /s .* 1 .* 3\.00 ", said)
    for words in (["--beside=/"], ["--at=/proc", "--beside=/none"]):
        with pytest.raises(SystemExit):
            measured(words)
    assert "wants --at" in capsys.readouterr().err


def test_caches_are_written_back_before_they_are_dropped(caches, monkeypatch):
    before = []
    monkeypatch.setattr(workloads.os, "sync", lambda: before.append(caches.exists()))
    workloads.drop_page_cache()
    assert before == [False] and caches.read_text() == "3\n"


def test_names_of_two_places_are_made_and_removed_in_turn(tmp_path, caches):
    ours, others = tmp_path / "ours", tmp_path / "others"
    for place in (ours, others):
        place.mkdir()
    rows = meta.measure_beside(16, ours, others, Progress())
    listings = 2
    assert len(rows) == 2 * (len(meta.ON_MOUNT) + listings)
    assert all(row.value > 0 and row.limit for row in rows)
    assert not [*ours.iterdir(), *others.iterdir()]
    assert caches.read_text() == "3\n"


def test_whether_small_files_are_kept_can_be_told(monkeypatch):
    told = []
    monkeypatch.setattr("benchmarks.command.keep_small_files", told.append)

    def measure(_count, _parent, _progress):
        return [Row("x", 1, "/s")]

    for words in ([], ["--inline=0"], ["--inline", "4096"]):
        assert bench_command("x", "y", (1, 2), measure, words, has_small_files=True) == 0
    assert told == [0, 4096]
    with pytest.raises(SystemExit):
        bench_command("x", "y", (1, 2), measure, ["--inline=0"])


def test_what_a_picture_says():
    assert [colour_of(row) for row in ROWS] == [REACHED, NO_GOAL, MISSED, NO_GOAL]
    assert words_of(ROWS[0]) == "50 of 100 MiB/s, goal 0.4"
    assert words_of(ROWS[2]) == "4 of 1 us (less is better), goal 0.5"
    assert words_of(ROWS[3]) == "900 of 300 /s"
    assert words_of(replace(ROWS[0], fio=40)) == "50 of 100 MiB/s, goal 0.4; 1.25 of fio"


@pytest.mark.slow
def test_a_table_is_drawn(tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text stays text
    picture = tmp_path / "x.svg"
    rows = [replace(ROWS[0], fio=40), *ROWS[1:]]
    assert bench_command("x", "about", (1, 2), lambda *_: rows, [f"--plot={picture}"]) == 0
    drawn = picture.read_text()
    for words in (
        "ember bench x",
        "kernels: ",
        "reads (of disk)",
        "goal missed",
        "share of what fio does",
        ">0.50<",
        "900 of 300 /s",
    ):
        assert words in drawn
    assert "processor" not in drawn
    assert bench_command("x", "about", (1, 2), lambda *_: ROWS[1:2], [f"--plot={picture}"]) == 0
    assert "nothing here is measured next to the machine" in picture.read_text()


@pytest.mark.thorough
def test_programs_find_the_files_that_they_are_told_of(tmp_path):
    source = apps.make_source(tmp_path / "source", 30)
    place = tmp_path / "place"
    place.mkdir()
    made = {"git clone": "clone/**/*.py", "cp -a": "copy/**/*.py", "tar x": "tree/**/*.py"}
    made["python -m compileall"] = "tree/**/*.pyc"
    for program in apps.programs(source):
        took_s, processor_s = apps.seconds(program, place)
        assert 0 < processor_s < 10 * took_s
        if program.name in made:
            assert len(list(place.glob(made[program.name]))) == source.file_count
    assert not (place / "copy").exists()


@pytest.mark.thorough
def test_any_file_system_is_measured_in_a_folder_that_goes(tmp_path):
    progress = Progress()
    rows = apps.measure_at(20, tmp_path, progress)
    rows += mount.measure_at(Sizes(2, 64, 10, 4), tmp_path, progress)
    assert all(row.value > 0 for row in rows)
    assert len({row.name for row in rows}) == len(rows) > 10
    assert not list(tmp_path.iterdir())


def test_what_is_called_warm_on_the_mount_has_been_warmed(tmp_path, monkeypatch):
    steps = []
    places = {name: tmp_path / name for name in ("empty", "cluster", "mounted")}
    for place in places.values():
        place.mkdir()

    @contextmanager
    def at(*names):
        found = [places[name] for name in names]
        yield tuple(found) if len(found) > 1 else found[0]

    def reads(directory, _sizes):
        steps.append(directory.parent.name)
        return 1.0

    def warm_up(directory, path):
        steps.append(("warm up", directory.name, path))

    monkeypatch.setattr(mount, "empty_mount", partial(at, "empty"))
    monkeypatch.setattr(mount, "fresh_cluster", lambda _: at("cluster", "mounted"))
    monkeypatch.setattr(mount, "Meter", lambda _: Meter())
    monkeypatch.setattr(mount, "warm_up", warm_up)
    monkeypatch.setattr(mount, "sequential_read_warm", reads)
    kinds = [
        (name, "MiB/s", Bound.FUSE, 0.5, how, None)
        for name, how in (("x", lambda *_: 1.0), ("y", reads))
    ]
    monkeypatch.setattr(mount, "WORKLOADS", kinds)
    assert len(mount.measure(Sizes(2, 64, 10, 4), tmp_path, Progress())) == 2
    warmed = ("warm up", "cluster", places["mounted"] / mount.FOLDER / BIG_FILE)
    assert steps == [warmed, "mounted", "empty"] * mount.READ_ROUNDS


@pytest.mark.parametrize("bound", list(Bound))
def test_large_reads_are_measured_in_turn_and_medians_count(tmp_path, monkeypatch, bound):
    rates = iter([1, 10, 5, 20, 2, 60, 4, 30, 3, 15])
    steps = []
    cluster, mounted, empty, local = (tmp_path / name for name in "cmel")

    def reads(directory, _sizes):
        steps.append(directory)
        return next(rates, 0)

    def writes(directory, _sizes):
        (directory / BIG_FILE).touch(exist_ok=False)
        steps.append(("written anew", directory))

    monkeypatch.setattr(mount, "sequential_read", reads)
    monkeypatch.setattr(mount, "sequential_write", writes)
    mounted.mkdir()
    (mounted / BIG_FILE).touch()
    kind = ("x", "MiB/s", bound, 0.5, reads, lambda _: 10**9)
    folders = cluster, mounted, empty, local
    row = mount._measured(kind, Sizes(2, 64, 10, 4), Meter(), folders, 5)
    beside = empty if bound is Bound.FUSE else local
    turn = [("written anew", mounted), mounted, beside]
    assert steps[:14] == (turn * 5)[1:]
    assert steps[14:] == ([] if bound is Bound.FUSE else [empty])
    assert row.value == 3 and row.limit == (20 if bound is Bound.FUSE else 20 / 3)


def test_dropping_the_page_cache_is_no_part_of_what_a_cold_read_takes(tmp_path, monkeypatch):
    steps = []

    class Watch:
        @contextmanager
        def used(self):
            steps.append("begin")
            yield Used()
            steps.append("end")

    def reads(directory, _sizes):
        steps.append(directory.name)
        return 1.0

    monkeypatch.setattr(mount, "COLD", {reads})
    monkeypatch.setattr(mount, "drop_page_cache", lambda: steps.append("drop"))
    kind = ("x", "MiB/s", Bound.FUSE, 0.5, reads, lambda _: 10**9)
    folders = tuple(tmp_path / name for name in ("cluster", "mounted", "empty", "local"))
    mount._measured(kind, Sizes(2, 64, 10, 4), Watch(), folders, 2)
    assert steps == ["drop", "begin", "mounted", "end", "drop", "empty"] * 2
    steps.clear()
    monkeypatch.setattr(mount, "WORKLOADS", [(*kind[:4], reads, None)])
    mount.measure_at(Sizes(2, 64, 10, 4), tmp_path, Progress())
    assert steps[0] == "drop" and len(steps) == 2


def test_every_sequential_write_is_of_a_new_file(tmp_path, monkeypatch):
    rates, found = iter([1, 30, 5, 9, 2, 60]), []

    def writes(directory, _sizes):
        path = directory / BIG_FILE
        found.append((directory.name, path.exists()))
        path.touch()
        return next(rates, 0)

    monkeypatch.setattr(mount, "sequential_write", writes)
    kind = ("x", "MiB/s", Bound.LOCAL_THIRD, 0.8, writes, None)
    folders = [tmp_path / name for name in ("cluster", "mounted", "empty", "local")]
    for folder in folders:
        folder.mkdir()
    row = mount._measured(kind, Sizes(2, 64, 10, 4), Meter(), tuple(folders), 3)
    assert found == [("mounted", False), ("local", False)] * 3 + [("empty", False)]
    assert (row.value, row.limit) == (2, 10)


def test_what_the_mount_writes_stands_beside_fio_as_well_and_what_it_reads_does_not(
    tmp_path, monkeypatch
):
    places = {name: tmp_path / name for name in ("empty", "cluster", "mounted")}
    for place in places.values():
        place.mkdir()
    asked = []

    @contextmanager
    def at(*names):
        found = [places[name] for name in names]
        yield tuple(found) if len(found) > 1 else found[0]

    def moved(blocks, kind):
        asked.append((kind, blocks._path.parent.parent.parent))
        return 150.0 * len(asked)

    def row_of(name):
        def work(folder, _sizes):
            (folder / BIG_FILE).touch()
            return 90.0

        return (name, "MiB/s", Bound.LOCAL_THIRD, 0.8, work, None)

    kinds = [row_of("written"), row_of("read")]
    monkeypatch.setattr(mount, "empty_mount", partial(at, "empty"))
    monkeypatch.setattr(mount, "fresh_cluster", lambda _: at("cluster", "mounted"))
    monkeypatch.setattr(mount, "Meter", lambda _: Meter())
    monkeypatch.setattr(mount, "WORKLOADS", kinds)
    monkeypatch.setattr(mount, "sequential_write", kinds[0][4])
    monkeypatch.setattr("benchmarks.fio.LargeBlocks._move", moved)
    written, read = mount.measure(Sizes(2, 64, 10, 4), tmp_path, Progress())
    assert [kind for kind, _ in asked] == [Large.NEW] * 3
    assert {place for _, place in asked} == {tmp_path}, "on the disk that is measured"
    assert written.fio == 100.0, "a third of the median of as many as there were files"
    assert (written.limit, read.fio) == (30.0, None)


def test_any_file_system_is_measured_as_often(tmp_path, monkeypatch):
    steps, rates = [], iter([1, 7, 3, 10, 20, 90, 40, 30])

    def does(name):
        def work(folder, _sizes):
            steps.append((name, (folder / BIG_FILE).exists()))
            (folder / BIG_FILE).touch()
            return next(rates) if name == "reads" or len(steps) < 4 else 0

        return work

    writes, reads = does("writes"), does("reads")
    monkeypatch.setattr(mount, "sequential_write", writes)
    monkeypatch.setattr(mount, "sequential_read", reads)
    kinds = [(str(how), "MiB/s", Bound.FUSE, None, how, None) for how in (writes, reads)]
    monkeypatch.setattr(mount, "WORKLOADS", kinds)
    rows = mount.measure_at(Sizes(2, 64, 10, 4), tmp_path, Progress())
    new, read = ("writes", False), ("reads", True)
    assert steps == [new, new, new, read, *([new, read] * 4)]
    assert [row.value for row in rows] == [3, 30]


def test_memory_is_touched_as_far_as_there_is_some(monkeypatch):
    lengths = []

    class Mapping(mmap.mmap):
        def __exit__(self, *_):
            lengths.append(
                (
                    len(self),
                    self[:] == b"\1".ljust(mmap.PAGESIZE, b"\0") * (len(self) // mmap.PAGESIZE),
                )
            )
            self.close()

    monkeypatch.setattr(mmap, "mmap", Mapping)
    machine.touch_memory(4 * mmap.PAGESIZE)
    monkeypatch.setattr(machine.os, "sysconf", lambda _: 6)
    machine.touch_memory(1 << 40)
    assert lengths == [(4 * mmap.PAGESIZE, True), (3 * mmap.PAGESIZE, True)]


def test_figures_of_the_kv_cache(tmp_path):
    sizes = kvcache.Sizes(4096, 64, 0.01)
    rate, collected, used = kvcache.fill(tmp_path / "kv", sizes, 0, 0.0)
    assert (rate > 0, collected, used > 0) == (True, 0, True)
    rate, hits, used, one_s = kvcache.read(tmp_path / "kv", sizes, 1, 8)
    assert (hits, rate > 0, used > 0, one_s > 0) == (1.0, True, True, True)
    some = kvcache.Figures(*range(1, 9), Used(1.0), Used(2.0))
    rows = kvcache.rows_of(some, some, sizes, 1000.0)
    assert [row.ratio for row in rows if "of local" in row.name] == [1.0] * 5
    assert len({row.name for row in rows}) == len(rows)


def test_figures_of_the_data_loader(tmp_path):
    path = tmp_path / "samples.ffr"
    dataloader.write_samples(path, dataloader.Sizes(600, 0.0))
    rate, used = dataloader.read_samples(path, PosixClient, 0.0, 1)
    assert rate > 0
    assert used > 0
    stream = dataloader.batches(600, 0)
    batches = [next(stream) for _ in range(4)]
    assert [len(batch) for batch in batches] == [256, 44, 256, 44]
    assert len(set(batches[0]) | set(batches[1])) == 300


class Fio:
    """What fio does of large blocks."""

    def mib_s(self, kind, share=1):
        return {Large.NEW: 450.0, Large.READ: 400.0}[kind] / share


def test_figures_of_checkpoints(tmp_path):
    gate = threading.Barrier(1)
    saved = checkpoint.save_shards(tmp_path, [0, 1], 1, gate)
    loaded = checkpoint.load_shards(tmp_path, [0, 1], 1, gate)
    again = checkpoint.load_shards_again(tmp_path, [0, 1], 1, gate)
    assert saved.sums == loaded.sums == again.sums
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-0", "shard-1"]
    assert saved.sums[0] != saved.sums[1]
    assert saved.took > 0
    assert saved.used > 0
    paces = checkpoint.Paces(300.0, 400.0, Used(1.0), Used(2.0))
    rows = paces.rows("", 900.0, 800.0, Fio())
    assert [(row.ratio, row.of_fio) for row in rows] == [(1.0, 2.0), (0.5, 1.0)]


def test_a_second_checkpoint_is_saved_when_the_space_of_the_first_is_free(tmp_path, monkeypatch):
    steps = []
    used, held = iter([900 * MIB, 899 * MIB, 133 * MIB, 132 * MIB]), iter([700 * MIB, 892 * MIB])

    def measured(mounted, *_):
        steps.append((mounted / "checkpoint").exists())
        return checkpoint.Paces(1.0, 2.0, Used(), Used())

    monkeypatch.setattr(checkpoint, "ember", lambda *words: steps.append(words[4]))
    monkeypatch.setattr(Nodes, "used_bytes", lambda _: next(used))
    monkeypatch.setattr(checkpoint, "held_bytes", lambda _: next(held))
    monkeypatch.setattr(checkpoint, "measure_bare", measured)
    (tmp_path / "checkpoint").mkdir()
    paces, grown = checkpoint.save_again(tmp_path, tmp_path, checkpoint.QUICK, Meter())
    assert (paces.save, grown) == (1.0, 25.0)
    assert steps == ["meta.gc_delay_s=1", False]
    assert next(used, None) is None, "waited until all of it was free"


def test_the_least_of_a_small_read_is_that_of_three_processes():
    assert 1.0 < wake_ups_us(20, 0.0) < 1e6


@pytest.mark.thorough
def test_bare_processes_move_whole_blocks(tmp_path):
    local = tmp_path / "local"
    local.write_bytes(os.urandom(3 * MIB))
    for row in (
        bare.write_row(local, 20, 100.0),
        bare.write_row(local, 20, 100.0, is_over=True),
        bare.read_row(local, 40, 100.0),
    ):
        assert row.value > 0
        assert row.used.total > 0
    assert [path.name for path in tmp_path.iterdir()] == ["local"]


@pytest.mark.thorough
def test_bare_processes_without_lent_blocks(tmp_path):
    assert bare.bare_writes(tmp_path, 20, may_borrow=False).mib_s > 0
    local = tmp_path / "local"
    local.write_bytes(os.urandom(3 * MIB))
    assert bare.bare_reads(local, 40, may_borrow=False).mib_s > 0


@pytest.mark.thorough
@pytest.mark.parametrize("may_borrow", [True, False])
def test_a_bare_replica_keeps_what_it_passes_on(tmp_path, may_borrow):
    blocks = [memoryview(bytearray(os.urandom(MIB))) for _ in range(bare.SLOT_COUNT + 3)]
    ours, up = socket.socketpair()
    down, below = socket.socketpair()
    with ours, up, down, below:
        giver = bare.Giver(ours)
        replica = bare.Replica(tmp_path / "file", len(blocks), up, down)
        running = threading.Thread(
            target=lambda: replica.run(bare.Receiver(up, may_borrow=may_borrow))
        )
        running.start()
        lower, passed = bare.Receiver(below, may_borrow=may_borrow), []
        assert lower.is_lent is may_borrow
        answers = threading.Thread(target=lambda: [ours.recv(1) for _ in blocks])
        for number, block in enumerate(blocks):
            giver.give(xxh3_64_intdigest(block).to_bytes(8, "little"), block)
            if not number:
                answers.start()  # what came before is the answer to the greeting
            target = memoryview(bytearray(MIB))
            assert lower.receive(target) is not None
            passed.append(target)
            below.send(bare.DONE)
        answers.join()
        ours.shutdown(socket.SHUT_WR)
        assert lower.receive(memoryview(bytearray(MIB))) is None
        below.close()
        running.join()
    assert passed == blocks
    assert (tmp_path / "file").read_bytes() == b"".join(blocks)


@pytest.mark.parametrize("may_borrow", [True, False])
def test_bare_processes_notice_a_damaged_block(may_borrow):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        giver = bare.Giver(theirs)
        receiver = bare.Receiver(ours, may_borrow=may_borrow)
        block = memoryview(bytearray(MIB - 1) + b"x")
        sending = threading.Thread(target=giver.give, args=(bytes(8), block))
        sending.start()
        with pytest.raises(ValueError, match="damaged"):
            receiver.receive(memoryview(bytearray(MIB)))
        sending.join()


def test_what_is_written_beside_what_the_machine_can_do():
    for value, limit, least in ((300.0, 400.0, 300.0), (500.0, 400.0, 400.0)):
        row = bare.limited_row("save", 200.0, Row("bare", value, "MiB/s", limit))
        assert (row.value, row.limit) == (200.0, least)


def test_figures_of_sorting():
    here = dict.fromkeys([*sort.STEPS, "processor"], 2.0)
    there = dict.fromkeys([*sort.STEPS, "processor"], 1.0)
    rows = sort.rows_of(here, there, sort.QUICK, Used(storage=4.0))
    assert [row.ratio for row in rows] == [0.5] * 5 + [1 / 6]
    assert rows[0].value == 50.0
    assert rows[-1].used == Used(program=20.0, storage=40.0)  # 100 MB


def test_processor_time_of_what_is_moved(tmp_path, monkeypatch):
    running = [(1, "storage"), (2, "mountd"), (3, "storage"), (4, "control"), (0, "storage")]
    services = [{"pid": pid, "role": role} for pid, role in running]
    seconds = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    monkeypatch.setattr(Nodes, "status", lambda _: {"services": services})
    monkeypatch.setattr("benchmarks.used.processor_s", seconds.__getitem__)
    with Meter(tmp_path).used() as used:
        seconds.update({1: 1.5, 2: 2.125, 3: 3.25, 4: 4.0625})
    used.program = 0.0625
    assert used == Used(program=0.0625, mount=0.125, storage=0.75, others=0.0625)
    assert str(used.per_gb(5e8)) == "2.00 = 0.12 + 0.25 + 1.50 + 0.12"
    with Meter().used() as used:
        sum(range(100_000))
    assert used.total == used.program > 0


def test_processor_time_is_printed(capsys):
    print_rows("x", [Row("reads", 1, "MiB/s", used=Used(1.0, 2.0, 3.0)), *ROWS])
    assert "6.00 = 1.00 + 2.00 + 3.00 + 0.00" in capsys.readouterr().out
    print_rows("x", ROWS)
    assert "s/GB" not in capsys.readouterr().out
