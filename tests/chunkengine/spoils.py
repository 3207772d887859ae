"""Ways to break the real engine inside a worker process, for controls."""

from rocksdict import WriteOptions

from fs.chunkengine.data_files import LocalDataFiles
from fs.chunkengine.meta_rocksdb import RocksMetaStore, _to_rocks


def sync_no_data() -> None:
    """Spoil: the data files are not flushed."""
    LocalDataFiles.flush = lambda *_: None
    LocalDataFiles.flush_all = lambda *_: None


def sync_no_metadata() -> None:
    """Spoil: the metadata log is not flushed."""
    RocksMetaStore.write_synced = RocksMetaStore.write


def commit_in_memory() -> None:
    """Spoil: metadata is not written to the log; a kill loses it."""
    options = WriteOptions()
    options.disable_wal = True
    RocksMetaStore.write = lambda store, batch: store._db.write(_to_rocks(batch), options)
