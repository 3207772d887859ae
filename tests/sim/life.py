"""The life of one start of a process, and its views of what outlives it:
store, disk, network, threads, clock.

Invariant: after `Life.end` nothing that the process still does has effect.  Its tasks
are cancelled, and what `finally` blocks and shielded parts try all the same (a commit,
a disk write, a connection) raises.

`ProcessDead` and `SimulatedCrash` are BaseExceptions: code that retries or logs operating errors
must not survive its own death.
"""

import random
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final, TypeVar

import trio

from fs.chunkengine.simulated_disk import SimulatedCrash, SimulatedDisk
from fs.kv.api import KeyValue, KvEngine, Transaction
from fs.rpc.transport_memory import MemoryEndpoint
from fs.runtime.ports import OnEnd, Stream, StreamHandler
from fs.runtime.simulated import SimulatedClock
from fs.schema.status import FsError, Status

from .determinism import sleep_shielded, thaw

T = TypeVar("T")

NEVER: Final = 1 << 60
HUNG_LOOK_S: Final = 0.1
WRITING_STEPS: Final = frozenset(
    {"write", "write_direct", "meta_write", "meta_sync", "flush", "reserve", "punch"}
)


OPENING_STEPS: Final = frozenset({"read", "write", "write_direct", "reserve", "punch"})
"""Of data files, which may have to be opened."""


class ProcessDead(BaseException):
    """Raised in whatever a dead process still tries to do."""


class Life:
    """Alive until `end`, or until a planned death at some disk step or commit."""

    def __init__(self, name: str, on_death: Callable[[], None]) -> None:
        self.name = name
        self.is_over = False
        self.is_store_cut = False
        """The store does not answer this process."""
        self.steps_left = NEVER
        self.commits_left = NEVER
        self.dies_before_commit = True
        self.blocking_scopes: dict[trio.CancelScope, None] = {}
        """Waits inside a shield that a death has to end."""
        self._on_death = on_death

    def end(self) -> None:
        """Cut everything at once; harmless when over."""
        if self.is_over:
            return
        self.is_over = True
        thaw(self.name)  # SIGKILL ends a stopped process, too
        self._on_death()
        for scope in self.blocking_scopes:
            scope.cancel()

    def check(self) -> None:
        """Raise ProcessDead if it is over."""
        if self.is_over:
            raise ProcessDead(self.name)

    def check_store(self) -> None:
        """As `check`; raises FsError(KV_UNAVAILABLE) while the store cannot be reached."""
        self.check()
        if self.is_store_cut:
            raise FsError(Status.KV_UNAVAILABLE, f"{self.name} is cut off from the store")

    def disk_step(self, kind: str) -> None:
        """Count a step that changes the disk; die in the middle of the planned one."""
        self.check()
        if kind in WRITING_STEPS:
            self.steps_left -= 1
            if self.steps_left <= 0:
                self.end()
                raise SimulatedCrash(self.name)

    def count_commit(self) -> None:
        """Count a commit about to be made."""
        self.check_store()
        self.commits_left -= 1
        if self.commits_left <= 0 and self.dies_before_commit:
            self.end()
            self.check()

    def after_commit(self) -> None:
        """Die after the planned commit, before anybody hears of it."""
        if self.commits_left <= 0:
            self.end()
        self.check()


class DiskErrors:
    """What is wrong with a disk: errors it reports; they outlive the process."""

    def __init__(self, source: random.Random) -> None:
        self.read_share = 0.0
        """Of its reads fail with EIO."""
        self.write_share = 0.0
        """Of what changes it fails with EIO."""
        self.spares_flush = False
        """No flush of data fails: what it would lose is nowhere else."""
        self.lack_share = 0.0
        """Of its calls lack memory, or a descriptor."""
        self.fired_count = 0
        self._random = source

    def step(self, kind: str) -> None:
        """Maybe fail; raises FsError(IO_ERROR), or as where something is lacking."""
        if self.lack_share and self._random.random() < self.lack_share:
            self.fired_count += 1
            if kind in OPENING_STEPS and self._random.random() < 0.5:
                raise FsError(Status.OUT_OF_RESOURCES, f"simulated disk: no descriptor to {kind}")
            raise MemoryError(f"simulated disk: no memory to {kind}")
        if kind == "flush" and self.spares_flush:
            return
        share = self.write_share if kind in WRITING_STEPS else self.read_share
        if share and self._random.random() < share:
            self.fired_count += 1
            raise FsError(Status.IO_ERROR, f"simulated disk: {kind} failed")


class MachineClock(SimulatedClock):
    """The clocks of one machine: a wall clock that may be stepped,
    a monotonic one that may drift.
    """

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        self.rate = rate
        """Seconds that it counts per second that passes."""

    def monotonic_s(self) -> float:
        return trio.current_time() * self.rate


class DiskView:
    """A simulated disk as one start of a process sees it."""

    def __init__(
        self,
        disk: SimulatedDisk,
        life: Life,
        errors: DiskErrors | None = None,
        quick: Callable[[], bool] = lambda: True,
    ) -> None:
        self._disk = disk
        self._life = life
        self._errors = errors
        self.is_quick = quick

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def step(self, name: str) -> None:
        self._life.disk_step(name)
        if self._errors is not None:
            self._errors.step(name)
        self._disk.step(name)


class StoreView:
    """A key-value engine as one start of a process sees it."""

    def __init__(self, engine: KvEngine, life: Life) -> None:
        self._engine = engine
        self._life = life

    def transaction(self) -> Transaction:
        self._life.check()
        return TransactionView(self._engine.transaction(), self._life)  # type: ignore[return-value]

    async def sync(self) -> None:
        self._life.check_store()
        await self._engine.sync()
        self._life.check()

    async def aclose(self) -> None:
        raise AssertionError("the store outlives its processes")


class TransactionView:
    """A transaction as one start of a process sees it."""

    def __init__(self, inner: Transaction, life: Life) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        self._life.check_store()
        return await self._inner.get(key, snapshot=snapshot)

    async def get_range(self, begin: bytes, end: bytes, **options: Any) -> list[KeyValue]:
        self._life.check_store()
        return await self._inner.get_range(begin, end, **options)

    async def commit(self) -> bytes | None:
        life = self._life
        life.count_commit()
        with trio.CancelScope() as scope:
            life.blocking_scopes[scope] = None
            try:
                stamp = await self._inner.commit()
            finally:
                del life.blocking_scopes[scope]
            life.after_commit()
            return stamp
        raise ProcessDead(life.name)


class EndpointView:
    """The network as one start of a process sees it."""

    def __init__(self, endpoint: MemoryEndpoint, life: Life) -> None:
        self._endpoint = endpoint
        self._life = life

    async def connect(self, address: str, *, may_be_old: bool = False) -> Stream:
        self._life.check()
        stream = await self._endpoint.connect(address, may_be_old=may_be_old)
        if self._life.is_over:
            stream.break_now()  # type: ignore[attr-defined]
            raise ProcessDead(self._life.name)
        return stream

    async def serve(
        self,
        address: str,
        handler: StreamHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self._life.check()
        await self._endpoint.serve(address, handler, task_status=task_status)


class SlowThreads:
    """Runs blocking functions in place, after and before pauses,
    as a disk and a scheduler would make them.

    Calls that run at once finish in any order; like a thread's, a call under way
    cannot be cancelled, only die.
    """

    def __init__(self, life: Life, pause_s_max: float, source: random.Random) -> None:
        self.pause_s_max = pause_s_max
        self.is_hung = False
        """No call returns; those that were under way do nothing meanwhile either."""
        self.lack_share = 0.0
        """Of the calls get no thread."""
        self._life = life
        self._random = source

    async def __call__(self, function: Callable[..., T], /, *args: object) -> T:
        await self._pause()
        self._life.check()
        if self.lack_share and self._random.random() < self.lack_share:
            raise self._random.choice([MemoryError(), RuntimeError("can't start new thread")])
        result = function(*args)
        await self._pause()
        self._life.check()
        return result

    def begin(self, function: Callable[[], object], on_end: OnEnd) -> None:
        """As a task of nobody's: it outlives the process,
        whose bookkeeping then ends with its death.
        """
        trio.lowlevel.spawn_system_task(self._run_begun, function, on_end, context=copy_context())

    async def _run_begun(self, function: Callable[[], object], on_end: OnEnd) -> None:
        error: BaseException | None = None
        try:
            await self(function)
        except (Exception, ProcessDead, SimulatedCrash) as caught:  # noqa: BLE001 - told who waits
            error = caught
        try:
            on_end(error)
        except (ProcessDead, SimulatedCrash):
            assert self._life.is_over

    async def _pause(self) -> None:
        while self.is_hung and not self._life.is_over:
            await sleep_shielded(HUNG_LOOK_S)
        if self.pause_s_max and self._random.random() < 0.5:
            await sleep_shielded(self._random.uniform(0.0, self.pause_s_max))
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
