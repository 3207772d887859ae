"""The programs of `coherence_programs` over a whole simulated cluster, with what goes wrong there.

Machines die, come back, are cut off, lose what their disks had not written; chains change
their members and their order; managers and metadata services die, too, and mounts are
stopped.  The model of the kernel and its programs are on the machine of a mount, but not in
its daemon: they go on while that is stopped.

Only when asked for, as `--only cut_all`: losses of all power but that of the mounts' own machines
(`coherence_power`).  Not here: clients that die, and full disks, after which programs may see
something else (`recovered` knows what).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from unittest.mock import patch

import trio
from msgspec import structs

from fs.client.fuse.direct.server import Server
from fs.client.native import EmberFs
from fs.client.vfs import directory, listers
from fs.client.vfs.vfs import Vfs
from fs.schema.config import ClientSection

from .checkers import Observer
from .cluster import SimCluster
from .coherence_power import LastingPrograms
from .coherence_programs import Programs, count_look_ups
from .faults import Faults
from .kernel_calls import ModelKernel, have_opens_ahead
from .page_cache import ModelDevice
from .shape import Shape
from .workload import Memory
from .world import MACHINE_FAULTS, NETWORK_FAULTS, OPERATOR_FAULTS

WORK_S: Final = 30.0
"""Of work under faults."""
POWER_WORK_S: Final = 90.0
"""Of work where all power is lost now and then, which takes long each time."""
CALM_S: Final = 3.0
"""Of work when they are over."""
LATE_S: Final = 0.02
MOUNTS: Final = ("client-1.0", "client-2.0")
"""Faults of the network know these names."""
RETRY_S: Final = 300.0
KIND_COUNT: Final = 8
"""Kinds of fault in one run."""
LEFT_OUT: Final = frozenset(
    {
        "cut_all",
        "cut_clients",
        "full_disk",
        "kill_client",
        "kill_head_and_clients",
        "restore_managers",
        "rot_everywhere",
    }
)
KINDS: Final = sorted({*MACHINE_FAULTS, *NETWORK_FAULTS, *OPERATOR_FAULTS} - LEFT_OUT)
POWER: Final = "cut_all"


def section(source: random.Random) -> ClientSection:
    """Return the settings of a mount."""
    return ClientSection(
        write_buffer_bytes=source.choice([16 * 1024, 64 * 1024, 1 << 20]),
        dirty_bytes_max=1 << 20,
        readahead_bytes_max=source.choice([0, 128 * 1024, 1 << 20]),
        write_back_interval_s=source.choice([0.1, 1.0, 5.0]),
        durable_close=source.choice([True, False]),
        retry_time_s_max=RETRY_S,
    )


@dataclass
class _MountsMemory(Memory):
    programs: list[LastingPrograms] = field(default_factory=list)

    @property
    def are_workers_ready(self) -> bool:
        return bool(self.programs)

    def note_cut(self) -> None:
        super().note_cut()
        for programs in self.programs:
            programs.note_cut()


class _Run:
    def __init__(
        self,
        seed: int,
        only: Sequence[str],
        inline_bytes_max: int | None,
        *,
        with_names: bool,
        with_holes: bool,
    ) -> None:
        self.random = random.Random(f"{seed}/coherence")
        shape = Shape.draw(seed)
        if inline_bytes_max is not None:
            shape = replace(shape, inline_bytes_max=inline_bytes_max)
        self.cluster = SimCluster(seed, shape)
        self.memory = _MountsMemory.of(shape)
        self.kinds = only or self.random.sample(KINDS, KIND_COUNT)
        self.faults = Faults(self.cluster, self.memory, self.kinds)
        self.over = trio.Event()
        self.with_names = with_names
        self.with_holes = with_holes
        self.mounts: list[Vfs] = []

    async def main(self, told: list[Programs] | None) -> Programs:
        boxed: list[Programs] = []

        async def scenario() -> None:
            async with trio.open_nursery() as nursery:
                kernels = [await nursery.start(self._mount, nursery, name) for name in MOUNTS]
                clocks_agree = "step_clock" not in self.kinds
                kind = LastingPrograms if POWER in self.kinds else Programs
                programs = kind(kernels, self.random, clocks_agree=clocks_agree)
                if isinstance(programs, LastingPrograms):
                    self.memory.programs.append(programs)
                if self.with_names:
                    programs.change_names()
                programs.makes_holes = self.with_holes
                boxed.append(programs)
                if told is not None:
                    programs.tell_all(told)
                    self.cluster.trace.listen = programs.say
                await self._work(programs)
                nursery.cancel_scope.cancel()

        observer = Observer(self.cluster, self.memory, self.faults.world.count)
        with trio.fail_after(3600):
            await self.cluster.run(scenario, observer.run)
        count_look_ups(boxed[0], self.mounts)
        return boxed[0]

    async def _work(self, programs: Programs) -> None:
        work_s = POWER_WORK_S if POWER in self.kinds else WORK_S
        until_s, calm_s = trio.current_time() + work_s, [float("inf")]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(programs.run, lambda _count: trio.current_time() >= calm_s[0])
            await self.faults.run(until_s)
            await self.cluster.wait_healthy(is_still=True)
            calm_s[0] = trio.current_time() + CALM_S

    async def _mount(
        self, nursery: trio.Nursery, name: str, *, task_status: trio.TaskStatus[ModelKernel]
    ) -> None:
        device = ModelDevice()
        kernel = ModelKernel(device, self.random, nursery, LATE_S)

        async def serve(fs: EmberFs) -> None:
            runtime = fs._runtime
            settings = section(self.random)
            if POWER in self.kinds:
                settings = structs.replace(settings, durable_close=True)
            vfs = Vfs(fs._meta, fs._chunks, runtime, settings)
            vfs.connect_kernel(kernel)
            self.mounts.append(vfs)
            server: Any = Server(device, vfs, runtime)  # type: ignore[arg-type]
            have_opens_ahead(server, kernel)
            async with trio.open_nursery() as serving:
                await serving.start(vfs.run)
                task_status.started(kernel)
                await server.run()

        await self.cluster.connect_client(name, serve)


@patch.object(listers, "LEFT_COUNT_MIN", 1)
@patch.object(directory, "PAGE_ENTRY_COUNT", 3)
async def run_over_cluster(
    seed: int,
    told: list[Programs] | None = None,
    *,
    only: Sequence[str] = (),
    inline_bytes_max: int | None = None,
    with_names: bool = False,
    with_holes: bool = False,
) -> Programs:
    """Run one seed; raises AssertionError when something was seen that must not be.

    Files of up to `inline_bytes_max` bytes are kept in the metadata store; None: as the seed says.
    """
    one = _Run(seed, only, inline_bytes_max, with_names=with_names, with_holes=with_holes)
    return await one.main(told)
