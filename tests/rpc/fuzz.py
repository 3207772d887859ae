"""Row R1: broken and strange frames at every listening address of a real cluster, while honest callers are served.

`python -m tests.rpc.fuzz --frames N [--seed S]`: starts a cluster of its own in a temporary directory, sends N frames to each
of its processes, and prints per process: frames, answers by status, internal errors, growth of memory.  Fails if a process
dies, does not answer an honest call in time, answers INTERNAL_ERROR, or grows by more than 50 MiB.

Half of the frames are structure-aware: a good header and checksum around a random message of a declared method,
damaged in half of the cases. The rest is blind: good frames with bits flipped, cut, doubled, or with any header fields.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor

from fs.rpc.api import Identity
from fs.rpc.frame import HEADER_BYTES, FrameLimits, Kind, decode_header, encode_header
from fs.rpc.handshake import encode_hello
from fs.schema import services
from fs.schema.method import Method
from fs.schema.proto import core_pb2
from fs.schema.status import Status

GROWTH_BYTES_MAX = 50 * 1024 * 1024
ANSWER_S_MAX = 20.0
FRAMES_PER_CONNECTION = 20
HONEST_EVERY = 10
"""Connections between two honest calls."""

LIMITS = FrameLimits(1 << 30, 1 << 40)
METHODS = sorted(
    (m for m in vars(services).values() if isinstance(m, Method)),
    key=lambda m: (m.service_number, m.number),
)
_MEMORY_LINE = "VmRSS:"


@dataclass
class Report:
    """What one process answered."""

    name: str
    pid: int
    frames: int = 0
    honest: int = 0
    statuses: Counter = field(default_factory=Counter)
    internal: list[str] = field(default_factory=list)
    growth_bytes: int = 0


def random_message(rng: random.Random, message, depth: int = 0) -> None:
    """Fill some fields of a message with edge values and noise."""
    for spec in message.DESCRIPTOR.fields:
        if rng.random() < 0.4:
            continue
        if spec.message_type is not None:
            if depth < 2 and not spec.message_type.GetOptions().map_entry:
                inner = getattr(message, spec.name)
                random_message(rng, inner.add() if spec.is_repeated else inner, depth + 1)
            continue
        values = [random_value(rng, spec) for _ in range(rng.randrange(1, 4))]
        if spec.is_repeated:
            getattr(message, spec.name).extend(values)
        else:
            setattr(message, spec.name, values[0])


def random_value(rng: random.Random, spec: FieldDescriptor):
    """Return a value that fits one field's type."""
    bits = {
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31),
        FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
        FieldDescriptor.CPPTYPE_ENUM: (0, 12),
    }
    if spec.cpp_type in bits:
        low, high = bits[spec.cpp_type]
        return rng.choice([low, high - 1, rng.randrange(low, high), rng.randrange(8), 1])
    if spec.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if spec.cpp_type in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return rng.choice([0.0, -1.0, 1e30, float("inf"), float("nan"), rng.random()])
    noise = rng.randbytes(rng.choice([0, 1, 8, 16, 300]))
    return noise if spec.type == FieldDescriptor.TYPE_BYTES else noise.hex()


def structured_frame(rng: random.Random, request_id: int) -> bytes:
    """Return a request whose header is good."""
    method = rng.choice(METHODS)
    request = method.request_type()
    random_message(rng, request)
    message = request.SerializeToString()
    if rng.random() < 0.5:
        message = damaged(rng, message)
    payload = rng.randbytes(rng.choice([0, 0, 1, 4096]))
    header = encode_header(
        Kind.REQUEST,
        request_id,
        service=method.service_number,
        method=method.number,
        timeout_ms=rng.choice([0, 1, 50, 1000]),
        message_bytes=len(message),
        payload_bytes=len(payload),
    )
    return header + message + payload


def blind_frame(rng: random.Random, request_id: int) -> bytes:
    """Return a frame with any header fields, or a good one that was damaged afterwards."""
    if rng.random() < 0.5:
        return damaged(rng, structured_frame(rng, request_id))
    return encode_header(
        rng.randrange(256),
        rng.randrange(2**64),
        service=rng.randrange(2**16),
        method=rng.randrange(2**16),
        status=rng.randrange(2**16),
        timeout_ms=rng.randrange(2**32),
        message_bytes=rng.choice([0, 1, 2**24, 2**31, 2**32 - 1]),
        payload_bytes=rng.choice([0, 1, 2**28, 2**31, 2**63]),
    ) + rng.randbytes(rng.randrange(100))


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


def connect(address: str) -> socket.socket:
    """Return a connection to `unix:/PATH` or `tcp:HOST:PORT`."""
    kind, _, place = address.partition(":")
    if kind == "unix":
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(ANSWER_S_MAX)
        stream.connect(place)
        return stream
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX)


def exactly(stream: socket.socket, count: int) -> bytes:
    """Receive `count` bytes; raises ConnectionError when the stream ends before."""
    data = b""
    while len(data) < count:
        piece = stream.recv(count - len(data))
        if not piece:
            raise ConnectionError("the stream ended")
        data += piece
    return data


def answer(stream: socket.socket) -> tuple[int, int, bytes]:
    """Receive one frame; return its kind, status and message."""
    header = decode_header(exactly(stream, HEADER_BYTES), LIMITS)
    message = exactly(stream, header.message_bytes)
    exactly(stream, header.payload_bytes)
    return header.kind, header.status, message


def greeted(address: str, cluster_id: str) -> socket.socket:
    """Return a connection after the handshake."""
    stream = connect(address)
    stream.sendall(b"".join(encode_hello(Identity(cluster_id, client_id="fuzz"))))
    kind, status, detail = answer(stream)
    assert kind == Kind.HELLO, (status, detail)
    return stream


def honest_call(address: str, cluster_id: str) -> None:
    """Call Core.Echo; raises when it is not answered well and in time."""
    message = core_pb2.EchoReq(data=b"honest").SerializeToString()
    method = services.CORE_ECHO
    with greeted(address, cluster_id) as stream:
        header = encode_header(
            Kind.REQUEST,
            1,
            service=method.service_number,
            method=method.number,
            message_bytes=len(message),
        )
        stream.sendall(header + message)
        kind, status, reply = answer(stream)
        assert (kind, status) == (Kind.REPLY, Status.OK), (kind, status)
        assert core_pb2.EchoRsp.FromString(reply).data == b"honest"


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process; raises FileNotFoundError when it is gone."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(_MEMORY_LINE))


def attack(address: str, cluster_id: str, report: Report, rng: random.Random) -> None:
    """Send the frames of one connection; what it answers at once is counted, what breaks it is no error."""
    with greeted(address, cluster_id) as stream:
        stream.settimeout(0.02)
        for request_id in range(1, FRAMES_PER_CONNECTION + 1):
            make = structured_frame if rng.random() < 0.5 else blind_frame
            report.frames += 1
            stream.sendall(make(rng, request_id))
            kind, status, detail = answer(stream)
            report.statuses[f"{Kind(kind).name} {status}"] += 1
            if status == Status.INTERNAL_ERROR:
                report.internal.append(detail.decode(errors="replace"))


def fuzz(address: str, cluster_id: str, report: Report, *, frames: int, seed: int) -> Report:
    """Send at least so many frames to one process; raises when an honest caller is not served."""
    rng = random.Random(f"{seed} {report.name}")
    honest_call(address, cluster_id)
    began_bytes, connections = 0, 0
    while report.frames < frames:
        with suppress(
            OSError
        ):  # it may close a connection that sends garbage, or leave it unanswered
            attack(address, cluster_id, report, rng)
        connections += 1
        if connections % HONEST_EVERY == 0 or report.frames >= frames:
            honest_call(address, cluster_id)
            report.honest += 1
            began_bytes = began_bytes or memory_bytes(report.pid)
            report.growth_bytes = memory_bytes(report.pid) - began_bytes
    return report


def ember(*arguments: str) -> str:
    """Run the command of this environment; it must succeed."""
    program = Path(sys.executable).parent / "ember"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fuzz_cluster(folder: Path, *, frames: int, seed: int) -> list[Report]:
    """Start a cluster with a process of each kind, send `frames` frames to each of them, stop it."""
    directory = str(folder / "c")
    sizes = ("--nodes", "1", "--replicas", "1", "--mgmtds", "2", "--metas", "2")
    ember(
        "up", "--dir", directory, "--no-mount", "--no-restart", "--until", str(os.getpid()), *sizes
    )
    try:
        status = json.loads(ember("status", "--dir", directory, "--json"))
        return [
            fuzz(
                f"unix:{directory}/run/{service['name']}.sock",
                status["cluster_id"],
                Report(service["name"], service["pid"]),
                frames=frames,
                seed=seed,
            )
            for service in status["services"]
        ]
    finally:
        ember("down", "--dir", directory)


def failures(report: Report) -> list[str]:
    """Say what of a report breaks the demand."""
    found = [f"{report.name}: internal error: {text}" for text in report.internal[:5]]
    if report.growth_bytes > GROWTH_BYTES_MAX:
        found.append(f"{report.name}: grew by {report.growth_bytes / 2**20:.0f} MiB")
    return found


def main() -> int:
    """Return 1 if a process did not stand it."""
    parser = argparse.ArgumentParser(prog="python -m tests.rpc.fuzz")
    parser.add_argument("--frames", type=int, default=2000, help="for each process")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = fuzz_cluster(Path(folder), frames=options.frames, seed=options.seed)
    for report in reports:
        print(
            f"{report.name}: {report.frames:,} frames, {report.honest} honest calls served,"
            f" {len(report.internal)} internal errors, grew {report.growth_bytes / 2**20:.1f} MiB,"
            f" {dict(report.statuses.most_common(8))}"
        )
    found = [text for report in reports for text in failures(report)]
    print("\n".join(found) or "no process was impressed")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
