"""Programs on two mounts, each with the model of Linux's caches in front:
what must a program see that reads, asks, opens?

    python -m tests.sim.coherence SEED [--count N] [--faults [--only FAULT ...]] [--cuts] [--names]
        [--holes] [--begun] [--inline BYTES] [--story]

What they do: `coherence_programs`; what the kernel does: `page_cache`.

Beneath, without `--faults`: the FUSE server of the direct frontend, the vfs and the metadata
service as they are, requests to it lost, repeated and late, with `--begun` also those that no task
waits for; chunks that only take their time.  With `--faults`: a whole simulated cluster with all
that goes wrong there (`coherence_cluster`).
"""

import argparse
import logging
import random
import sys
import traceback
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import trio

from fs.client.fuse.direct.server import Server
from fs.client.vfs import directory, listers
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from tests.client.fakes import FakeClock, run_inline
from tests.client.vfs.unreliable import BeginningMeta, Service, UnreliableMeta

from .coherence_cluster import run_over_cluster
from .coherence_programs import Programs, count_look_ups
from .determinism import run_deterministic
from .kernel_calls import ModelKernel, have_opens_ahead
from .page_cache import ModelDevice

MOUNT_COUNT: Final = 2
ROUND_COUNT: Final = 25
LATE_S: Final = 0.02


class SomeMeta(UnreliableMeta):
    """One mount's way to the service."""

    def __init__(self, service: Service, nursery: trio.Nursery, seed: int, letter: str) -> None:
        super().__init__(service, nursery, seed)
        self.client_id = letter * 32


class SomeBeginningMeta(SomeMeta, BeginningMeta):
    """One by which requests are begun without a task, where they can be."""


async def _shake(callers: list[SomeMeta], source: random.Random) -> None:
    while True:
        await trio.sleep(source.expovariate(1.0))
        source.choice(callers).reset()


def section(source: random.Random) -> ClientSection:
    """Return the settings of a mount."""
    return ClientSection(
        write_buffer_bytes=source.choice([16 * 1024, 64 * 1024]),
        dirty_bytes_max=1 << 20,
        readahead_bytes_max=source.choice([0, 128 * 1024]),
        write_back_interval_s=source.choice([0.1, 1.0]),
        durable_close=source.choice([True, False]),
    )


@patch.object(listers, "LEFT_COUNT_MIN", 1)
@patch.object(directory, "PAGE_ENTRY_COUNT", 3)
async def run(
    seed: int,
    told: list[Programs] | None = None,
    *,
    with_cuts: bool = False,
    with_names: bool = False,
    with_holes: bool = False,
    is_begun: bool = False,
    inline_bytes_max: int | None = None,
) -> Programs:
    """Run one seed; raises AssertionError when something was seen that must not be."""
    source, service = random.Random(seed), Service(seed, inline_bytes_max=inline_bytes_max)
    kernels, callers, mounts = list[ModelKernel](), list[SomeMeta](), list[Vfs]()
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            service.chunks.has_other_writers = True
            service.mgmtd.client_ids = [letter * 32 for letter in "ab"]
            for number in range(MOUNT_COUNT):
                kind = SomeBeginningMeta if is_begun else SomeMeta
                caller = kind(service, nursery, seed + number, "ab"[number])
                runtime = Runtime(FakeClock(), None, run_inline, random.Random(seed + number))
                vfs: Any = Vfs(caller, service.store(), runtime, section(source))
                device = ModelDevice()
                kernel = ModelKernel(device, source, nursery, LATE_S)
                vfs.connect_kernel(kernel)
                await nursery.start(vfs.run)
                server = Server(device, vfs, runtime)  # type: ignore[arg-type]
                have_opens_ahead(server, kernel)
                nursery.start_soon(server.run)
                kernels.append(kernel)
                callers.append(caller)
                mounts.append(vfs)
            programs = Programs(kernels, source)
            if with_cuts:
                programs.cut_a_file()
            if with_names:
                programs.change_names()
            programs.makes_holes = with_holes
            if told is not None:
                programs.tell_all(told)
            async with trio.open_nursery() as shaking:
                shaking.start_soon(_shake, callers, source)
                await programs.run(lambda done_count: done_count >= ROUND_COUNT)
                shaking.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    count_look_ups(programs, mounts)
    return programs


def main() -> int:
    """Run seeds; tell which fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.coherence")
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--story", action="store_true", help="what the programs did")
    parser.add_argument("--faults", action="store_true", help="over a cluster, with its faults")
    parser.add_argument("--cuts", action="store_true", help="without faults: see coherence_cuts")
    parser.add_argument("--names", action="store_true", help="see coherence_names")
    parser.add_argument("--holes", action="store_true", help="also unpacked files, and holes")
    parser.add_argument(
        "--begun", action="store_true", help="without faults: by calls without a task"
    )
    parser.add_argument(
        "--inline", type=int, help="of files that meta keeps, bytes; default: drawn"
    )
    parser.add_argument("--log", default="critical", help="log level of what is simulated")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of fault, default: drawn")
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log.upper(), format="%(name)s: %(message)s")
    failed, checked, absent, ahead, known, opened = list[int](), 0, 0, 0, 0, 0
    run_one: Any = (
        partial(run_over_cluster, only=arguments.only, inline_bytes_max=arguments.inline)
        if arguments.faults
        else partial(
            run,
            with_cuts=arguments.cuts,
            is_begun=arguments.begun,
            inline_bytes_max=arguments.inline,
        )
    )
    if arguments.names:
        run_one = partial(run_one, with_names=True)
    if arguments.holes:
        run_one = partial(run_one, with_holes=True)
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        told: list[Programs] | None = [] if arguments.story else None
        try:
            programs = run_deterministic(partial(run_one, seed, told), seed)
            checked += programs.checked_count
            absent += programs.absent_count
            ahead += programs.ahead_count
            opened += programs.opened_ahead_count
            known += programs.directories.known_count if programs.directories else 0
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            failed.append(seed)
            found: Any = error
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            where = traceback.extract_tb(found.__traceback__)[-1]
            print(f"seed {seed}: {found!r} at {where.filename}:{where.lineno}", flush=True)
            if arguments.count == 1:
                if told:
                    print("\n".join(told[0].story[-4000:]))
                raise
    answered = f", {ahead} look-ups answered and {opened} files opened ahead"
    if arguments.names:
        answered += f", {absent} names told absent by mounts, {known} to lead to files"
    print(
        f"{arguments.count} seeds, {checked} contents as they must be{answered}, failed: {failed}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
