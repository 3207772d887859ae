"""Corners of `ember://` that need no cluster, on the model of one;
on a real one: tests/real/test_fsspec.py.
"""

import os
import random
from contextlib import asynccontextmanager

import pytest
from emberfs.fsspec import EmberFileSystem
from emberfs.fsspec_parts import base, content
from fsspec.implementations.cached import CachingFileSystem

from fs.client.blocking import BlockingFs
from fs.client.entries import Identity
from fs.client.native import EmberFs
from fs.runtime.ports import Runtime
from fs.schema.status import FsError, Status
from tests.client.fakes import FakeClock, FakeCluster, run_inline
from tests.client.test_native import PathMeta


@pytest.fixture
def cluster():
    return FakeCluster(FakeClock())


@pytest.fixture
def make(cluster, monkeypatch):
    """Makes file systems over the model, whose paths have one component."""

    @asynccontextmanager
    async def connected():
        runtime = Runtime(cluster.clock, None, run_inline, random.Random(1))
        meta = PathMeta(cluster, "client")
        yield EmberFs(meta, cluster.store(), runtime=runtime, identity=Identity(0, 0))

    with BlockingFs(connected) as connection:
        monkeypatch.setattr(base, "connection", lambda _: connection)

        def one(**options):
            options |= {"hosts": "h:1", "cluster_id": "c", "skip_instance_cache": True}
            return EmberFileSystem(**options)

        yield one


@pytest.fixture
def fs(make):
    return make()


def test_what_is_shown_of_a_file_system(make):
    """Also before anybody has looked for a cluster; never what lets a user in."""
    assert repr(make(token="ember-0-0123456789abcdef-x")) == "<EmberFileSystem of c>"
    assert repr(EmberFileSystem(cluster="/no/such")) == "<EmberFileSystem of /no/such>"
    assert repr(EmberFileSystem()) == "<EmberFileSystem of the cluster that runs here>"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("clutser", "cluster"), ("host", "hosts"), ("clusterid", "cluster_id"), ("group", "groups")],
)
def test_an_option_that_is_misspelt_means_no_other_cluster(make, wrong, meant):
    with pytest.raises(TypeError, match=f"{wrong}=.* is {meant}=... meant"):
        make(**{wrong: "x"})
    make(asynchronous=False, batch_size=4, anon=True)  # known to fsspec, or to other file systems


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "q"}, "/f: mode 'qb' is none of r, w, a, x, each with"),
        ({"cache_type": "block"}, "/f: cache_type 'block' is none of fsspec's: .*blockcache"),
    ],
)
def test_how_nothing_can_be_opened(fs, options, said):
    fs.pipe("/f", b"content")
    with pytest.raises(ValueError, match=said):
        fs.open("/f", **options)


def test_a_client_for_threads_says_why_it_is_of_no_use(cluster):
    """Among them the one that nobody has entered, which a shell invites to."""
    runtime = Runtime(cluster.clock, None, run_inline, random.Random(1))

    @asynccontextmanager
    async def connected():
        meta = PathMeta(cluster, "client")
        yield EmberFs(meta, cluster.store(), runtime=runtime, identity=Identity(0, 0))

    client = BlockingFs(connected)
    with pytest.raises(FsError, match="connects at the beginning of a `with` block"):
        client.stat("/")
    assert repr(client) == "<BlockingFs, not connected>"
    with client:
        assert repr(client) == "<BlockingFs, connected>"
        with client.create("/f") as file:
            assert repr(file) == "<BlockingFile '/f'>"
        assert repr(file) == "<BlockingFile '/f', closed>"
    with pytest.raises(FsError, match="this client is closed: connect again"):
        client.stat("/")


LONGEST = ("x" * 255, "ä" * 127, "漢" * 85, "é" + "漢" * 84, os.fsdecode(b"\xff" * 255))


@pytest.mark.parametrize("name", LONGEST)
def test_names_of_any_bytes_and_length_in_transactions(fs, name):
    with fs.transaction:
        fs.pipe_file(f"/{name}", b"data")
        (beside,) = fs.ls("/", detail=False)
        assert len(os.fsencode(beside[1:])) <= 255
    assert fs.ls("/", detail=False) == [f"/{name}"]
    assert fs.cat_file(f"/{name}") == b"data"


def test_kept_listings_follow_what_a_transaction_does(make):
    keeping = make(use_listings_cache=True)
    with keeping.transaction:
        keeping.pipe_file("/f", b"data")
        assert keeping.ls("/", detail=False) != ["/f"]
    assert keeping.ls("/", detail=False) == ["/f"]
    with pytest.raises(ZeroDivisionError), keeping.transaction:  # noqa: PT012
        keeping.pipe_file("/g", b"data")
        assert len(keeping.ls("/")) == 2
        _ = 1 / 0
    assert keeping.ls("/", detail=False) == ["/f"]


def test_kept_listings_do_not_survive_a_move_above_them(make):
    keeping = make(use_listings_cache=True)
    keeping.mkdir("/a", create_parents=False)
    assert keeping.ls("/a") == []
    keeping.dircache["/a/below"] = []
    keeping.mv("/a", "/b")
    assert "/a/below" not in keeping.dircache
    assert keeping.ls("/", detail=False) == ["/b"]


def test_a_transaction_that_cannot_end_leaves_nothing(fs, cluster):
    with pytest.raises(OSError, match="room"), fs.transaction:  # noqa: PT012
        file = fs.open("/f", "wb")
        file.write(b"data")
        cluster.chunks.write_faults = [FsError(Status.NO_SPACE, "no room")]
    assert fs.ls("/") == []
    fs.pipe_file("/f", b"later")
    assert fs.cat_file("/f") == b"later"


RANGES = (
    (0, 4),
    (None, None),
    (-3, None),
    (None, -3),
    (-100, 2),
    (5, 5),
    (7, 3),
    (8, 100),
    (100, 200),
    (-2, -1),
)


def test_ranges_are_what_slices_are(fs):
    data = {"/a": b"0123456789", "/empty": b""}
    fs.pipe(data)
    asked = [(path, *limits) for path in data for limits in RANGES]
    paths, starts, ends = (list(column) for column in zip(*asked, strict=True))
    assert fs.cat_ranges(paths, tuple(starts), iter(ends)) == [
        data[path][start:end] for path, start, end in asked
    ]
    assert fs.cat_ranges([], [], []) == []
    with pytest.raises(ValueError, match="one length"):
        fs.cat_ranges(paths, [0], [1])


def test_batches_of_any_size_give_the_same(fs, monkeypatch):
    fs.pipe({"/a": b"0123456789", "/b": b"abc"})
    monkeypatch.setattr(content, "BATCH_BYTES_MAX", 4)
    assert fs.cat(["/a", "/b", "/none", "/a"], on_error="omit") == {
        "/a": b"0123456789",
        "/b": b"abc",
    }
    assert fs.cat_ranges(["/a", "/b", "/a"], 1, 3) == [b"12", b"bc", b"12"]


def test_errors_of_the_connection_are_errors_of_the_system(fs, monkeypatch):
    fs.pipe_file("/a", b"data")
    calls = (
        lambda: fs.sizes(["/a"]),
        lambda: fs.cat(["/a", "/b"]),
        lambda: fs.pipe({"/a": b"", "/b": b""}),
        lambda: fs.cat_file("/a"),
        lambda: fs.find("/"),
        lambda: fs.ls("/a"),
        lambda: fs.exists("/a"),
        lambda: fs.du("/a"),
        lambda: fs.created("/a"),
        lambda: fs.cp_file("/a", "/b"),
        lambda: fs.touch("/c"),
        lambda: fs.mv("/a", "/b"),
        lambda: fs.rm("/a"),
        lambda: fs.open("/a"),
        lambda: fs.chmod("/a", 0o600),
    )

    def fail(*_):
        raise FsError(Status.RPC_TIMEOUT, "nobody answers")

    monkeypatch.setattr(fs.connection, "run", fail)
    for call in calls:
        with pytest.raises(OSError, match="nobody answers") as failed:
            call()
        assert failed.value.errno
        assert failed.value.filename


# Fsspec leaves its own file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_blocks_are_kept_by_caches_of_fsspec(fs, tmp_path):
    content_ = os.urandom(200_000)
    fs.pipe_file("/f", content_)
    kept = CachingFileSystem(fs=fs, cache_storage=str(tmp_path), check_files=False)
    with kept.open("/f", block_size=4096) as file:
        file.seek(100_000)
        assert file.read(10) == content_[100_000:100_010]
        assert file.cache.blocks
    assert file.closed
    fs.pipe_file("/f", bytes(200_000))
    with kept.open("/f", block_size=4096) as file:
        file.seek(100_000)
        assert file.read(10) == content_[100_000:100_010]  # of the cache
        file.seek(0)
        assert file.read(10) == bytes(10)


def test_what_caches_read_by_stops_at_the_end(fs):
    fs.pipe_file("/f", b"0123456789")
    with fs.open("/f", cache_type="bytes") as file:
        assert file.fetch_range(8, 20) == b"89"
        assert file.read() == b"0123456789"
        assert file.cache.size == 10


def test_a_file_is_not_copied_onto_itself(fs):
    fs.pipe_file("/a", b"data")
    fs.link("/a", "/b")
    for target in ("/a", "/b"):
        with pytest.raises(OSError, match="same file"):
            fs.cp_file("/a", target)
    assert fs.cat_file("/a") == b"data"


def test_what_is_no_bytes_empties_no_file(fs):
    fs.pipe_file("/a", b"kept")
    for wrong in ("text", 3, None, memoryview(b"with gaps")[::2]):
        with pytest.raises((TypeError, ValueError)):
            fs.pipe_file("/a", wrong)
        with pytest.raises((TypeError, ValueError)):
            fs.pipe({"/a": wrong})
        with pytest.raises((TypeError, ValueError)):
            fs.pipe({"/b": b"new", "/a": wrong})
    assert fs.cat_file("/a") == b"kept"
    assert not fs.exists("/b")
    fs.pipe({"/b": memoryview(b"\1\0\2\0").cast("H"), "/c": b""})
    assert fs.cat(["/b", "/c"]) == {"/b": b"\1\0\2\0", "/c": b""}


def test_directories_are_no_files(fs):
    fs.mkdir("/d", create_parents=False)
    for call in (fs.open, fs.cat_file, fs.rm_file):
        with pytest.raises(IsADirectoryError):
            call("/d")
    with pytest.raises(OSError), fs.open("/f", "w+b") as file:  # noqa: PT011
        file.truncate(-1)
