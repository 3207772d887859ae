"""Does the simulation find mistakes?

Each mutant breaks one rule of EmberFS; some seed must catch it.

    python -m tests.sim.mutants [NAME ...] [--first SEED] [--seeds N] [--seconds S] [--cpu S]

Runs every mutant (or those named) in a process of its own over up to N seeds until one fails, and
prints which checker caught it at which seed; a seed that fails without the mutant, too, does not
count.  Exit code 1 if a mutant survives.
"""

import argparse
import logging
import resource
import signal
import subprocess
import sys
import time
from typing import Any, Final

import trio

import fs.chunkengine.ledger as ledger_module
import fs.chunkengine.simulated_disk as disk_module
import fs.kv.buffer as buffer_module
import fs.kv.transact as transact_module
import fs.meta.content_driver as driver_module
import fs.meta.gc as gc_module
import fs.meta.idempotency as idempotency_module
import fs.meta.ops.create as create_module
import fs.meta.ops.rename as rename_module
import fs.meta.service as meta_service
import fs.mgmtd.chain_state as chain_state_module
import fs.mgmtd.election as election_module
import fs.mgmtd.primary as primary_module
import fs.mgmtd.state as mgmtd_state
import fs.mgmtd.store as mgmtd_store
import fs.node.membership as membership_module
import fs.storage.channels as channels_module
import fs.storage.context as context_module
import fs.storage.forward as forward_module
import fs.storage.inflight as inflight_module
import fs.storage.resync as resync_module
import fs.storage.resync_plan as plan_module
import fs.storage.service as service_module
import fs.storage.target as target_module
import fs.storage.targets as targets_module
from fs.meta import records
from fs.meta.dentries import clear_dentry, find_dentry
from fs.schema.ids import TargetId
from fs.schema.routing import LocalState, PublicState
from fs.schema.status import FsError, Status
from fs.storage import lone_update, read_path, write_path

from . import mutants_by_path, mutants_groups, mutants_replaced, mutants_restore, mutants_resync
from .broken import AIMS, MUTANTS, mutant, nothing
from .campaign import where
from .life import ProcessDead, SimulatedCrash
from .scenario import run_seed

log = logging.getLogger(__name__)

assert mutants_by_path and mutants_groups and mutants_replaced and mutants_restore
assert mutants_resync  # they register their own
HANG_CPU_S: Final = 60
"""A seed that takes this much longer than the rest of the time given hangs."""

# ---- replication ---------------------------------------------------------------------------------


@mutant()
def acknowledge_before_successor() -> None:
    """A replica commits and answers while its successor is still being told."""
    real = write_path.forward

    async def early(context: Any, target: Any, chain_id: int, *args: Any, **options: Any) -> Any:
        update, prepared = args
        update.payload = bytes(update.payload)

        async def later() -> None:
            try:
                await real(context, target, chain_id, update, prepared, **options)
            except (FsError, ProcessDead, SimulatedCrash, AssertionError) as error:
                log.debug("lost: %s", error)

        trio.lowlevel.spawn_system_task(later)
        place = context.targets.place(chain_id)
        return forward_module.Forwarded(place.chain.chain_version, None)

    write_path.forward = early  # type: ignore[assignment]
    lone_update.LoneUpdates.begin = lambda *_args, **_options: False  # type: ignore[method-assign]


@mutant("isolate")
def lease_not_checked() -> None:
    """A storage node serves on although its lease has run out."""
    membership_module.HeartbeatLease.is_valid = lambda _self: True  # type: ignore[method-assign]


@mutant("isolate", "step_clock")
def lease_by_wall_clock() -> None:
    """A storage node measures its lease with the clock that people may set."""
    lease = membership_module.HeartbeatLease
    real_init, real_grant = lease.__init__, lease.grant

    class Wall:
        def __init__(self, clock: Any) -> None:
            self.clock = clock

        def monotonic_s(self) -> float:
            return float(self.clock.wall_ns() / 1e9)

    def grant(self: Any, sent_s: float, duration_s: float) -> None:
        taken_s = self._clock.clock.monotonic_s() - sent_s
        real_grant(self, self._clock.monotonic_s() - taken_s, duration_s)

    lease.__init__ = lambda self, clock: real_init(self, Wall(clock))  # type: ignore[method-assign,misc]
    lease.grant = grant  # type: ignore[method-assign]


@mutant("isolate", "partition", "kill_storage")
def chain_version_not_checked() -> None:
    """A replica takes requests made under another picture of its chain."""
    context_module.StorageContext.place_now = (  # type: ignore[method-assign]
        lambda self, chain_id, _version: self.targets.place(chain_id)
    )


@mutant("isolate", "partition", "reorder_chain")
def head_skips_version_check() -> None:
    """A head takes updates of clients that have another picture of its chain."""
    real = service_module.StorageService.write

    async def write(self: Any, call: Any, request: Any) -> Any:
        chain = self._context.targets.look().chains.get(request.chain_id)
        made = type(request)()
        made.CopyFrom(request)
        if chain is not None:
            made.chain_version = chain.chain_version
        return await real(self, call, made)

    service_module.StorageService.write = write  # type: ignore[method-assign]


@mutant("kill_storage")
def resync_skipped() -> None:
    """A syncing target is told at once that it has everything."""
    resync_module.Resync._resync_window = nothing  # type: ignore[assignment,method-assign]


@mutant("rejoin_slowly", is_wide=True, replica_count=2)
def resync_without_barrier() -> None:
    """Resync does not wait for updates that came in before the target was syncing."""
    inflight_module.InFlight.wait_older_left = nothing  # type: ignore[assignment,method-assign]


@mutant("kill_head_and_clients", is_wide=True)
def resync_skips_pending() -> None:
    """Resync takes a chunk with a pending version for equal if the committed ones are."""

    def decide(local: Any, remote: Any) -> Any:
        is_same = (local.commit_ver, local.checksum) == (remote.commit_ver, remote.checksum)
        need = plan_module.Need.SKIP if is_same else plan_module.Need.TRANSFER
        return plan_module.Item(local.chunk_id, need)

    plan_module.decide_chunk = decide


@mutant("kill_storage", "power_loss")
def resync_ignores_versions() -> None:
    """Resync compares lengths instead of content."""

    def decide(local: Any, remote: Any) -> Any:
        need = plan_module.Need.SKIP if local.length == remote.length else plan_module.Need.TRANSFER
        return plan_module.Item(local.chunk_id, need)

    plan_module.decide_chunk = decide


@mutant("kill_storage", "kill_two")
def syncing_gets_no_updates() -> None:
    """Updates are not passed on to a syncing successor."""
    real = forward_module._place_to_forward

    def place_to_forward(*args: Any) -> Any:
        place = real(*args)
        successor = place.successor
        if successor is None or successor.public_state is not PublicState.SYNCING or args[3]:
            return place
        made = targets_module.Place(*(getattr(place, n) for n in place.__slots__))
        object.__setattr__(made, "successor", None)
        return made

    forward_module._place_to_forward = place_to_forward


@mutant("lose_reply", "replay")
def repeats_executed_again() -> None:
    """The channel table is not asked."""
    table = channels_module.ChannelTable
    table.begin = lambda _self, _tag, _now_s: None  # type: ignore[method-assign]
    table.result_of = lambda _self, _tag: None  # type: ignore[method-assign]


@mutant("full_disk", "lose_reply", "replay")
def failures_forgotten() -> None:
    """A copy of an update that comes after its client was told of no space is executed."""
    channels_module.ChannelTable.refuse = lambda *_args: None  # type: ignore[method-assign]


@mutant("reset", "kill_client", "lose_reply", "slow_network")
def leftover_rolled_back() -> None:
    """A head that finds a leftover pending version drops it instead of completing it."""

    async def drop(_context: Any, target: Any, _chain_id: int, state: Any, **_options: Any) -> None:
        await target.disk.run(target.disk.engine.drop_pending, target.target_id, state.chunk_id)
        target.unsettled.pop(state.chunk_id, None)

    write_path.settle = drop  # type: ignore[assignment]


@mutant("lose_reply", "kill_storage", is_wide=True, resync_bytes_per_s_max=100_000)
def late_copies_accepted() -> None:
    """A copy of an update whose sender has given up on it still takes effect."""
    target_module.LocalTarget.admit_epoch = (  # type: ignore[method-assign]
        lambda _self, _chain_version, _epoch: None
    )


@mutant("slow_network", "slow_disk")
def tail_not_asked() -> None:
    """A read during an update returns the replica's own committed version."""
    read_path.ask_tails = nothing  # type: ignore[assignment]


@mutant("slow_network", "slow_disk", "cut_link")
def pending_version_served() -> None:
    """A read during an update returns the pending version."""

    async def take_pending(_context: Any, batch: Any, indexes: Any, _deadline_s: float) -> None:
        await trio.lowlevel.checkpoint()
        for index in indexes:
            target, io = batch.places[index].target, batch.ios[index]
            state = target.disk.engine.get(target.target_id, io.chunk_id)
            if state is not None and state.pending_ver and not state.pending_is_remove:
                io.version = state.pending_ver

    read_path.ask_tails = take_pending


# ---- managers ------------------------------------------------------------------------------------


@mutant("kill_storage")
def waiting_becomes_serving() -> None:
    """A returning target serves without having been resynced."""
    real = chain_state_module._judge

    def judge(state: Any, local: Any, judged: Any) -> Any:
        if state in {PublicState.WAITING, PublicState.OFFLINE} and local is LocalState.ONLINE:
            return PublicState.SERVING
        return real(state, local, judged)

    chain_state_module._judge = judge


@mutant("kill_storage", "kill_two", "isolate")
def restarted_target_trusted() -> None:
    """A restarted node does not wait until its targets have left their chains."""
    targets_module.start_is_over = lambda _info, _targets: True  # type: ignore[assignment]


@mutant("cut_store")
def primary_ignores_time() -> None:
    """A manager takes itself for the primary until it is told otherwise."""
    election_module.may_act = (  # type: ignore[assignment]
        lambda held, **_options: held is not None
    )


@mutant("cut_all")
def routing_not_durable() -> None:
    """Routing info is published before it would survive a power loss."""
    real = mgmtd_store.Store.__init__

    class Unsynced:
        def __init__(self, engine: Any) -> None:
            self.transaction = engine.transaction

        sync = nothing

    def init(self: Any, engine: Any, *args: Any) -> None:
        real(self, Unsynced(engine), *args)  # type: ignore[arg-type]

    mgmtd_store.Store.__init__ = init  # type: ignore[method-assign]


@mutant("kill_storage", "kill_control")
def unknown_publication_taken_for_failed() -> None:
    """A manager goes on after a write of unknown outcome as if nothing had been written."""
    real_transact = mgmtd_store.transact

    async def once(*args: Any, **options: Any) -> Any:
        return await real_transact(*args, **options, is_idempotent=False)

    mgmtd_store.transact = once
    real_publish = primary_module.Primary.publish

    async def publish(self: Any, *args: Any, **options: Any) -> None:
        lose = self.lose
        self.lose = lambda: None
        try:
            await real_publish(self, *args, **options)
        finally:
            self.lose = lose

    primary_module.Primary.publish = publish  # type: ignore[method-assign]


# ---- metadata ------------------------------------------------------------------------------------


@mutant("kill_control_at_commit", "lose_reply", "replay")
def idempotency_record_ignored() -> None:
    """A repeated request is executed again."""
    for module in (idempotency_module, create_module):
        module.recall = nothing  # type: ignore[attr-defined]


@mutant("kill_control_at_commit", "cut_all")
def rename_not_atomic() -> None:
    """Rename takes the old name away in one transaction and gives the new one in another."""
    service = meta_service.MetaService

    async def rename(self: Any, _call: Any, request: Any) -> Any:
        parent_id, name = request.old_parent_inode_id, request.old_name
        taken: list[Any] = [None]

        async def take_away(tr: Any, _ctx: Any, _request: Any) -> None:
            taken[0] = await find_dentry(tr, parent_id, name)
            if taken[0] is not None:
                clear_dentry(tr, parent_id, name)

        async def give(tr: Any, ctx: Any, _request: Any) -> Any:
            if taken[0] is not None:
                tr.set(records.dentry_key(parent_id, name), taken[0].SerializeToString())
            return await rename_module.rename(tr, ctx, request)

        await self._change(take_away, request)
        return await self._change(give, request)

    service.rename = rename  # type: ignore[method-assign]


@mutant("slow_network")
def dentry_read_without_conflict() -> None:
    """Reading a name does not conflict with somebody else writing it."""
    real = buffer_module.WriteBuffer.add_read_key

    def add_read_key(self: Any, key: bytes) -> None:
        if not key.startswith(records.DENTRY):
            real(self, key)

    buffer_module.WriteBuffer.add_read_key = add_read_key  # type: ignore[method-assign]


@mutant("reset")
def unknown_commit_taken_for_done() -> None:
    """A commit of unknown outcome counts as made."""
    real = transact_module.transact_stamped

    async def once(engine: Any, fn: Any, **options: Any) -> Any:
        box: list[Any] = []

        async def kept(tr: Any) -> Any:
            box[:] = [await fn(tr)]
            return box[0]

        try:
            return await real(engine, kept, **{**options, "is_idempotent": False})
        except FsError as error:
            if error.status is not Status.KV_COMMIT_UNKNOWN:
                raise
            return box[0], None

    transact_module.transact_stamped = once  # type: ignore[assignment]


@mutant()
def chunks_not_collected() -> None:
    """Garbage collection forgets a file without removing its chunks."""
    gc_module.GarbageCollector._remove_chunks = nothing  # type: ignore[assignment,method-assign]


def _skip_sync_of_truncation(number: int) -> None:
    """Let a truncation go on without one of its two syncs, counted from 0."""
    real = driver_module.ContentDriver._cut

    async def cut(self: Any, inode_id: int) -> None:
        engine, count = self._engine, [0]

        class SyncsOnce:
            transaction = staticmethod(engine.transaction)

            async def sync(self) -> None:
                count[0] += 1
                if count[0] != number + 1:
                    await engine.sync()

        self._engine = SyncsOnce()
        try:
            await real(self, inode_id)
        finally:
            self._engine = engine

    driver_module.ContentDriver._cut = cut  # type: ignore[method-assign]


@mutant("cut_all")
def chunks_cut_before_length_is_durable() -> None:
    """A truncation cuts the chunks while a power loss could still bring the old length back."""
    _skip_sync_of_truncation(0)


@mutant("cut_all")
def truncation_ends_before_that_is_durable() -> None:
    """A file is written behind its new end while a power loss could still have it cut once more."""
    _skip_sync_of_truncation(1)


# ---- chunk engine --------------------------------------------------------------------------------


@mutant("cut_all")
def losses_not_counted() -> None:
    """A chain whose replicas all lost their power says that nothing is gone."""
    mgmtd_state.with_loss = lambda _before, after, _rebooted: after  # type: ignore[assignment]


@mutant("cut_in_stop", "stop_in_order")
def stale_notes_believed() -> None:
    """The note of a stop in order is believed although other processes have served since."""
    mgmtd_state.ClusterState._flushed = (  # type: ignore[method-assign]
        lambda _self, _known, reports: {TargetId(r.target_id) for r in reports if r.flushed_by}
    )


@mutant("power_loss", "cut_all")
def freed_block_reused_at_once() -> None:
    """A block is used again before the record that freed it is durable."""
    ledger_module.Ledger._free = (  # type: ignore[method-assign]
        lambda self, position: (self.epoch.fresh.discard(position), self._leave(position))[1]
    )


@mutant("power_loss", "cut_all")
def data_not_flushed() -> None:
    """An epoch is recorded as durable without its data having been flushed."""
    disk_module.SimulatedDataFiles.flush = (  # type: ignore[method-assign]
        lambda _self, _file_ids: None
    )


@mutant("power_loss", "cut_all")
def torn_versions_kept() -> None:
    """Opening a disk believes every record."""
    import fs.chunkengine.verified as verified_module  # noqa: PLC0415 - beside its patch

    verified_module.VerifiedReader.is_whole = lambda _self, _record: True  # type: ignore[method-assign]


@mutant("power_loss", "cut_all")
def direct_writes_left_unflushed() -> None:
    """A flush makes durable what is in the kernel's page cache, not what was written past it."""
    real = disk_module._File.flush

    def flush(file: Any) -> None:
        left = [write for write in file.unsynced if write.is_direct]
        file.unsynced = [write for write in file.unsynced if not write.is_direct]
        real(file)
        file.unsynced = left

    disk_module._File.flush = flush  # type: ignore[method-assign]


@mutant("bit_rot", "bad_writes")
def damaged_copies_served() -> None:
    """Bytes that do not match their checksums are read, and given to successors, all the same."""
    import fs.chunkengine.verified as verified_module  # noqa: PLC0415 - beside its patch

    real = verified_module.BatchReader.read_into

    def read_into(self: Any, located: Any, offset: int, buffer: Any, **options: Any) -> bool:
        try:
            return real(self, located, offset, buffer, **options)
        except FsError as error:
            if error.status is not Status.CHECKSUM_MISMATCH:
                raise
            return True

    verified_module.BatchReader.read_into = read_into  # type: ignore[method-assign]


@mutant("cut_all")
def sync_doesnothing() -> None:
    """A storage node answers a sync without flushing its disk."""
    import fs.storage.queries as queries_module  # noqa: PLC0415 - beside its patch

    queries_module.sync_chains = nothing  # type: ignore[assignment]
    service_module.queries.sync_chains = nothing


# ---- running -------------------------------------------------------------------------------------


def try_one(name: str, seed: int, work_s: float) -> None:
    """Run one of a mutant's seeds; every second one is aimed."""
    if seed % 2 == 1:
        AIMS[name].run(seed, work_s)
    else:
        run_seed(seed, work_s=work_s)


def passes_unbroken(name: str, seed: int, work_s: float) -> bool:
    """Return whether a mutant's seed passes without it;
    if not, its failure says nothing about it.
    """
    command = [sys.executable, "-m", "tests.sim.mutants", name, "--unbroken", f"--first={seed}"]
    command.append(f"--seconds={work_s}")
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def hunt(name: str, seeds: range, work_s: float, cpu_s_max: float) -> int:
    """Run one mutant in this process; return 0 when it was caught."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CPU, (round(cpu_s_max) + HANG_CPU_S,) * 2)
    MUTANTS[name]()
    began_s = time.process_time()
    seed = seeds.start
    for seed in seeds:
        if time.process_time() - began_s > cpu_s_max:
            break
        try:
            try_one(name, seed, work_s)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - any failure is a catch
            took_s = time.process_time() - began_s
            if not passes_unbroken(name, seed, work_s):
                print(f"{name:40} seed {seed} fails without it, too: {where(error)}", flush=True)
                continue
            print(f"{name:40} caught at seed {seed} in {took_s:.0f} s by {where(error)}")
            return 0
    print(f"{name:40} SURVIVED seeds {seeds.start} to {seed}")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MUTANTS, []], help="default: all")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--seeds", type=int, default=20, help="seeds per mutant")
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated seconds of work")
    parser.add_argument("--cpu", type=float, default=300.0, help="processor seconds per mutant")
    parser.add_argument("--here", action="store_true", help="one mutant, in this process")
    parser.add_argument("--unbroken", action="store_true", help="its first seed without it")
    arguments = parser.parse_args()
    if arguments.unbroken:
        try_one(arguments.names[0], arguments.first, arguments.seconds)
        return 0
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.here:
        return hunt(arguments.names[0], seeds, arguments.seconds, arguments.cpu)
    survivors = 0
    for name in arguments.names or MUTANTS:
        options = [f"--first={seeds.start}", f"--seeds={len(seeds)}"]
        options += [f"--seconds={arguments.seconds}", f"--cpu={arguments.cpu}"]
        command = [sys.executable, "-m", "tests.sim.mutants", "--here", *options, name]
        done = subprocess.run(command, check=False)
        if done.returncode == -signal.SIGXCPU:
            print(f"{name:40} caught: it hangs", flush=True)
        else:
            survivors += done.returncode != 0
    print(f"{survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
