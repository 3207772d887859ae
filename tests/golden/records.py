"""What metadata services and managers keep in the key-value store, as this release writes it.

    python -m tests.golden.records

writes `meta-VERSION.json` and `mgmtd-VERSION.json` for the present formats of their records, once
each: every row, and what was made, as a service tells it; and a backup of the former,
`backup-VERSION.bin`.  `test_records.py` has the present services read them.
"""

import json
from pathlib import Path

import trio
import trio.testing
from google.protobuf.json_format import MessageToDict

from fs.admin.backup_format import FORMAT_VERSION as BACKUP_VERSION
from fs.admin.backup_format import BackupEncoder
from fs.kv.memory import MemoryEngine
from fs.kv.transact import snapshot_read
from fs.meta import records
from fs.mgmtd import store as mgmtd_store
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema import services
from fs.schema.config import KvSection
from fs.schema.proto import common_pb2 as common
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto import mgmtd_pb2 as mgmtd
from fs.schema.proto.backup_pb2 import BackupHeadPb
from fs.schema.routing import routing_info_to_pb
from tests.meta.harness import ROOT, World, inline_report, session
from tests.mgmtd.harness import CLUSTER, cluster_of

HERE = Path(__file__).parent
META = f"meta-{records.FORMAT_VERSION}"
MGMTD = f"mgmtd-{mgmtd_store.FORMAT_VERSION}"
HELD, LONG = b"held open", b"n" * 200
QUOTA = (1 << 40, 1000)
ATTRIBUTE = (b"user.note", b"kept")
LOCK = common.FileLockPb(owner=1, first=0, last=99, kind=common.POSIX_LOCK, is_write=True)


async def rows_of(engine) -> dict[str, str]:
    """Return everything in a store, in hexadecimal."""
    found = await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff", snapshot=True))
    return {key.hex(): value.hex() for key, value in found}


async def told_by_meta(world: World) -> dict:
    """Return what a service says of all that `make_names` has made."""
    root = world.user(0)
    d = (await root.lookup(ROOT, b"d")).inode_id
    f = (await root.lookup(d, b"f")).inode_id
    listing = await root.list(d, entry_count_max=100, with_inodes=True)
    asked = {
        "list": listing,
        "usage": await root.usage(d),
        "xattr": await root.call("get_xattr", meta.GetXattrReq(inode_id=f, name=ATTRIBUTE[0])),
        "locks": await root.call(
            "find_lock_conflict", meta.FindLockConflictReq(inode_id=f, lock=LOCK)
        ),
        "path": await root.call("get_real_path", meta.GetRealPathReq(inode_id=d)),
        "quotas": await root.call("list_quotas", meta.ListQuotasReq(entry_count_max=10)),
    }
    return {name: MessageToDict(reply) for name, reply in asked.items()}


async def make_names(world: World) -> None:
    """Leave a record of nearly every kind behind."""
    root, other = world.user(0), world.user(1000, 1000, (2000,), client="d" * 32)
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    f = (await other.create(d, b"f", 0o640)).inode_id
    await root.create(d, LONG)
    await root.symlink(d, b"s", b"/d/f")
    await root.mknod(d, b"fifo", common.FIFO)
    await root.link(f, d, b"f2")
    locked = (await other.mkdir(d, b"locked")).inode_id
    await other.create(d, HELD, session=session(1))
    inline = await other.create(d, b"inline", session=session(2))
    await other.sync(inline.inode_id, **inline_report(b"in the record"))
    world.chunks.lengths[f] = 5_000_000
    await other.sync(f, has_new_data=True)
    name, value = ATTRIBUTE
    await other.call("set_xattr", meta.SetXattrReq(inode_id=f, name=name, value=value))
    await root.set_quota(d, *QUOTA)
    await root.create(d, b"gone")
    await root.unlink(d, b"gone")
    await root.mkdir(d, b"tree")
    await root.remove_tree(d, b"tree")
    await other.create(d, b"thrown away")
    trashed = meta.MoveToTrashReq(parent_inode_id=d, name=b"thrown away", expire_s=3600)
    await other.call("move_to_trash", trashed)
    await other.call("set_lock", meta.SetLockReq(inode_id=f, lock=LOCK))
    await other.mkdir(d, b"leased", wants_name_lease=True)
    take = meta.LockDirectoryReq(inode_id=locked, action=meta.LOCK_TAKE)
    await other.call("lock_directory", take)


async def make_meta() -> dict:
    world = World(MemoryEngine(SimulatedClock()), inline_bytes_max=4096)
    await world.initialise()
    await make_names(world)
    return {"told": await told_by_meta(world), "rows": await rows_of(world.engine)}


async def told_by_mgmtd(engine) -> dict:
    """Return what a manager reads as it becomes the primary."""
    runtime = simulated_runtime(None, 1)
    found = await mgmtd_store.Store(engine, runtime, KvSection(), CLUSTER).load()
    return {
        "routing": MessageToDict(routing_info_to_pb(found.info)),
        "drains": sorted(f"{drain}" for drain in found.book.drains),
        "moves": len(found.book.moves),
        "users": [MessageToDict(user) for user in found.users.users.values()],
    }


async def make_mgmtd() -> dict:
    async with cluster_of(manager_count=1) as cluster:
        await cluster.up()
        user = mgmtd.UserPb(uid=1000, name="alice", gid=100, groups=[10, 20])
        await cluster.call(services.MGMTD_SET_USER, mgmtd.SetUserReq(user=user))
        token = mgmtd.TokenPb(token_id=b"t" * 8, stored_key=b"s" * 32, listener_key=b"l" * 32)
        await cluster.call(services.MGMTD_ADD_TOKEN, mgmtd.AddTokenReq(uid=1000, token=token))
        drain = mgmtd.DrainPb(node_id=13)
        await cluster.call(services.MGMTD_START_DRAIN, mgmtd.StartDrainReq(drain=drain))
        rows = await rows_of(cluster.engine)
        return {"told": await told_by_mgmtd(cluster.engine), "rows": rows}


async def store_of(record: dict) -> MemoryEngine:
    """Return a store that holds recorded rows."""
    engine = MemoryEngine(SimulatedClock())
    tr = engine.transaction()
    for key, value in record["rows"].items():
        tr.set(bytes.fromhex(key), bytes.fromhex(value))
    await tr.commit()
    return engine


def backup_of(record: dict) -> bytes:
    """Return recorded rows of metadata as a backup."""
    encoder = BackupEncoder()
    head = BackupHeadPb(cluster_id="emberfs", meta_format=2, release="golden")
    made = encoder.head(head)
    for key, value in sorted(record["rows"].items()):
        made += encoder.add((bytes.fromhex(key), bytes.fromhex(value)))
    return made + encoder.end()


def main() -> None:
    for name, make_rows in ((META, make_meta), (MGMTD, make_mgmtd)):
        file = HERE / f"{name}.json"
        if file.exists():
            print(f"{file.name} is kept")
            continue
        made = trio.run(make_rows, clock=trio.testing.MockClock(autojump_threshold=0))
        file.write_text(json.dumps(made, indent=0) + "\n")
        print(f"{file.name}: {len(made['rows'])} rows, {file.stat().st_size} bytes")
    backup = HERE / f"backup-{BACKUP_VERSION}.bin"
    if not backup.exists():
        backup.write_bytes(backup_of(json.loads((HERE / f"{META}.json").read_text())))


if __name__ == "__main__":
    main()
