"""`ember://` on a real cluster: fsspec's own suite, and what it does not ask for."""

import io
import multiprocessing
import os
import pickle
import posixpath
import random
import secrets
import subprocess
import sys

import fsspec
import pytest
from emberfs.clusters import disconnect
from emberfs.fsspec import EmberFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def connections(cluster):  # noqa: ARG001 - to be ended before it
    yield
    disconnect()


@pytest.fixture
def fs(cluster):
    return EmberFileSystem(cluster=cluster.directory)


@pytest.fixture
def folder(fs):
    """A fresh directory, without any character that means something to glob."""
    made = f"/fsspec-{secrets.token_hex(4)}"
    fs.mkdir(made)
    yield made
    fs.rm(made, recursive=True)


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, cluster):
        return EmberFileSystem(cluster=cluster.directory)

    @pytest.fixture
    def fs_path(self, folder):
        return folder

    @pytest.fixture
    def fs_join(self):
        return posixpath.join

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmp_path):
        return str(tmp_path)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


# ---- what the suite does not ask for -------------------------------------------------------------


def test_modes(fs, folder):
    path = f"{folder}/f"
    with fs.open(path, "xb") as file:
        assert file.write(b"one\n") == 4
        assert file.tell() == 4
    with pytest.raises(FileExistsError):
        fs.open(path, "xb")
    with fs.open(path, "ab") as first, fs.open(path, "ab") as second:
        for file, line in ((first, b"two\n"), (second, b"three\n"), (first, b"four\n")):
            file.write(line)
            file.flush()
    assert fs.cat_file(path) == b"one\ntwo\nthree\nfour\n"
    with fs.open(path, "r+b") as file:
        assert file.readline() == b"one\n"
        file.write(b"TWO")
        file.seek(0, 2)
        file.write(b"five")
        file.flush()
        file.seek(4)
        assert file.read() == b"TWO\nthree\nfour\nfive"
        file.truncate(7)
    assert fs.cat_file(path) == b"one\nTWO"
    with fs.open(path, "w+b") as file:
        file.write(b"new")
        file.seek(1)
        assert file.read() == b"ew"
    with fs.open(path, "wt", encoding="utf-8") as file:
        file.write("zeile\nänderung\n")
    with fs.open(path, "rt", encoding="utf-8") as file:
        assert list(file) == ["zeile\n", "änderung\n"]
    with fs.open(path, "rb") as file:
        assert not file.writable()
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with pytest.raises(ValueError, match="mode"):
        fs.open(path, "qb")


@pytest.mark.parametrize("cache_type", [None, "none", "readahead", "bytes", "all", "blockcache"])
def test_reads_in_a_row_and_anywhere(fs, folder, cache_type):
    path, data = f"{folder}/f", random.Random(1).randbytes(3_000_001)
    fs.pipe_file(path, data)
    with fs.open(path, "rb", block_size=2**20, cache_type=cache_type) as file:
        assert file.size == len(data)
        assert b"".join(iter(lambda: file.read(70_001), b"")) == data
        rng = random.Random(2)
        for _ in range(60):
            start, count = rng.randrange(len(data) + 10), rng.choice([1, 100, 5000, 400_000])
            file.seek(start)
            assert file.read(count) == data[start : start + count]
        buffer = bytearray(200_000)
        file.seek(-len(buffer), 2)
        assert file.readinto(buffer) == len(buffer)
        assert buffer == data[-len(buffer) :]


def test_many_at_once(fs, folder):
    contents = {f"{folder}/{i:02}": bytes([i]) * i * 1000 for i in range(40)}
    fs.pipe(contents)
    fs.pipe({f"{folder}/new/a": b"1", f"{folder}/new/b/c": b"2"})
    assert fs.cat(f"{folder}/new", recursive=True) == {
        f"{folder}/new/a": b"1",
        f"{folder}/new/b/c": b"2",
    }
    fs.mv(f"{folder}/new/b/c", f"{folder}/other/c")
    fs.rm([f"{folder}/new", f"{folder}/other"], recursive=True)
    assert fs.cat(folder, recursive=True) == contents
    assert fs.cat(f"{folder}/0*") == {f: c for f, c in contents.items() if "/0" in f}
    assert fs.sizes(list(contents)) == [len(c) for c in contents.values()]
    three = [f"{folder}/30"] * 3 + [f"{folder}/no"]
    *found, missing = fs.cat_ranges(three, [0, -10, 29_990, 0], [5, None, 40_000, 1])
    assert found == [b"\x1e" * 5, b"\x1e" * 10, b"\x1e" * 10]
    assert isinstance(missing, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(three, 0, 1, on_error="raise")
    assert fs.cat([f"{folder}/01", f"{folder}/no"], on_error="omit") == {
        f"{folder}/01": b"\1" * 1000
    }
    assert fs.head(f"{folder}/09", 3) == fs.tail(f"{folder}/09", 3) == b"\t\t\t"
    assert fs.du(folder) == sum(map(len, contents.values()))
    assert fs.du(folder, total=False) == {f: len(c) for f, c in contents.items()}


def test_far_into_a_file(fs, folder):
    path, far = f"{folder}/f", 2**32 + 5
    with fs.open(path, "wb") as file:
        file.seek(far)
        file.write(b"far away")
    assert fs.size(path) == far + 8
    assert fs.cat_ranges([path] * 3, [far - 2, -4, 0], [far + 3, None, 2]) == [
        b"\0\0far", b"away", b"\0\0",
    ]  # fmt: skip
    with fs.open(path, "rb") as file:
        file.seek(far)
        assert file.read() == b"far away"


def test_moves_onto_what_is_there(fs, folder):
    fs.pipe({f"{folder}/{name}": name.encode() for name in ("a/f", "b/a/g", "c/f", "h")})
    with pytest.raises(OSError, match=folder):
        fs.mv(f"{folder}/a", f"{folder}/b")  # there is one of that name in it, with something in it
    with pytest.raises(OSError, match=folder):
        fs.mv(f"{folder}/b", f"{folder}/b/a/into-itself")
    with pytest.raises(NotADirectoryError):
        fs.mv([f"{folder}/a", f"{folder}/c"], f"{folder}/h")
    fs.mv(f"{folder}/h", f"{folder}/c/f")
    assert fs.cat(folder, recursive=True) == {
        f"{folder}/a/f": b"a/f", f"{folder}/b/a/g": b"b/a/g", f"{folder}/c/f": b"h",
    }  # fmt: skip
    fs.mv([f"{folder}/a/f", f"{folder}/b/a/g"], f"{folder}/new/")
    assert fs.find(f"{folder}/new") == [f"{folder}/new/f", f"{folder}/new/g"]


def test_names(fs, folder):
    fs.makedirs(f"{folder}/a/b")
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{folder}/a/b")
    fs.makedirs(f"{folder}/a/b", exist_ok=True)
    fs.pipe_file(f"{folder}/a/f", b"data")
    fs.symlink("a", f"{folder}/link")
    fs.symlink("nowhere", f"{folder}/broken")
    assert fs.info(f"{folder}/link")["type"] == "directory"
    assert fs.isdir(f"{folder}/link")
    assert fs.islink(f"{folder}/link")
    assert fs.lexists(f"{folder}/broken")
    assert not fs.exists(f"{folder}/broken")
    assert not fs.exists(f"{folder}/a/f/below-a-file")
    everything = ["a", "a/b", "a/f", "broken", "link"]
    assert fs.find(folder, withdirs=True) == [folder, *(f"{folder}/{name}" for name in everything)]
    assert fs.find(folder) == [f"{folder}/a/f", f"{folder}/broken"]
    assert [(p, sorted(d), sorted(f)) for p, d, f in fs.walk(folder)] == [
        (folder, ["a", "link"], ["broken"]),
        (f"{folder}/a", ["b"], ["f"]),
        (f"{folder}/a/b", [], []),
    ]
    assert fs.find(f"{folder}/a/f") == [f"{folder}/a/f"]
    assert fs.find(f"{folder}/no") == []
    assert fs.ls(f"{folder}/a/f", detail=False) == [f"{folder}/a/f"]
    assert {i["name"]: i for i in fs.ls(folder)}[f"{folder}/link"] == fs.info(f"{folder}/link")
    before = fs.info(f"{folder}/a/f")["ino"]
    fs.mv(f"{folder}/a/f", f"{folder}/g")
    assert fs.info(f"{folder}/g")["ino"] == before
    fs.mv(f"{folder}/g", f"{folder}/a")
    fs.mv(f"{folder}/a", f"{folder}/z")
    assert fs.cat_file(f"{folder}/z/g") == b"data"
    fs.link(f"{folder}/z/g", f"{folder}/second")
    assert fs.info(f"{folder}/second")["nlink"] == 2
    fs.chmod(f"{folder}/second", 0o600)
    assert fs.info(f"{folder}/z/g")["mode"] & 0o777 == 0o600
    key = fs.ukey(f"{folder}/second")
    fs.touch(f"{folder}/second", truncate=False)
    fs.pipe_file(f"{folder}/second", b"DATA")
    assert fs.ukey(f"{folder}/second") != key
    assert fs.created(f"{folder}/second") <= fs.modified(f"{folder}/second")
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{folder}/z")
    fs.rm(f"{folder}/link", recursive=True)
    fs.rm([f"{folder}/z", f"{folder}/b*"], recursive=True)
    assert fs.find(folder, withdirs=True) == [folder, f"{folder}/second"]


def test_errors_are_told_apart(cluster, folder, fs):
    fs.mkdir(f"{folder}/secret")
    fs.pipe_file(f"{folder}/secret/f", b"x")
    fs.chmod(f"{folder}/secret", 0o700)
    stranger = EmberFileSystem(cluster=cluster.directory, uid=65_533)
    for call in (
        stranger.exists,
        stranger.isfile,
        stranger.cat_file,
        stranger.info,
        stranger.rm,
        stranger.open,
    ):
        with pytest.raises(PermissionError, match=folder):
            call(f"{folder}/secret/f")
    strict = EmberFileSystem(cluster=cluster.directory, auto_mkdir=False)
    cases = (
        (FileNotFoundError, lambda: fs.info(f"{folder}/no")),
        (FileNotFoundError, lambda: fs.ls(f"{folder}/no")),
        (FileNotFoundError, lambda: fs.cat_file(f"{folder}/no")),
        (FileNotFoundError, lambda: strict.pipe_file(f"{folder}/no/f", b"")),
        (FileNotFoundError, lambda: strict.pipe({f"{folder}/no/f": b""})),
        (FileNotFoundError, lambda: strict.mv(f"{folder}/secret/f", f"{folder}/no/f")),
        (FileNotFoundError, lambda: fs.mv(f"{folder}/no", f"{folder}/yes")),
        (FileNotFoundError, lambda: fs.rm(f"{folder}/no")),
        (NotADirectoryError, lambda: fs.ls(f"{folder}/secret/f/g")),
        (IsADirectoryError, lambda: fs.open(f"{folder}/secret", "wb")),
        (FileExistsError, lambda: fs.mkdir(f"{folder}/secret")),
        (OSError, lambda: fs.rmdir(f"{folder}/secret")),
    )
    for kind, call in cases:
        with pytest.raises(kind, match=folder):
            call()
    with pytest.raises(OSError, match="other-cluster"):
        EmberFileSystem(
            hosts=f"unix:{cluster.directory}/run/control.sock", cluster_id="other-cluster"
        ).ls("/")


def test_transactions(fs, folder):
    path = f"{folder}/f"
    fs.pipe_file(path, b"before")
    with fs.transaction:
        fs.pipe_file(path, b"after")
        with fs.open(f"{folder}/new", "xb") as file:
            file.write(b"new")
        assert fs.cat_file(path) == b"before"
        assert not fs.exists(f"{folder}/new")
        with pytest.raises(io.UnsupportedOperation):
            fs.open(path, "ab")
    assert fs.cat(folder, recursive=True) == {path: b"after", f"{folder}/new": b"new"}
    with pytest.raises(FileNotFoundError), fs.transaction:  # noqa: PT012 - the block is what is undone
        fs.pipe_file(path, b"never")
        fs.pipe({f"{folder}/never": b"never"})
        fs.cat_file(f"{folder}/never")
    assert fs.cat(folder, recursive=True) == {path: b"after", f"{folder}/new": b"new"}


def test_urls(cluster, fs, folder):
    fs.pipe_file(f"{folder}/f", b"data")
    for protocol in ("ember", "hf3fs"):
        with fsspec.open(f"{protocol}://{folder}/f", cluster=cluster.directory) as file:
            assert file.read() == b"data"
            assert file.full_name == f"ember://{folder}/f"
    strip, options = EmberFileSystem._strip_protocol, EmberFileSystem._get_kwargs_from_urls
    url = "ember://the-id@one:7000,two:7001/a//b/"
    assert strip(url) == "/a/b"
    assert options(url) == {"cluster_id": "the-id", "hosts": "one:7000,two:7001"}
    assert strip(["ember:///", "a/b", "/"]) == ["/", "/a/b", "/"]
    assert (
        EmberFileSystem(**options(url)).unstrip_protocol("/a")
        == "ember://the-id@one:7000,two:7001/a"
    )
    with pytest.raises(ValueError, match="third slash"):
        fsspec.open("ember://data/f")
    with fsspec.open(f"ember:/{folder}/f", cluster=cluster.directory) as file:
        # One slash less, as programs write it that take URLs for paths.
        assert file.read() == b"data"
    with pytest.raises(ValueError, match="cluster_id"):
        EmberFileSystem(hosts="one:7000").ls("/")
    with pytest.raises(OSError, match="no-such"):
        EmberFileSystem(cluster=cluster.directory / "no-such").ls("/")


def test_listings_are_kept_when_asked_for(cluster, fs, folder):
    keeping = EmberFileSystem(cluster=cluster.directory, use_listings_cache=True)
    assert keeping.ls(folder) == []
    fs.pipe_file(f"{folder}/by-another", b"x")
    assert keeping.ls(folder) == []
    assert len(keeping.ls(folder, refresh=True)) == 1
    keeping.pipe_file(f"{folder}/own", b"x")
    assert len(keeping.ls(folder)) == 2
    keeping.rm(f"{folder}/own")
    assert len(keeping.ls(folder)) == 1
    fs.rm(f"{folder}/by-another")
    keeping.invalidate_cache()
    assert keeping.ls(folder) == []


IN_ANOTHER_PROCESS = """
import pickle
fs, file = pickle.loads(pickled)
assert file.read() == data[3:]
assert fs.cat_file(file.path) == data
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_instances_and_open_files_go_to_other_processes(fs, folder, method):
    data = os.urandom(10_000)
    fs.pipe_file(f"{folder}/f", data)
    with fs.open(f"{folder}/f") as file:
        file.read(3)
        pickled = pickle.dumps((fs, file))
        again, _ = pickle.loads(pickled)
        assert again is fs
        child = multiprocessing.get_context(method).Process(
            target=exec, args=(IN_ANOTHER_PROCESS, {"pickled": pickled, "data": data})
        )
        child.start()
        child.join(200)
        assert child.exitcode == 0
    with fs.open(f"{folder}/g", "wb") as file, pytest.raises(TypeError, match="pickled"):
        pickle.dumps(file)


def test_what_a_fork_inherits(fs, folder):
    data = os.urandom(300_000)
    fs.pipe_file(f"{folder}/f", data)
    with fs.open(f"{folder}/f") as reading, fs.open(f"{folder}/g", "wb") as writing:
        assert reading.read(10) == data[:10]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert reading.read() == data[10:]
                assert fs.cat_file(f"{folder}/f") == data
                with pytest.raises(OSError, match="before a fork"):
                    writing.raw.write(b"x")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert reading.read() == data[10:]
        writing.write(b"parent")
    assert fs.cat_file(f"{folder}/g") == b"parent"


def test_what_is_open_at_the_end_of_a_program_is_written(cluster, fs, folder):
    program = (
        "from emberfs.fsspec import EmberFileSystem\n"
        f"file = EmberFileSystem(cluster={str(cluster.directory)!r}).open('{folder}/f', 'wb')\n"
        "file.write(b'left in the buffer')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert fs.cat_file(f"{folder}/f") == b"left in the buffer"
