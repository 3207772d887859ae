"""Row R1: broken and strange frames at every listening address of a real cluster,
while honest callers are served.

`python -m tests.rpc.fuzz --frames N [--seed S]`: starts a cluster of its own in a temporary
directory, sends N frames to each of its processes, and prints per process what came of it.  Fails
if a process dies, leaves an honest call, a well-formed request or a broken stream without an answer
for 30 s, answers INTERNAL_ERROR, closes a connection without cause, grows by more than 50 MiB,
keeps descriptors, or keeps something of Python's for every few frames: in the second half, when
what is remembered up to a bound is remembered.

Half of the frames are structure-aware: a good header around a random message of a method that the
process serves, the message damaged in half of the cases.  The rest is blind: good frames with bytes
flipped, cut, inserted or doubled, headers with any fields, and the same instead of a hello.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio
from google.protobuf.descriptor import FieldDescriptor

from fs.app.monitoring.scraped import fetch
from fs.rpc.api import Identity
from fs.rpc.frame import TRACE_BYTES, Kind, encode_header
from fs.rpc.handshake import encode_hello
from fs.schema import services
from fs.schema.method import Method
from fs.schema.metrics import PROCESS_BLOCKS as BLOCKS
from fs.schema.status import Status

from .messages import fill, value_of
from .peer import SilenceError, connected, greeted, honest_call, request_frame

GROWTH_BYTES_MAX = 50 * 1024 * 1024
BLOCKS_PER_CALL_MAX = 0.5
"""Pieces of memory that stay of each call of the second half;
one object that is kept is at least one.
"""
BLOCKS_MIN = 60_000
"""So many come and go by themselves: the collector of garbage looks when there
are 20,000 new objects, of a few pieces each.
"""
DESCRIPTORS_MAX = 20
"""More open than before; some belong to connections that are being closed."""

STRUCTURED_COUNT = 24
BLIND_COUNT = 3
"""Frames of one connection; the first broken one ends it."""

CONNECTIONS_AT_ONCE = 12
HONEST_PAUSE_S = 0.25
WARM_SHARE = 0.05
"""Of the frames, before growth is measured: caches fill, code is imported."""

REAL_IDS = (1, 2, 11, 101, 102, 201, 202, 11001, 11002)
"""Of nodes, targets, chains, tables, versions and inodes of the cluster that is attacked."""

_WHOLE = {FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64}
METHODS = sorted(
    (m for m in vars(services).values() if isinstance(m, Method)),
    key=lambda m: (m.service_number, m.number),
)


class Size(NamedTuple):
    """Of a process."""

    memory_bytes: int
    descriptors: int
    blocks: int
    """Pieces of memory that Python has in use."""


@dataclass
class Growth:
    """By how much a process has become larger."""

    sizes: list[Size] = field(default_factory=list)
    """After the first calls, in the middle, at the end."""
    late_calls: int = 0
    """From the middle on."""

    def of(self, part: str) -> int:
        """Return the growth of one part from the first size to the last."""
        return getattr(self.sizes[-1], part) - getattr(self.sizes[0], part) if self.sizes else 0

    @property
    def late_blocks(self) -> int:
        return self.sizes[-1].blocks - self.sizes[-2].blocks if self.late_calls else 0

    def failures(self) -> list[str]:
        """Say what is too much."""
        found = []
        if self.of("memory_bytes") > GROWTH_BYTES_MAX:
            found.append(f"grew by {self.of('memory_bytes') / 2**20:.0f} MiB")
        if self.of("descriptors") > DESCRIPTORS_MAX:
            found.append(f"keeps {self.of('descriptors')} descriptors")
        if self.late_blocks > max(BLOCKS_MIN, BLOCKS_PER_CALL_MAX * self.late_calls):
            found.append(f"keeps {self.late_blocks} blocks of the last {self.late_calls} calls")
        return found

    def __str__(self) -> str:
        late = (
            f"{self.late_blocks / self.late_calls:.3f} blocks a call late"
            if self.late_calls
            else ""
        )
        return (
            f"{self.of('memory_bytes') / 2**20:.1f} MiB, {self.of('descriptors')} descriptors, "
            f"{late}"
        )


@dataclass
class Report:
    """What one process made of it."""

    name: str
    pid: int
    frames: int = 0
    honest: int = 0
    statuses: Counter = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    methods: set[str] = field(default_factory=set)
    """Those that it serves."""
    growth: Growth = field(default_factory=Growth)
    took_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.frames:,} frames in {self.took_s:.0f} s, {self.honest} honest "
            "calls served,"
            f" {len(self.problems)} problems, grew {self.growth}, {len(self.methods)} methods,"
            f" {dict(self.statuses.most_common(12))}"
        )


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Flip, cut, insert or double bytes."""
    changed = bytearray(data or b"\0")
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randrange(1, 9)]
            case 2:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                changed[at:at] = changed[at : at + 8]
    return bytes(changed)


def _likely(rng: random.Random, spec: FieldDescriptor):
    """Return a value as `value_of` does, often one that names something:
    a request gets further with it.
    """
    if spec.cpp_type in _WHOLE and rng.random() < 0.4:
        return rng.choice(REAL_IDS)
    return value_of(rng, spec)


def structured_frame(
    rng: random.Random, request_id: int, timeout_ms: int, methods=METHODS
) -> bytes:
    """Return a request whose header is good."""
    method = rng.choice(methods)
    request = method.request_type()
    fill(rng, request, _likely)
    message = request.SerializeToString()
    if rng.random() < 0.5:
        message = damaged(rng, message)
    takes_payload = method.has_request_payload or rng.random() < 0.03
    payload = rng.randbytes(rng.choice((0, 1, 4096))) if takes_payload else b""
    trace = rng.choice((b"", bytes(TRACE_BYTES), rng.randbytes(TRACE_BYTES)))
    return request_frame(
        method, request_id, message, timeout_ms=timeout_ms, payload=payload, trace=trace
    )


def blind_frame(rng: random.Random, request_id: int) -> bytes:
    """Return a frame with any header fields, or a good one that was damaged afterwards."""
    if rng.random() < 0.5:
        return damaged(rng, structured_frame(rng, request_id, rng.choice((0, 1, 50))))
    return encode_header(
        rng.randrange(256),
        rng.randrange(2**64),
        service=rng.randrange(2**16),
        method=rng.randrange(2**16),
        status=rng.randrange(2**16),
        timeout_ms=rng.randrange(2**32),
        flags=rng.choice((0, 0, 1, rng.randrange(2**16))),
        message_bytes=rng.choice([0, 1, 2**24, 2**31, 2**32 - 1]),
        payload_bytes=rng.choice([0, 1, 2**28, 2**31, 2**63]),
    ) + rng.randbytes(rng.randrange(100))


def blind_hello(rng: random.Random, cluster_id: str) -> bytes:
    """Return what an honest caller does not begin with."""
    hello = b"".join(encode_hello(Identity(cluster_id, client_id="fuzz")))
    return damaged(rng, hello) if rng.random() < 0.5 else blind_frame(rng, 1)


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process; raises FileNotFoundError when it is gone."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def descriptor_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Attack:
    """Frames for one process, from several connections at once,
    and an honest caller beside them.
    """

    def __init__(self, cluster: "Running", report: Report, seed: int) -> None:
        self.report = report
        self._address, self._cluster_id = cluster.address(report.name), cluster.cluster_id
        self._size = partial(cluster.size, report.name)
        self._rng = random.Random(f"{seed} {report.name}")
        self._methods = list(METHODS)

    async def run(self, frames: int) -> None:
        """Send at least so many frames; raises when an honest caller is not served."""
        report = self.report
        began_s = time.monotonic()
        await self._learn_methods()
        await self._send(int(frames * WARM_SHARE))
        sizes = [self._size()]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._be_honest)
            await self._send(frames // 2)
            sizes.append(self._size())
            report.growth.late_calls = -report.frames
            await self._send(frames)
            nursery.cancel_scope.cancel()
        await self._call_honestly()
        report.growth.late_calls += report.frames
        report.growth.sizes = [*sizes, self._size()]
        report.took_s = time.monotonic() - began_s

    async def _learn_methods(self) -> None:
        """Find out which methods the process serves: others are all refused alike."""
        frames = b"".join(
            request_frame(m, i, b"\xff", timeout_ms=1000) for i, m in enumerate(METHODS)
        )
        async with greeted(self._address, self._cluster_id) as peer:
            answers = await peer.exchange(frames, range(len(METHODS)))
        known = {a.request_id for a in answers if a.status != Status.RPC_UNKNOWN_METHOD}
        self._methods = [METHODS[i] for i in sorted(known)]
        self.report.methods = {str(m) for m in self._methods}

    async def _be_honest(self) -> None:
        while True:
            await self._call_honestly()
            await trio.sleep(HONEST_PAUSE_S)

    async def _call_honestly(self) -> None:
        await honest_call(self._address, self._cluster_id)
        self.report.honest += 1

    async def _send(self, frames: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(CONNECTIONS_AT_ONCE):
                nursery.start_soon(self._send_until, frames)

    async def _send_until(self, frames: int) -> None:
        while self.report.frames < frames:
            try:
                if self._rng.random() < BLIND_COUNT / (BLIND_COUNT + STRUCTURED_COUNT):
                    await self._structured()
                else:
                    await self._blind()
            except SilenceError as error:
                self.report.problems.append(str(error))

    async def _structured(self) -> None:
        """Well-formed requests: each with a time limit must be answered."""
        rng, frames, wanted = self._rng, [], set()
        for request_id in range(1, STRUCTURED_COUNT + 1):
            timeout_ms = rng.choice((0, 1, 50, 1000, 5000))
            methods = self._methods if rng.random() < 0.95 else METHODS
            frames.append(structured_frame(rng, request_id, timeout_ms, methods))
            if timeout_ms:
                wanted.add(request_id)
        self.report.frames += len(frames)
        async with greeted(self._address, self._cluster_id) as peer:
            answers = await peer.exchange(b"".join(frames), wanted)
        self._count(answers)
        if not wanted <= {answer.request_id for answer in answers}:
            self.report.problems.append(f"closed without cause: {answers[-1:]}")

    async def _blind(self) -> None:
        """Garbage: the stream must be closed."""
        rng = self._rng
        data = b"".join(blind_frame(rng, i + 1) for i in range(BLIND_COUNT))
        self.report.frames += BLIND_COUNT
        if rng.random() < 0.2:
            async with connected(self._address) as peer:
                self._count(await peer.pour(blind_hello(rng, self._cluster_id) + data))
        else:
            async with greeted(self._address, self._cluster_id) as peer:
                self._count(await peer.pour(data))

    def _count(self, answers) -> None:
        for answer in answers:
            self.report.statuses[f"{Kind(answer.kind).name} {answer.status}"] += 1
            if answer.status == Status.INTERNAL_ERROR:
                self.report.problems.append(
                    f"internal error: {answer.message.decode(errors='replace')}"
                )


def ember(*arguments: str) -> str:
    """Run the command of this environment; it must succeed."""
    program = Path(sys.executable).parent / "ember"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Running:
    """A cluster with a process of each kind."""

    directory: Path
    cluster_id: str
    pids: dict[str, int]
    metrics: dict[str, str] = field(default_factory=dict)
    """Where each process tells of itself."""

    def size(self, name: str) -> Size:
        pid = self.pids[name]
        lines = fetch(self.metrics[name].removeprefix("tcp:")).splitlines()
        blocks = next(line.split()[1] for line in lines if line.startswith(f"{BLOCKS.name} "))
        return Size(memory_bytes(pid), descriptor_count(pid), int(float(blocks)))

    def address(self, name: str) -> str:
        return f"unix:{self.directory}/run/{name}.sock"


ORDER = ("storage", "meta", "mgmtd", "kv")
"""Who is attacked first: what kv is sent changes what all the others need."""


@contextmanager
def running_cluster(directory: Path):
    """Start a cluster whose processes stay dead once they die; stop it."""
    sizes = ("--nodes", "1", "--replicas", "1", "--mgmtds", "2", "--metas", "2")
    ember(
        "up", "--dir", str(directory), "--no-mount", "--no-restart", "--until", str(os.getpid()),
        *sizes,
    )  # fmt: skip
    try:
        status = json.loads(ember("status", "--dir", str(directory), "--json"))
        pids = {service["name"]: service["pid"] for service in status["services"]}
        metrics = {service["name"]: service["metrics_address"] for service in status["services"]}
        yield Running(directory, status["cluster_id"], pids, metrics)
    finally:
        ember("down", "--dir", str(directory))


def fuzz_cluster(folder: Path, *, frames: int, seed: int, only: str = "") -> list[Report]:
    """Start a cluster, send `frames` frames to each of its processes, stop it."""
    reports = []
    with running_cluster(folder / "c") as cluster:
        for name in sorted(cluster.pids, key=lambda name: ORDER.index(name.partition("-")[0])):
            if name.startswith(only):
                report = Report(name, cluster.pids[name])
                attack = Attack(cluster, report, seed)
                trio.run(attack.run, frames)
                print(report, flush=True)
                reports.append(report)
    return reports


def failures(report: Report) -> list[str]:
    """Say what of a report breaks the demand."""
    found = [f"{report.name}: {text}" for text in report.problems[:5]]
    return found + [f"{report.name}: {text}" for text in report.growth.failures()]


def main() -> int:
    """Return 1 if a process did not stand it."""
    parser = argparse.ArgumentParser(prog="python -m tests.rpc.fuzz")
    parser.add_argument("--frames", type=int, default=2000, help="for each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="processes whose names begin so")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = fuzz_cluster(
            Path(folder), frames=options.frames, seed=options.seed, only=options.only
        )
    found = [text for report in reports for text in failures(report)]
    print("\n".join(found) or "no process was impressed")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
