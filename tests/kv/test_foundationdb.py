"""The FoundationDB engine where it differs from others:
opening, prefixes, faults of the cluster, ranges in parts.

Without FDB_CLUSTER_FILE these run on the fake client library and server of tests/kv/fake_fdb; tests
that need a server to fail run on the fake alone.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import builtins
import gc
import os
import random
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from fs.kv import foundationdb, foundationdb_client
from fs.kv.api import KEY_BYTES_MAX, PREFIX_BYTES_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX
from fs.kv.buffer import WriteBuffer
from fs.kv.foundationdb import open_engine
from fs.kv.foundationdb_client import key_prefix, read_cluster_file
from fs.kv.transact import snapshot_read, transact
from fs.schema.config import KvSection
from fs.schema.status import FsError, Status
from tests.examples import first_quick
from tests.kv.fake_fdb import session
from tests.kv.fake_fdb.library import Future, Transaction
from tests.kv.fake_fdb.wire import ask
from tests.kv.harness import inline_runtime, open_foundationdb

pytestmark = pytest.mark.fdb
ROOT = Path(__file__).resolve().parents[2]

only_fake = pytest.mark.skipif(session.is_real(), reason="needs a server that fails when told to")


@pytest.fixture
def runtime():
    return inline_runtime()


@pytest.fixture
async def engine(runtime, nursery):
    engine = await open_foundationdb(runtime, nursery)
    yield engine
    await engine.clear_all()


@pytest.fixture
def autojump_clock():
    return trio.testing.MockClock()  # stepped by the harness


@pytest.fixture(scope="module")
def one_server(tmp_path_factory):
    if not session.is_real():  # else it serves processes of their own only
        session.fake_library()
    server = session.FakeServer(tmp_path_factory.mktemp("fdb"))
    yield server
    server.kill()


@pytest.fixture
def server(one_server):
    """A fake server that tests may stop, kill and start again."""
    yield one_server
    one_server.revive()


async def refusal(status: Status, awaitable) -> FsError:
    with pytest.raises(FsError) as caught:
        await awaitable
    assert caught.value.status is status, caught.value
    return caught.value


# ---- opening -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("", "no cluster file"),
        ("127.0.0.1:4500\n", "no cluster file"),
        ("a:b@1.2.3.4:4500\nc:d@1.2.3.4:4500\n", "no cluster file"),
        (b"\xff\xfe\x00", "no text"),
    ],
)
async def test_a_bad_cluster_file_is_told_at_once(tmp_path, runtime, text, says):
    path = tmp_path / "fdb.cluster"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    opening = open_engine(KvSection(cluster_file=str(path)), runtime, cluster_id="a")
    error = await refusal(Status.BAD_CONFIG, opening)
    assert says in str(error)
    assert str(path) in str(error)


def test_comments_and_tls_addresses_belong_into_cluster_files(tmp_path):
    path = tmp_path / "fdb.cluster"
    path.write_text("# DO NOT EDIT!\n\nmine:x7Yz@10.0.0.1:4500:tls,[::1]:4500:tls  # as of May\n")
    assert read_cluster_file(str(path)) == "mine:x7Yz@10.0.0.1:4500:tls,[::1]:4500:tls"


def test_prefixes_of_two_clusters_never_overlap():
    names = ["a", "a/b", "a%2Fb", "ab", "ä", "a\0"]
    prefixes = [key_prefix(name) for name in names]
    assert prefixes[1] == b"emberfs/a%2Fb/"
    for prefix in prefixes:
        assert [other for other in prefixes if other.startswith(prefix)] == [prefix]
    with pytest.raises(FsError) as caught:
        key_prefix("ä" * 64)
    assert caught.value.status is Status.BAD_CONFIG


async def test_without_the_package_it_says_what_to_install(tmp_path, runtime, monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *arguments, **options):
        if name == "fdb":
            raise ModuleNotFoundError(name)
        return real_import(name, *arguments, **options)

    path = tmp_path / "fdb.cluster"
    path.write_text("a:b@127.0.0.1:1\n")
    monkeypatch.setattr(foundationdb_client, "_clients", [])
    monkeypatch.setattr(builtins, "__import__", refuse)
    opening = open_engine(KvSection(cluster_file=str(path)), runtime, cluster_id="a")
    assert "pip install" in str(await refusal(Status.BAD_CONFIG, opening))


OPENING = """
import trio
import sys
from fs.kv.foundationdb import open_engine
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import KvSection
from fs.schema.status import FsError
{before}
async def main():
    section = KvSection(cluster_file=sys.argv[1], open_timeout_s=0.5, **{options})
    try:
        await open_engine(section, simulated_runtime(None, 1), cluster_id="a")
    except FsError as error:
        print(error)
    else:
        print("open")
trio.run(main)
{after}
"""


def opened(cluster_file, *, before="", options="{}", after="") -> str:
    """Return what a new process says that opens FoundationDB."""
    code = OPENING.format(before=before, options=options, after=after)
    command = [sys.executable, "-c", code, str(cluster_file)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FAKE = "from tests.kv.fake_fdb.library import install; library = install()"


@pytest.mark.slow
def test_without_the_client_library_it_says_what_to_install(tmp_path):
    """The real binding, with the loader told that there is no such library."""
    path = tmp_path / "fdb.cluster"
    path.write_text("a:b@127.0.0.1:1\n")
    before = """
import ctypes, ctypes.util
class Missing(ctypes.CDLL):
    def __init__(self, name, *a, **k):
        if 'fdb' in str(name): raise OSError(name)
        super().__init__(name, *a, **k)
ctypes.CDLL = Missing
ctypes.util.find_library = lambda name: None
"""
    said = opened(path, before=before)
    assert said.startswith("BAD_CONFIG")
    assert "libfdb_c.so" in said
    assert "foundationdb-clients" in said


@pytest.mark.slow
def test_a_server_that_is_away_is_told_within_the_time(tmp_path):
    path = tmp_path / "fdb.cluster"
    path.write_text("a:b@127.0.0.1:1\n")
    said = opened(path, before="" if session.is_real() else FAKE)
    assert said.startswith("KV_UNREACHABLE")
    assert "within 0.5 s" in said
    assert "release (7.3)" in said  # what the client library does not tell
    assert "127.0.0.1:1" in said


@pytest.mark.slow
def test_options_reach_the_client_before_its_network_starts(server, tmp_path):
    names = ("tls_certificate_path", "tls_key_path", "tls_ca_path")
    options = {name: str(tmp_path / name) for name in names}
    for path in options.values():
        Path(path).touch()
    options |= {"tls_verify_peers": "Check.Valid=1", "trace_directory": str(tmp_path)}
    said = opened(
        server.cluster_file,
        before=FAKE,
        options=repr(options),
        after="print(sorted(library.network.options.values()))",
    )
    assert said.splitlines() == ["open", str(sorted(v.encode() for v in options.values()))]


@pytest.mark.parametrize(
    "knob", ["tls_certificate_path", "tls_key_path", "tls_ca_path", "trace_directory"]
)
async def test_a_file_of_the_options_that_is_not_there_is_named(
    tmp_path, runtime, monkeypatch, knob
):
    """The client library says nothing of it; it was told as a server that does not answer."""
    path = tmp_path / "fdb.cluster"
    path.write_text("a:b@127.0.0.1:1\n")
    monkeypatch.setattr(foundationdb_client, "_clients", [])
    section = KvSection(cluster_file=str(path), **{knob: str(tmp_path / "none")})
    error = await refusal(Status.BAD_CONFIG, open_engine(section, runtime, cluster_id="a"))
    assert f"kv.{knob} {tmp_path / 'none'}: No such file" in str(error)


@pytest.mark.slow
def test_an_older_client_library_is_refused(server):
    before = f"{FAKE}\nlibrary.fdb_select_api_version_impl._function = lambda *_: 2203"
    before += "\nlibrary.fdb_get_max_api_version._function = lambda *_: 710"
    said = opened(server.cluster_file, before=before)
    assert said.startswith("BAD_CONFIG")
    assert "maximum version of 710" in said


async def test_other_options_in_one_process_are_refused(engine, runtime):
    section = KvSection(cluster_file=session.cluster_file(), tls_ca_path="/other.pem")
    await refusal(Status.BAD_CONFIG, open_engine(section, runtime, cluster_id="a"))


async def test_a_process_that_forked_is_not_served(engine, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(AssertionError, match="fork"):
        foundationdb_client.client_of(KvSection())


async def test_a_server_tells_its_version(engine):
    assert b'"version"' in await engine.server_status(10.0)


# ---- one store, many clusters ------------------------------------------------------------------


async def test_clusters_share_a_store_without_seeing_each_other(runtime, nursery):
    name = uuid.uuid4().hex
    first = await open_foundationdb(runtime, nursery, name)
    second = await open_foundationdb(runtime, nursery, f"{name}/")
    for engine in (first, second):
        tr = engine.transaction()
        tr.set(b"", b"lowest")
        tr.set(b"\xfe" * 100, b"high")
        await tr.commit()
    await first.clear_all()
    assert await snapshot_read(first, lambda tr: tr.get_range(b"", b"\xff")) == []
    assert len(await snapshot_read(second, lambda tr: tr.get_range(b"", b"\xff"))) == 2
    await second.clear_all()


# ---- reads -------------------------------------------------------------------------------------


async def test_ranges_longer_than_a_page_come_whole(engine):
    """This is what would break first if the binding's private `_get_range` changed."""
    expected = [(b"k%05d" % i, b"%d" % i) for i in range(1234)]
    tr = engine.transaction()
    for key, value in expected:
        tr.set(key, value)
    await tr.commit()

    async def rows(**options):
        return await snapshot_read(engine, lambda tr: tr.get_range(b"k", b"l", **options))

    assert await rows() == expected
    assert await rows(reverse=True) == expected[::-1]
    for limit in (1, 99, 100, 101, 250, 1233, 1234, 1235, 5000):
        assert await rows(limit=limit) == expected[:limit]
        assert await rows(limit=limit, reverse=True) == expected[::-1][:limit]


async def test_many_keys_are_read_side_by_side(engine, monkeypatch):
    tr = engine.transaction()
    for i in range(0, 150, 2):
        tr.set(b"%d" % i, b"%d" % i)
    await tr.commit()
    under_way = []
    is_settled = foundationdb.FoundationDbEngine.is_settled

    async def note(self, future, timeout_s):
        if not session.is_real():
            under_way.append(session.fake_library().count(Future))
        return await is_settled(self, future, timeout_s)

    monkeypatch.setattr(foundationdb.FoundationDbEngine, "is_settled", note)
    monkeypatch.setattr(foundationdb, "KEYS_AT_ONCE_MAX", 40)  # a snapshot lives five seconds
    keys = [b"%d" % i for i in range(150)]
    found = await engine.transaction().get_many(keys)
    assert found == [key if int(key) % 2 == 0 else None for key in keys]
    assert session.is_real() or under_way[0] >= foundationdb.KEYS_AT_ONCE_MAX


@only_fake
async def test_a_transaction_that_reads_and_writes_takes_three_requests(engine):
    """The read version, the read, the commit: what a metadata operation costs
    is counted in these.
    """
    cluster_file = session.cluster_file()
    before = ask(cluster_file, "count")
    tr = engine.transaction()
    await tr.get(b"a")
    await tr.get(b"a", snapshot=True)
    tr.set(b"a", b"1")
    await tr.commit()
    after = ask(cluster_file, "count")
    spent = {name: after[name] - before.get(name, 0) for name in after}
    assert (spent["read_version"], spent["commit"]) == (1, 1)
    assert spent["get"] <= 2


# ---- limits ------------------------------------------------------------------------------------


async def test_the_longest_prefix_leaves_room_for_the_longest_key(runtime, nursery):
    name = uuid.uuid4().hex.ljust(PREFIX_BYTES_MAX - len(key_prefix("")), "x")
    assert len(key_prefix(name)) == PREFIX_BYTES_MAX
    engine = await open_foundationdb(runtime, nursery, name)
    tr = engine.transaction()
    tr.set(b"k" * KEY_BYTES_MAX, b"x" * VALUE_BYTES_MAX)
    tr.set_versionstamped_key(b"k" * (KEY_BYTES_MAX - 14), b"", b"x")
    tr.set_versionstamped_value(b"v", b"x" * (VALUE_BYTES_MAX - 14))
    tr.add_read_conflict_key(b"k" * KEY_BYTES_MAX)
    tr.clear_range(b"l", b"m" * KEY_BYTES_MAX)
    assert await tr.commit() is not None
    await engine.clear_all()


@pytest.mark.parametrize("kind", first_quick([None, 0.0, 0.2, 0.7]))
@pytest.mark.parametrize("size_max", first_quick([200, 5000, 8], 2))
async def test_what_the_buffer_accepts_is_never_too_large(runtime, nursery, size_max, kind):
    """It counts a transaction as FoundationDB does, or higher,
    whatever the transaction consists of.
    """
    name = uuid.uuid4().hex.ljust(PREFIX_BYTES_MAX - len(key_prefix("")), "x")
    engine = await open_foundationdb(runtime, nursery, name)
    source = random.Random(size_max)
    buffer = WriteBuffer()
    buffer.set(b"", b"")
    with pytest.raises(FsError) as caught:
        fill(buffer, source, size_max, kind)
    assert caught.value.status is Status.KV_TRANSACTION_TOO_LARGE
    tr = engine.transaction()
    tr._buffer = buffer
    assert await tr.commit() is not None
    await engine.clear_all()


def fill(buffer: WriteBuffer, source: random.Random, size_max: int, kind: float | None) -> None:
    """Write until the buffer refuses it: of one kind alone, or of all."""
    while True:
        random_write(buffer, source, size_max, source.random() if kind is None else kind)


def random_write(buffer: WriteBuffer, source: random.Random, size_max: int, kind: float) -> None:
    key = source.randbytes(source.randint(4, size_max)).replace(b"\xff", b"\xfe")
    if kind < 0.2:
        buffer.set(key, bytes(source.randint(0, size_max)))
    elif kind < 0.4:
        buffer.clear(key)
    elif kind < 0.41 and buffer.size_bytes < TRANSACTION_BYTES_MAX / 100:
        # It looks at every write so far.
        buffer.clear_range(key, key + b"\xfe")
    elif kind < 0.6:
        buffer.add_read_key(key)
    elif kind < 0.7:
        buffer.add_read_range(key, key + b"\xfe")
    elif kind < 0.8:
        buffer.set_versionstamped_key(key, b"", bytes(size_max))
    else:
        buffer.add_write_conflict_key(key)


def test_the_buffer_counts_what_was_overwritten_once_more():
    """Refusing early is the safe side."""
    buffer = WriteBuffer()
    buffer.set(b"k", b"x")
    once = buffer.size_bytes
    buffer.set(b"k", b"x")
    assert buffer.size_bytes == 2 * once


# ---- what the fake refuses as the real one does ------------------------------------------------


@only_fake
async def test_the_fake_is_as_strict_as_the_client_library(engine):
    """Otherwise a mistake of the engine would show on a real FoundationDB only."""
    fdb = engine.fdb

    async def code_of(tr, future) -> int:
        await engine.is_settled(future, 10.0)
        with pytest.raises(fdb.FDBError) as caught:
            future.wait()
        return caught.value.code

    tr = engine.database.create_transaction()
    assert await code_of(tr, tr.get(b"\xff")) == 2004
    everything = fdb.KeySelector.first_greater_or_equal
    beyond = (everything(b""), everything(b"\xff\x00"), 1, fdb.StreamingMode.exact, 1, False)
    assert await code_of(tr, tr._get_range(*beyond)) == 2004
    for write in (
        lambda tr: tr.set(b"\xff", b""),
        lambda tr: tr.clear_range(b"a", b"\xff\x00"),
        lambda tr: tr.add_write_conflict_range(b"a", b"\xff\x00"),
    ):
        tr = engine.database.create_transaction()
        write(tr)
        assert await code_of(tr, tr.commit()) == 2004
    for parameter in (b"", bytes(13), bytes(10) + b"\1\0\0\0", bytes(10) + b"\xff" * 4):
        tr = engine.database.create_transaction()
        tr.set_versionstamped_value(b"a", parameter)
        assert await code_of(tr, tr.commit()) == 2000
    tr = engine.database.create_transaction()
    with pytest.raises(AssertionError, match="no int of C"):
        tr._get_range(*beyond[:2], 1 << 40, *beyond[3:])
    tr.set(b"a", b"")
    with pytest.raises(AssertionError, match="before the writes"):
        tr.add_read_conflict_key(b"a")
    await engine.is_settled(tr.commit(), 10.0)
    with pytest.raises(AssertionError, match="commit had begun"):
        tr.get(b"a")


# ---- faults of the cluster ---------------------------------------------------------------------


@only_fake
@pytest.mark.parametrize("is_committed", [False, True])
async def test_an_unknown_outcome_is_told_as_such(runtime, server, is_committed):
    engine = await open_at(server, runtime)
    ask(str(server.cluster_file), "push_faults", ("commit", 1021, is_committed))
    tr = engine.transaction()
    tr.set(b"a", b"1")
    error = await refusal(Status.KV_COMMIT_UNKNOWN, tr.commit())
    assert not error.definite
    assert "1021" in str(error)
    found = await snapshot_read(engine, lambda tr: tr.get(b"a"))
    assert (found is not None) is is_committed


async def open_at(server, runtime, **options):
    section = KvSection(cluster_file=str(server.cluster_file), **options)
    return await open_engine(section, runtime, cluster_id=f"test-{uuid.uuid4().hex}")


@only_fake
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (1020, Status.KV_CONFLICT),
        (1007, Status.KV_TOO_OLD),
        (1037, Status.KV_CONFLICT),
        (2101, Status.KV_TRANSACTION_TOO_LARGE),
        (1500, Status.IO_ERROR),
    ],
)
async def test_every_error_of_a_commit_has_its_status(runtime, server, code, status):
    engine = await open_at(server, runtime)
    ask(str(server.cluster_file), "push_faults", ("commit", code, False))
    tr = engine.transaction()
    tr.set(b"a", b"1")
    error = await refusal(status, tr.commit())
    assert error.definite is (status is not Status.IO_ERROR)
    assert f"({code})" in str(error)


@only_fake
@pytest.mark.parametrize("name", ["get", "get_range", "read_version"])
@pytest.mark.parametrize("code", [1037, 1007])
async def test_errors_of_reads_are_retried(runtime, server, name, code):
    engine = await open_at(server, runtime)
    ask(str(server.cluster_file), "push_faults", (name, code, False))
    runs = []

    async def fn(tr):
        runs.append(1)
        await tr.get(b"a")
        tr.set(b"a", b"%d" % len(await tr.get_range(b"", b"z")))

    await transact(engine, fn, runtime=runtime)
    assert len(runs) == 2


@only_fake
@pytest.mark.parametrize("name", ["get", "get_range"])
async def test_a_read_that_failed_ends_its_transaction(runtime, server, name):
    """FoundationDB's own goes on after an error, at a newer snapshot:
    rows of two states would be taken for one.
    """
    engine = await open_at(server, runtime)
    tr = engine.transaction()
    assert await tr.get(b"a") is None
    ask(str(server.cluster_file), "push_faults", (name, 1037, False))
    await refusal(Status.KV_UNAVAILABLE, tr.get(b"b") if name == "get" else tr.get_range(b"", b"z"))
    for use in (lambda: tr.get(b"c"), lambda: tr.get_range(b"", b"z"), tr.commit):
        with pytest.raises(AssertionError, match="over"):
            await use()


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_commit_without_a_versionstamp_is_not_taken_for_none(engine, monkeypatch, is_error):
    """It was told as a read that had not been answered, or as a failed disk."""
    monkeypatch.setattr(foundationdb, "READ_TIMEOUT_S", 0.2)
    other = engine.database.create_transaction()
    stamp = other.get_versionstamp()  # never there; an error once nothing has been committed by it
    tr = engine.transaction()
    tr.set(b"a", b"1")
    if is_error:
        await engine.is_settled(other.commit(), 10.0)
    with monkeypatch.context() as patched:
        patched.setattr(type(other), "get_versionstamp", lambda _self: stamp)
        error = await refusal(Status.KV_COMMIT_UNKNOWN, tr.commit())
    assert not error.definite
    assert await snapshot_read(engine, lambda tr: tr.get(b"a")) == b"1"


@only_fake
async def test_a_killed_server_is_a_pause(runtime, server):
    """Everything committed is there again, and the client finds back by itself."""
    engine = await open_at(server, runtime)

    async def count(tr):
        tr.set(b"n", b"%d" % (int(await tr.get(b"n") or b"0") + 1))

    for _ in range(3):
        await transact(engine, count, runtime=runtime)
        server.kill()
        server.start()
    assert await snapshot_read(engine, lambda tr: tr.get(b"n")) == b"3"


@only_fake
async def test_a_commit_under_way_when_the_server_dies_is_unknown(runtime, server):
    engine = await open_at(server, runtime)
    tr = engine.transaction()
    tr.set(b"a", b"1")
    server.stop()  # the request is sent and not answered

    async def kill_soon() -> None:
        await trio.sleep(0.1)
        server.kill()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_soon)
        await refusal(Status.KV_COMMIT_UNKNOWN, tr.commit())
    server.start()
    assert await snapshot_read(engine, lambda tr: tr.get(b"a")) is None


@only_fake
async def test_a_silent_server_is_told_within_the_time(runtime, server, monkeypatch):
    monkeypatch.setattr(foundationdb, "READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(foundationdb, "COMMIT_TIMEOUT_S", 0.3)
    engine = await open_at(server, runtime)
    server.stop()
    tr = engine.transaction()
    error = await refusal(Status.KV_UNAVAILABLE, tr.get(b"a"))
    assert "within 0.2 s" in str(error)
    await refusal(Status.KV_UNAVAILABLE, engine.transaction().get_range(b"", b"z"))
    tr = engine.transaction()
    tr.set(b"a", b"1")
    await refusal(Status.KV_COMMIT_UNKNOWN, tr.commit())
    assert engine.waiting_count == 0


@pytest.mark.slow
@only_fake
async def test_a_cancelled_read_leaves_nothing_behind(runtime, server):
    engine = await open_at(server, runtime)
    library = session.fake_library()

    def held_count() -> int:
        gc.collect()  # errors of earlier tests are held by their tracebacks
        return library.count(Future) + library.count(Transaction)

    before = held_count()
    server.stop()
    with trio.move_on_after(0.1) as scope:
        await engine.transaction().get(b"a")
    assert scope.cancelled_caught
    with trio.fail_after(60):  # without an answer
        while held_count() > before:  # noqa: ASYNC110 - they tell nobody
            await trio.sleep(0.01)
    assert engine.waiting_count == 0
    server.go_on()
    assert await snapshot_read(engine, lambda tr: tr.get(b"a")) is None


@only_fake
async def test_an_answer_after_the_event_loop_has_ended_is_dropped(server, capfd):
    """Each trio run has engines of its own; the client library outlives them."""

    def run(stop: bool) -> None:
        async def main() -> None:
            engine = await open_at(server, inline_runtime())
            if stop:
                server.stop()
                with trio.move_on_after(0.05):
                    await engine.transaction().get(b"a")
            else:
                assert await engine.transaction().get(b"a") is None

        trio.run(main)

    await trio.to_thread.run_sync(run, True)
    server.go_on()
    await trio.to_thread.run_sync(run, False)
    assert "exception" not in capfd.readouterr().err.lower()
