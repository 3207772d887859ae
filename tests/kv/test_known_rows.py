"""What the embedded engine remembers of its newest state:
never anything but what the store says.
"""

import random

from fs.kv import rocksdb_view
from fs.kv.rocksdb import RocksDbEngine
from fs.kv.rocksdb_view import KNOWN_ROW_BYTES_MAX, KnownRows, RocksDbView
from fs.schema.config import KvSection
from fs.schema.status import FsError, Status
from tests.kv.harness import CLUSTER_ID, inline_runtime

KEYS = [b"key-%d" % i for i in range(12)]


async def opened(path) -> RocksDbEngine:
    return await RocksDbEngine.open(str(path), KvSection(), inline_runtime(), cluster_id=CLUSTER_ID)


def write_something(tr, source: random.Random) -> None:
    key = source.choice(KEYS)
    kind = source.randrange(6)
    if kind == 0:
        tr.clear(key)
    elif kind == 1:
        tr.clear_range(min(key, KEYS[3]), max(key, KEYS[3]))
    elif kind == 2:
        tr.atomic_add(b"count-" + key, 1)
    elif kind == 3:
        tr.set(key, bytes(KNOWN_ROW_BYTES_MAX + 1))
    else:
        tr.set(key, source.randbytes(3))


async def test_what_is_known_is_what_the_store_holds(tmp_path, monkeypatch):
    """Also for readers of older states, and when more is read than is remembered."""
    monkeypatch.setattr(rocksdb_view, "KNOWN_ROWS_MAX", 9)
    engine, source = await opened(tmp_path / "kv"), random.Random(1)
    looked_at = KEYS + [b"count-" + key for key in KEYS]
    known_count = older_count = 0
    for _ in range(300):
        old, bare = engine.transaction(), RocksDbView(engine._db, 0, KnownRows())
        bare.fix()
        await old.get(KEYS[0])
        tr = engine.transaction()
        for key in source.sample(looked_at, 6):
            assert await tr.get(key) == bare.get(key), key
        write_something(tr, source)
        await tr.commit()
        known_count += len(engine._known)
        older_count += len(engine._known.older)
        assert not engine._known.keys() & engine._known.older.keys()
        for key in source.sample(looked_at, 6):
            assert await old.get(key, snapshot=True) == bare.get(key), key
        old.close()
    assert 300 < known_count <= 300 * 9 and 300 < older_count <= 300 * 9
    await engine.aclose()


async def test_what_is_asked_for_again_and_again_stays_known(tmp_path, monkeypatch):
    monkeypatch.setattr(rocksdb_view, "KNOWN_ROWS_MAX", 10)
    engine, looked_up = await opened(tmp_path / "kv"), []

    def read(_view, key):
        looked_up.append(key)

    monkeypatch.setattr(RocksDbView, "_read", read)
    tr = engine.transaction()
    for i in range(500):
        await tr.get(b"once-%d" % i)
        if i % 8 == 0:
            await tr.get(b"often")
    assert looked_up.count(b"often") == 1 and len(looked_up) == 501
    assert len(engine._known) + len(engine._known.older) <= 20
    tr.close()
    await engine.aclose()


async def test_what_a_commit_has_written_is_known(tmp_path, monkeypatch):
    engine, looked_up, really_read = await opened(tmp_path / "kv"), [], RocksDbView._read

    def read(view, key):
        looked_up.append(key)
        return really_read(view, key)

    monkeypatch.setattr(RocksDbView, "_read", read)
    large = bytes(KNOWN_ROW_BYTES_MAX + 1)
    tr = engine.transaction()
    tr.set(b"cleared", b"1")
    await tr.commit()
    tr, old = engine.transaction(), engine.transaction()
    assert await old.get(b"cleared") == b"1"
    tr.clear_range(b"c", b"d")
    tr.set(b"made", b"1")
    tr.atomic_add(b"count", 1)
    tr.set(b"large", large)
    await tr.commit()
    looked_up.clear()
    tr = engine.transaction()
    assert await tr.get(b"made") == b"1"
    assert await tr.get(b"count") == (1).to_bytes(8, "little")
    assert looked_up == []
    assert await tr.get(b"large") == large
    assert await tr.get(b"cleared") is None
    assert [await old.get(key) for key in (b"made", b"count", b"large")] == [None] * 3
    assert await old.get(b"cleared") == b"1"
    for transaction in (tr, old):
        transaction.close()
    await engine.aclose()


async def test_only_views_that_are_held_are_fixed_before_a_commit(tmp_path, monkeypatch):
    engine, fixed, fix = await opened(tmp_path / "kv"), [], RocksDbView.fix
    monkeypatch.setattr(RocksDbView, "fix", lambda view: fixed.append(view.version) or fix(view))
    for i in range(5):
        tr = engine.transaction()
        assert await tr.get_range(b"a", b"z") == [(b"k", b"%d" % j) for j in range(i)[-1:]]
        tr.set(b"k", b"%d" % i)
        await tr.commit()
    assert fixed == []
    old, scanned = engine.transaction(), engine.transaction()
    assert await old.get(b"k") == b"4"
    assert await scanned.get_range(b"a", b"z") == [(b"k", b"4")]
    for key in (b"k", b"l"):
        tr = engine.transaction()
        await tr.get(b"k")
        tr.set(key, b"new")
        await tr.commit()
    assert fixed == [engine.version - 2]  # one view for both, and nobody holds the next
    for tr in (old, scanned):
        assert await tr.get_range(b"a", b"z") == [(b"k", b"4")]
        assert (await tr.get(b"k"), await tr.get(b"l")) == (b"4", None)
        tr.close()
    await engine.aclose()


async def test_a_commit_that_failed_changes_nothing_that_is_known(tmp_path, monkeypatch):
    engine = await opened(tmp_path / "kv")
    tr = engine.transaction()
    tr.set(b"a", b"1")
    await tr.commit()
    tr = engine.transaction()
    assert await tr.get(b"a") == b"1"
    tr.set(b"a", b"2")

    def refuse(_batch):
        raise FsError(Status.NO_SPACE, "as a full disk")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_write", refuse)
        try:
            await tr.commit()
        except FsError as error:
            assert error.status is Status.NO_SPACE  # noqa: PT017 - so it must fail
        else:
            raise AssertionError("the commit went through")
    tr = engine.transaction()
    assert await tr.get(b"a") == b"1"
    tr.close()
    await engine.aclose()
