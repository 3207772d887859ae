"""A restore of what the managers knew some time ago, while the disks have gone on:
nobody may serve before those are heard who can know.

Only the managers' records go back.  Those of the metadata services stay as they are, so that what
clients know of names and of registers has to hold as if nothing had been: a chain that believes the
wrong target shows old bytes.  Backups after the one that was restored belong to a history that is
over, and those of other members, too: what a move has removed since no restore brings back.
"""

import trio

from fs.admin.rebase import Rebase
from fs.mgmtd.store import CHAIN_PREFIX
from fs.schema.proto.record_pb2 import ChainRecordPb
from fs.schema.routing import chain_from_pb

from .cluster import SimCluster
from .faults_disk import DEAD_S
from .world import Backup, World, machine_fault

RECORDS = b"MG"
"""With this begin the keys of the managers."""
RESTORED_NS = 1_800_000_000 * 10**9
"""When a run begins, by the clock of who restores."""
GONE_WITHOUT_S = (0.5, 2.0, 4.0)


def members_in(rows: dict[bytes, bytes]) -> frozenset[tuple[int, int]]:
    """Return (chain id, target id) of all members."""
    found = set()
    for key, value in rows.items():
        if key.startswith(CHAIN_PREFIX):
            chain = chain_from_pb(ChainRecordPb.FromString(value).chain)
            found |= {(chain.chain_id, member.target_id) for member in chain.targets}
    return frozenset(found)


def back_up(cluster: SimCluster) -> Backup:
    """Return what the managers know."""
    rows = {k: v for k, v in cluster.kv.dump().items() if k.startswith(RECORDS)}
    return Backup(rows, members_in(rows))


async def put_back(world: World, backup: Backup) -> None:
    """Have a backup in the store, as `ember admin restore` writes it; no manager runs."""
    cluster = world.cluster
    rebase = Rebase(RESTORED_NS + round(trio.current_time() * 1e9))
    rows = {k: new for k, v in backup.rows.items() if (new := rebase.row(k, v)) is not None}
    rows |= dict(rebase.last_rows())
    faults, cluster.kv.faults = cluster.kv.faults, None
    watch, cluster.kv.watch = cluster.kv.watch, None
    tr = cluster.kv.transaction()
    tr.clear_range(RECORDS, RECORDS + b"\xff")
    for key, value in rows.items():
        tr.set(key, value)
    await tr.commit()
    await cluster.kv.sync()
    cluster.kv.faults, cluster.kv.watch = faults, watch
    cluster.watch.begin_again(cluster.kv)


def _may_restore(world: World) -> bool:
    """No disk was emptied since it last served: what it knew a person would have to give up."""
    cluster = world.cluster
    members = {t for _, t in back_up(cluster).members}
    for name in cluster.storages:
        service = cluster.processes[name].services.get("Storage")
        known = service._context.targets.targets if service is not None else {}
        if any(t in members and target.standing is None for t, target in known.items()):
            return False
    return not cluster.watch.moves


@machine_fault(2)
async def restore_managers(world: World) -> None:
    """The managers are restored from a backup;
    one machine may have been away before that, and may be back first.
    """
    async with world.network_lock:
        await _restore_managers(world)


async def _restore_managers(world: World) -> None:
    cluster, source = world.cluster, world.random
    away = source.choice(cluster.storages) if source.random() < 0.7 else ""
    if not _may_restore(world) or not world.memory.are_workers_ready:
        return
    if away:
        await cluster.kill(away)
        await trio.sleep(source.choice(GONE_WITHOUT_S))
    everybody = [*cluster.controls]
    if away or source.random() < 0.5:
        everybody += cluster.storages
    await cluster.kill(*(n for n in everybody if cluster.processes[n].is_running))
    now = back_up(cluster)
    usable = [n for n, one in enumerate(world.backups) if one.members == now.members]
    chosen = now
    if usable and source.random() < 0.8:
        number = source.choice(usable)
        chosen = world.backups[number]
        del world.backups[number + 1 :]
        world.count("restored_older")
    cluster.trace.add("restore", f"{len(world.backups)} {away}")
    await put_back(world, chosen)
    world.memory.has_restores = True
    source.shuffle(everybody)
    everybody.sort(key=lambda name: (name in cluster.storages, name != away))
    for name in everybody:
        cluster.start(name)
        await trio.sleep(source.choice([0.0, *DEAD_S]) if name in {away, everybody[-1]} else 0.0)
    await cluster.wait_healthy()
