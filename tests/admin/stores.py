"""Stores full of everything, and backups of them in memory."""

import io

from fs.admin.backup import write_backup
from fs.admin.backup_format import BackupDecoder
from fs.admin.restore import restore_backup
from fs.kv.api import KvEngine
from fs.kv.buffer import KEY_END
from fs.kv.transact import snapshot_read
from fs.meta import records
from fs.mgmtd import store as mgmtd
from fs.schema.proto.backup_pb2 import BackupHeadPb
from fs.schema.proto.common_pb2 import SERVING, ChainPb, ChainTargetPb
from fs.schema.proto.record_pb2 import (
    ChainRecordPb,
    FormatRecordPb,
    MoveBookRecordPb,
    PrimaryLeaseRecordPb,
)
from tests.kv.harness import inline_runtime

CLUSTER = "a-cluster"


def prefixes() -> list[bytes]:
    """Every kind of key that the two services know."""
    found = {
        value
        for module in (records, mgmtd)
        for name, value in vars(module).items()
        if isinstance(value, bytes) and len(value) == 4 and name.isupper()
    }
    assert len(found) >= 27, found
    return sorted(found)


def format_record(version: int, what: str, cluster_id: str = CLUSTER) -> bytes:
    record = FormatRecordPb(format_version=version, cluster_id=cluster_id, what=what)
    return record.SerializeToString(deterministic=True)


def chain_record(version: int) -> bytes:
    member = ChainTargetPb(target_id=9, public_state=SERVING)
    record = ChainRecordPb(chain=ChainPb(chain_id=3, chain_version=version, targets=[member]))
    return record.SerializeToString(deterministic=True)


def everything(per_kind: int = 3) -> dict[bytes, bytes]:
    """Return records of every kind; what a restore reads is what a real store would hold."""
    rows = {
        prefix + bytes([n]) * 8 + (b"" if prefix[:2] == b"MG" else b"\x00\xff/"): bytes([n])
        * (n % 9 * 700)
        for prefix in prefixes()
        for n in range(per_kind)
        if prefix != mgmtd.CHAIN_PREFIX
    }
    lease = PrimaryLeaseRecordPb(node_id=1, address="unix:/a", end_ns=9, epoch=77)
    return rows | {
        records.FORMAT_KEY: format_record(records.FORMAT_VERSION, "meta"),
        records.inode_ids_key(0): records.pack_u64(5),
        records.inode_ids_key(31): records.pack_u64(900),
        mgmtd.FORMAT_KEY: format_record(mgmtd.FORMAT_VERSION, "mgmtd"),
        mgmtd.LEASE_KEY: lease.SerializeToString(),
        mgmtd.ROUTING_VERSION_KEY: (4000).to_bytes(8, "big"),
        mgmtd.chain_key(3): chain_record(17),
        mgmtd.BOOK_KEY: MoveBookRecordPb(next_move_id=3, next_target_id=4).SerializeToString(),
    }


async def fill(engine: KvEngine, rows: dict[bytes, bytes]) -> None:
    tr = engine.transaction()
    for key, value in rows.items():
        tr.set(key, value)
    await tr.commit()


async def dump(engine: KvEngine) -> dict[bytes, bytes]:
    return dict(await snapshot_read(engine, lambda tr: tr.get_range(b"", KEY_END, snapshot=True)))


async def backup_of(engine: KvEngine, *, may_pause: bool = False, cluster_id: str = CLUSTER):
    """Return the bytes of a backup."""
    out = io.BytesIO()

    async def write(made: bytes) -> None:
        out.write(made)

    head = BackupHeadPb(cluster_id=cluster_id, engine="memory", release="0")
    await write_backup(engine, inline_runtime(), write, head=head, may_pause=may_pause)
    return out.getvalue()


async def restore_into(engine: KvEngine, made: bytes) -> int:
    decoder = BackupDecoder(io.BytesIO(made).read, "test")
    return await restore_backup(engine, inline_runtime(), decoder)
