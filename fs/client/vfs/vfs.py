"""The vfs: POSIX semantics of one mount over the meta and storage clients.

It knows nothing of FUSE.

What it promises is in specs/semantics.md.  Its parts are `files` (open files and their data),
`namespace` (names and attributes) and `directories` (listing).  They share a `VfsCore` (state of
open inodes, write-back), whose head states the locking rules.

Concurrency: any number of tasks; `run` must be running.  A service that is away is a pause: the
clients below retry, and nothing here times out by itself.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ...runtime.figures import Figures
from ...runtime.ports import Runtime
from ...runtime.span_keeper import SpanKeeper
from ...runtime.tracing import Tracer
from ...schema import metrics, services
from ...schema.config import ClientSection
from ...schema.ids import InodeId
from ...schema.lacks import lack_among
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from ..api import ChunkStore, MetaCaller
from .allocation import Allocation
from .batches import Batches
from .copying import Copying
from .core import VfsCore
from .directory import Directories
from .files import Files
from .hf3fs_hiding import HidingDirectories
from .hf3fs_removal import Removal
from .hf3fs_segments import Segments
from .hf3fs_tree import Hf3fsTree
from .locks import Locks
from .mounted_tree import MountedTree
from .namespace import Namespace
from .open_file import InodeState
from .ports import Caller, KernelCache, NoKernelCache
from .seeking import Seeking

_log = logging.getLogger(__name__)

_STATFS_AGE_S_MAX = 1.0
_SPACE_INTERVAL_S = 5.0
_OF_MOUNT = Caller(0, 0)

FREE_INODES = 2**32
"""Inodes come from nowhere: so many are said to be free where no quota limits them."""


@dataclass(frozen=True, slots=True)
class SpaceInfo:
    """What statfs(2) shows."""

    capacity_bytes: int
    free_bytes: int
    inode_count: int
    free_inodes: int


def _told_count(state: InodeState) -> int:
    """Return how many failed writes have been told to every open file that can write."""
    seen = [handle.seen_error_count for handle in state.handles.values() if handle.can_write]
    return min(seen, default=state.error_count)


def _is_unwritten(state: InodeState, told_count: int) -> bool:
    return state.is_dirty or state.has_unreported or state.error_count > told_count


def _not_written(lost: list[InodeState]) -> FsError:
    first = lost[0]
    why = f": {first.last_error}" if first.last_error is not None else ""
    more = f", and of {len(lost) - 1} files more" if len(lost) > 1 else ""
    detail = f"of inode {first.inode_id}{why}{more} (names: ember path)"
    return FsError(Status.NOT_FLUSHED, detail)


def _space_info(reply: meta_pb2.StatFsRsp) -> SpaceInfo:
    free_inodes = reply.free_inodes if reply.HasField("free_inodes") else FREE_INODES
    return SpaceInfo(reply.capacity_bytes, reply.free_bytes, reply.inode_count, free_inodes)


class Vfs:
    """See module head.

    Usage: `await nursery.start(vfs.run)`, then any operation, at the end `await vfs.shut_down()`.
    """

    def __init__(
        self,
        meta: MetaCaller,
        store: ChunkStore,
        runtime: Runtime,
        section: ClientSection,
        kernel: KernelCache | None = None,
        *,
        tracer: Tracer | None = None,
    ) -> None:
        """Serve nothing yet.

        Args:
            meta: the namespace.
            store: the bytes.
            runtime: clock, randomness.
            section: limits and times.
            kernel: whose caches are to be kept honest; default: nobody's.
            tracer: begins traces, of the kernel's requests and of batches;
                default: one that samples none.
        """
        self._core = VfsCore(meta, store, runtime, section, kernel or NoKernelCache())
        self.section = section
        self.profile = self._core.profile
        self.memory = self._core.memory
        self.tracer = tracer or Tracer(runtime.clock, runtime.random)
        self._core.spans = SpanKeeper(self.tracer)
        self.reads = self._core.reads
        """What was read: attributes are to be shown with it (`access_times`)."""
        self.files = Files(self._core)
        self.namespace = Namespace(self._core, self.files)
        self.tree = self._tree(runtime) if section.hf3fs_tree else None
        """What programs written for 3FS expect of a mount, where it is offered."""
        self.directories = (
            Directories(self._core)
            if self.tree is None
            else HidingDirectories(self._core, self.tree)
        )
        self.listers = self._core.listers
        self.allocation = Allocation(self._core, self.files)
        self.batches = Batches(self._core, self.files, self.namespace, self.tracer)
        self.copying = Copying(self._core, self.files, self.allocation)
        self.seeking = Seeking(self._core, self.files)
        self.locks = Locks(self._core, self.files)
        self._stop = trio.Event()
        self._space: SpaceInfo | None = None
        self._space_until_s = 0.0

    def _tree(self, runtime: Runtime) -> Hf3fsTree:
        removal, segments = Removal(self._core, self.namespace), Segments(self._core)
        return Hf3fsTree(removal, segments, runtime.clock.wall_ns())

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings; what the kernel was told, and what belongs to its mount,
        must be the same.
        """
        self.section = section
        self._core.adopt(section)

    def connect_kernel(self, kernel: KernelCache) -> None:
        """Say whose caches are to be kept honest; before the first operation."""
        self._core.connect_kernel(kernel)

    def count_reads(self, of_files: bool, of_directories: bool) -> None:
        """Say which reads may set times of access, before the first operation."""
        self.reads.is_off, self.reads.counts_listings = not of_files, of_directories

    def tell_settings(self, tell: Callable[[], bytes]) -> None:
        """Set what gives the mount's settings as JSON;
        its own user and root read them as an attribute of it.
        """
        self._core.tell_settings = tell

    def announce_tree(self, tree: MountedTree, root: InodeId) -> None:
        """Say which tree is mounted, and which directory is its root: programs read it as an
        attribute of any path of the mount.
        """
        self._core.tree, self._core.tree_root = tree, root

    def announce_batches(self, socket_name: bytes) -> None:
        """Say where programs find the server of batches:
        they read it as an attribute of any path of the mount.
        """
        self._core.batch_socket_name = socket_name

    def say(self, figures: Figures) -> None:
        """Say what this mount holds."""
        core = self._core
        figures.note(metrics.MOUNT_DIRTY, core.budget.used_bytes)
        figures.note(metrics.MOUNT_DIRTY_MAX, self.section.dirty_bytes_max)
        figures.note(metrics.MOUNT_READAHEAD, core.readahead_bytes)
        figures.note(metrics.MOUNT_AHEAD_BYTES, core.fetched_ahead_bytes)
        for cache, hits, misses in (
            ("attributes", core.told.hit_count, core.told.miss_count),
            ("absent names", core.leased.hit_count, core.leased.miss_count),
            ("present names", core.leased.at_hand_count, core.leased.not_at_hand_count),
            ("names ahead", self.namespace.ahead.hit_count, self.namespace.ahead.miss_count),
            ("opens", core.opened_ahead_count, core.opened_alone_count),
            ("readahead", core.ahead_hit_count, core.ahead_miss_count),
        ):
            figures.note(metrics.MOUNT_CACHE_HITS, hits, cache)
            figures.note(metrics.MOUNT_CACHE_MISSES, misses, cache)
        figures.note(metrics.MOUNT_OPEN, len(core.states))
        figures.note(metrics.MOUNT_KNOWN, len(core.known))

    @property
    def is_serving_batches(self) -> bool:
        """True while programs find a server of batches."""
        return bool(self._core.batch_socket_name)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do the background work until `shut_down`; cancelled instead, buffered bytes are lost."""
        async with trio.open_nursery() as nursery:
            self._core.attach(nursery)
            try:
                nursery.start_soon(self._write_back_loop)
                nursery.start_soon(self._settle_loop)
                nursery.start_soon(self._space_loop)
                nursery.start_soon(self._core.ending.run)
                nursery.start_soon(self._core.reads.run)
                nursery.start_soon(self.locks.run)
                task_status.started()
                await self._stop.wait()
            finally:
                self._core.attach(None)
            nursery.cancel_scope.cancel()

    async def shut_down(self) -> None:
        """Send and report everything, end all file sessions, stop the background work.

        Raises:
            FsError: NOT_FLUSHED: of some files not everything could be written in
                `client.unmount_time_s_max`, or a write had failed that nobody was told of.
                All has ended all the same.
        """
        states = [(state, _told_count(state)) for state in self._core.states.values()]
        with trio.move_on_after(self.section.unmount_time_s_max):
            async with trio.open_nursery() as nursery:
                for state, _ in states:
                    nursery.start_soon(self._write_back, state)
            await self.locks.release_all()
            await self.files.release_all()
            self._core.held.end_all()
            await self._core.ending.finish()
            await self._core.reads.tell_last()
        self._stop.set()
        lost = [state for state, told in states if _is_unwritten(state, told)]
        if lost:
            raise _not_written(lost)

    async def statfs_at(self, inode_id: InodeId, caller: Caller) -> SpaceInfo:
        """Return what may still be used at one object: less than `statfs` says below a quota."""
        request = meta_pb2.StatFsReq(caller=caller.to_pb(), inode_id=inode_id)
        return _space_info(await self._core.call(services.META_STAT_FS, request))

    async def statfs(self, caller: Caller) -> SpaceInfo:
        """Return capacity and free space of the cluster, at most a second old."""
        now_s = self._core.now_s()
        if self._space is None or now_s >= self._space_until_s:
            request = meta_pb2.StatFsReq(caller=caller.to_pb())
            reply = await self._core.call(services.META_STAT_FS, request)
            self._space = _space_info(reply)
            self._space_until_s = now_s + _STATFS_AGE_S_MAX
            if reply.capacity_bytes:  # else no storage was known, or none answered
                self._core.space.note_free(reply.free_bytes)
        return self._space

    async def _write_back_loop(self) -> None:
        under_way: set[InodeState] = set()

        async def write_back(state: InodeState) -> None:
            try:
                await self._write_back(state)
            except Exception as error:  # it is tried again, and whoever closes the file is told
                lack = lack_among(error)
                if lack is None:
                    raise
                _log.warning("inode %d: write-back lacks something: %r", state.inode_id, lack)
            finally:
                under_way.discard(state)

        while True:
            await trio.sleep(self.section.write_back_interval_s)
            # A file whose chains do not answer keeps the others waiting for nothing.
            for state in self._core.states.values():
                if state not in under_way and (state.is_dirty or state.has_unreported):
                    under_way.add(state)
                    self._core.spawn(write_back, state)

    async def _settle_loop(self) -> None:
        while True:
            await trio.sleep(self.section.write_back_interval_s)
            await self._core.settle_unsure()

    async def _space_loop(self) -> None:
        while True:
            try:
                await self.statfs(_OF_MOUNT)
            except FsError as error:
                _log.warning("asking for the free space failed: %s", error)
            await trio.sleep(_SPACE_INTERVAL_S)

    async def _write_back(self, state: InodeState) -> None:
        try:
            await self._core.drain(state)
            if state.has_unreported:
                await self._core.report(state, is_durable=False)
            await self._core.settle_owner(state)
        except FsError as error:
            _log.warning("inode %d: write-back failed: %s", state.inode_id, error)
            if error.status in (Status.STALE, Status.NOT_FOUND):
                # The file is gone; nobody is left to tell.
                state.reported_seq = state.acked_seq
        self._core.drop_state_if_unused(state)
