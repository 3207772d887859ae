"""A view of the embedded engine reads what a range holds, and passes over nothing outside of it."""

import gc
import shutil

import pytest
from rocksdict import Rdict, ReadOptions

from fs.kv.rocksdb_store import open_store
from fs.kv.rocksdb_view import KnownRows, RocksDbView
from fs.schema.status import FsError

SKIPPED_MAX = 8


class FewSkips:
    """A store in which a cursor fails that passes over more than a few deleted rows."""

    def __init__(self, db: Rdict) -> None:
        self._db = db

    def iter(self, options=None):
        options = options or ReadOptions()
        options.set_max_skippable_internal_keys(SKIPPED_MAX)
        return self._db.iter(options)


@pytest.fixture
def db(tmp_path):
    store = open_store(str(tmp_path / "kv"))
    yield store
    store.close()
    shutil.rmtree(tmp_path / "kv")


def view_of(db) -> RocksDbView:
    return RocksDbView(db, 0, KnownRows())


def test_what_was_deleted_behind_a_range_is_not_passed_over(db):
    """As where directory after directory is removed:
    whether one is empty does not depend on how many were removed before.
    """
    for i in range(100):
        db.put(b"d%03d" % i, b"")
        db.delete(b"d%03d" % i)
    view = view_of(FewSkips(db))
    assert view.scan(b"d049", b"d050", 1, False) == []
    with pytest.raises(FsError, match="skipped"):
        view.scan(b"d049", b"e", 1, False)


def test_a_range_is_what_lies_within_it(db):
    keys = [b"a", b"b", b"b\x00", b"b\xff", b"c", b"d"]
    for key in keys:
        db.put(key, key)
    views = [view_of(db), view_of(db)]
    views[1].fix()
    bounds = [b"", b"a", b"b", b"b\x00", b"bb", b"c", b"c\x00", b"d", b"\xff"]
    for view in views:
        for begin in bounds:
            for end in bounds:
                within = [key for key in keys if begin <= key < end]
                for limit in (0, 1, 2):
                    wanted = within[: limit or None]
                    assert [k for k, _ in view.scan(begin, end, limit, False)] == wanted
                    wanted = within[::-1][: limit or None]
                    assert [k for k, _ in view.scan(begin, end, limit, True)] == wanted
        gc.collect()
