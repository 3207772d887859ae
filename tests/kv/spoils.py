"""Ways to break the key-value store inside a worker process, for controls."""

from rocksdict import WriteOptions

from fs.kv.rocksdb import RocksDbEngine
from fs.runtime.log_mark import LogMark


def sync_nothing() -> None:
    """Spoil: a flush of the log does nothing, and the mark is not there to tell."""
    RocksDbEngine._flush_log = lambda *_: None
    LogMark.raise_to = lambda *_: None


def commit_in_memory() -> None:
    """Spoil: commits are not written to the log;
    a kill loses them, and the mark is not there to tell.
    """
    options = WriteOptions()
    options.disable_wal = True
    RocksDbEngine._write = lambda engine, batch: engine._db.write(batch, options)
    LogMark.raise_to = lambda *_: None
