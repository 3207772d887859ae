"""Every metadata RPC with hostile content:
nothing changes that the caller may not change, nothing breaks.

    python -m tests.meta.fuzz [--calls N] [--root-calls N] [--seed S]

Starts a cluster with two metadata services. Root and another user make trees that strangers must
not change, then strangers send N well-formed calls: names of every byte, absolute and dotted
ones, ids that exist, existed and never did, 64-bit extremes, file sessions of others, request ids
of others, groups without end.  Then anybody, root too, sends more of them.  Fails if the guarded
trees have changed, a call is not answered within 30 s or by INTERNAL_ERROR, a process dies, grows
by more than 50 MiB, keeps descriptors or something for every few calls, or the namespace
contradicts itself in the end.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from xxhash import xxh3_64_intdigest

from fs.kv.rocksdb import RocksDbEngine
from fs.meta.check import check
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema import services
from fs.schema.config import KvSection
from fs.schema.ids import GC_ROOT_INODE_ID, ROOT_INODE_ID
from fs.schema.method import Method
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.rpc.fuzz import (
    Growth,
    Running,
    running_cluster,
)
from tests.rpc.messages import NAMES, fill, value_of
from tests.rpc.peer import Answer, Peer, SilenceError, greeted, honest_call, request_frame

METHODS = [m for m in vars(services).values() if isinstance(m, Method) and m.service_name == "Meta"]
BATCH_COUNT = 50
CONNECTIONS_AT_ONCE = 12
TIMEOUT_MS = 25_000
LEARNED_MAX = 400
OWNER, STRANGER = 4242, 1000
OWNERS_CLIENT = "0" * 32
STRANGERS = (
    (STRANGER, STRANGER, ()),
    (1001, 100, (5, 7)),
    (65_534, 65_534, ()),
    (2**32 - 1, 2**32 - 1, (3,)),
    (1002, 1, tuple(range(10, 70_000))),
)
ANYBODY = (*STRANGERS, (0, 0, ()), (OWNER, OWNER, ()))
IMMUTABLE = 0x10
SESSION = "ab" * 16
OWN_NAMES = (b"a", b"b", b"c", b"d", b"\xe4", b"n" * 255)
XATTRS = (
    b"user.a",
    b"user.a",
    b"user.b",
    b"user.",
    b"security.capability",
    b"trusted.t",
    b"system.posix_acl_access",
    b"x",
)
SELDOM = (
    "layout",
    "default_layout",
    "iflags",
    "length_hint",
    "directory",
    "old_directory",
    "new_directory",
    "expected_parent_inode_id",
    "expected_name",
)
"""What refuses nearly every request in which it stands."""
ATTRIBUTE_REQUESTS = (meta.SetXattrReq, meta.GetXattrReq, meta.RemoveXattrReq)
LENGTHS = (0, 1, 4096, 2**20 + 1, 2**46, 2**46 + 1, 2**63 - 1, 2**63, 2**64 - 1)
MODES = (0o644, 0o755, 0o777, 0o7777, 0o4755, 0o100644, 2**32 - 1)
HOSTILE_IDS = (0, int(ROOT_INODE_ID), int(GC_ROOT_INODE_ID), 3, 0x1000, 2**63 - 1, 2**63, 2**64 - 1)


class Direct:
    """One honest caller of a metadata service."""

    def __init__(self, peer: Peer, uid: int, client_id: str = "") -> None:
        self._peer = peer
        self._caller = pb.CallerPb(uid=uid, gid=uid, client_id=client_id)
        self._last_id = 0

    async def __call__(self, method: Method, **fields: object) -> Message:
        """Return the reply; raises FsError."""
        request = method.request_type(caller=self._caller, **fields)
        self._last_id += 1
        frame = request_frame(method, self._last_id, request.SerializeToString())
        answers = await self._peer.exchange(frame, {self._last_id})
        if not answers:
            raise ConnectionError("the service closed the connection")
        if answers[0].status:
            raise FsError(Status(answers[0].status), answers[0].message.decode(errors="replace"))
        return method.reply_type.FromString(answers[0].message)


@dataclass
class Guarded:
    """What strangers must not change: objects, and directories with all their entries."""

    objects: set[int] = field(default_factory=set)
    directories: set[int] = field(default_factory=set)
    names: set[bytes] = field(default_factory=set)
    sandbox: int = 0
    toys: list[int] = field(default_factory=list)
    """What lies in the sandbox from the start, and anybody may change:
    else strangers would first have to make it.
    """
    sticky: int = 0
    opened: int = 0
    """The file whose session strangers show."""

    async def make(self, root: Direct, owner: Direct) -> None:
        """Make the trees."""
        top = int(ROOT_INODE_ID)
        self.objects.add(top)
        self.directories.add(top)
        self.sandbox = await self._mkdir(root, top, b"sandbox", 0o777, is_guarded=False)
        await self._make_toys(root)
        self.sticky = await self._mkdir(root, top, b"sticky", 0o1777, is_guarded=False)
        private = await self._mkdir(root, top, b"private", 0o700)
        below = await self._mkdir(root, private, b"below", 0o755)
        secret = await self._file(root, private, b"secret", 0o600)
        await root(services.META_SET_XATTR, inode_id=secret, name=b"user.a", value=b"1")
        await root(services.META_LINK, inode_id=secret, parent_inode_id=below, name=b"again")
        await root(services.META_SYMLINK, parent_inode_id=below, name=b"up", target=b"../secret")
        await self._file(root, below, b"file", 0o640)
        public = await self._mkdir(root, top, b"public", 0o755)
        await self._file(root, public, b"readable", 0o644)
        fixed = await self._file(root, public, b"fixed", 0o666)
        await root(services.META_SET_ATTR, inode_id=fixed, iflags=IMMUTABLE)
        theirs = await self._file(owner, self.sticky, b"theirs", 0o600)
        await self._mkdir(owner, self.sticky, b"their directory", 0o755)
        self.opened = theirs
        await self._file(
            root, top, b"trashed", 0o600
        )  # makes the trash, which lies in a guarded directory
        self.objects.remove(
            (
                await root(services.META_MOVE_TO_TRASH, parent_inode_id=top, name=b"trashed")
            ).moved.inode_id
        )
        session = meta.FileSessionPb(session_id=SESSION, is_write=True)
        await owner(services.META_OPEN, inode_id=theirs, wants_write=True, session=session)

    async def _make_toys(self, root: Direct) -> None:
        place = {"parent_inode_id": self.sandbox}
        for name in (b"a", b"b"):
            made = await root(services.META_CREATE, name=name, mode=0o666, **place)
            inode_id = made.inode.inode_id
            await root(services.META_SET_XATTR, inode_id=inode_id, name=b"user.a", value=b"1")
            self.toys.append(inode_id)
        for name in (b"c", b"d"):
            made = await root(services.META_MKDIR, name=name, mode=0o777, **place)
            self.toys.append(made.inode.inode_id)

    async def _mkdir(
        self, who: Direct, parent: int, name: bytes, mode: int, *, is_guarded: bool = True
    ) -> int:
        reply = await who(services.META_MKDIR, parent_inode_id=parent, name=name, mode=mode)
        self.names.add(name)
        if is_guarded:
            self.objects.add(reply.inode.inode_id)
            self.directories.add(reply.inode.inode_id)
        return reply.inode.inode_id

    async def _file(self, who: Direct, parent: int, name: bytes, mode: int) -> int:
        reply = await who(services.META_CREATE, parent_inode_id=parent, name=name, mode=mode)
        self.names.add(name)
        self.objects.add(reply.inode.inode_id)
        await who(services.META_SET_ATTR, inode_id=reply.inode.inode_id, length=1000)
        return reply.inode.inode_id

    async def picture(self, root: Direct) -> dict[str, str]:
        """Return everything about them."""
        found = {}
        for inode_id in sorted(self.objects):
            inode = (await root(services.META_GET_ATTR, inode_id=inode_id)).inode
            if inode.mode & (0o005 if inode.type == pb.FILE else 0o004):
                inode.atime_ns = 0  # whoever may read or run it may report when he did
            if inode_id == self.opened:
                # No manager knows its client, so its session is ended after a minute or two.
                inode.file.data_ver = 0
                inode.file.ClearField("has_lost_writer")
            names = (await root(services.META_LIST_XATTRS, inode_id=inode_id)).names
            shown = " ".join(str(inode).split())
            found[f"inode {inode_id:#x}"] = f"{shown} xattrs {sorted(names)}"
        for inode_id in sorted(self.directories):
            listed = await root(services.META_LIST, inode_id=inode_id, entry_count_max=1000)
            entries = [(entry.name, entry.inode_id) for entry in listed.entries]
            found[f"entries of {inode_id:#x}"] = str(entries)
        for name in (b"theirs", b"their directory"):
            entry = await root(services.META_LOOKUP, parent_inode_id=self.sticky, name=name)
            found[f"sticky/{name.decode()}"] = hex(entry.inode.inode_id)
        return found


class Stranger:
    """Makes hostile calls."""

    def __init__(self, rng: random.Random, guarded: Guarded, callers: Sequence[tuple]) -> None:
        self._rng, self._guarded, self._callers = rng, guarded, callers
        self._guarded_ids = sorted(guarded.objects)
        self._names = sorted(guarded.names)
        self._learned = [guarded.sandbox, *guarded.toys]
        self._request_ids = [rng.randbytes(16) for _ in range(20)]
        self._atimes_ns: dict[int, int] = {}
        """By inode id, as told last: reads of inodes with other ones are not noted."""
        self._by_name: dict[str, Callable[[random.Random], object]] = {
            "name": self._name,
            "old_name": self._name,
            "new_name": self._name,
            "after": self._name,
            "expected_name": self._name,
            "path": self._path,
            "target": self._path,
            "directory": self._path,
            "old_directory": self._path,
            "new_directory": self._path,
            "client_id": lambda r: r.choice(("", "", "1" * 32, "x" * 65)),
            "mode": lambda r: r.choice(MODES),
            "length": lambda r: r.choice(LENGTHS),
            "session_id": self._session,
            "entry_count_max": lambda r: r.choice((0, 1, 5, 2**32 - 1)),
            "expire_s": lambda r: r.choice((0, 0, 1, 3600, 2**32 - 1)),
            "wants_read": lambda r: r.random() < 0.7,
            "is_write": lambda r: r.random() < 0.7,
            "truncate_ver": lambda r: r.choice((0, 0, 1, 2**64 - 1)),
            "uid": self._user,
            "gid": self._user,
        }

    def request(self, method: Method) -> Message:
        """Return a well-formed request."""
        rng = self._rng
        request = method.request_type()
        fill(rng, request, self._value, left_out=rng.choice((0.0, 0.2, 0.8)))
        self._spare(request)
        holder = request.sync if method is services.META_CLOSE else request
        if (
            method in {services.META_REMOVE_TREE, services.META_MOVE_TO_TRASH}
            and rng.random() < 0.8
        ):
            request.ClearField("inode_id")  # of what is removed; unset: whatever has the name
        # Only what owns a session may show it, and an open with its number would: it is the proof.
        if hasattr(holder, "session") and holder.session.session_id == SESSION:
            holder.session.session_id = rng.randbytes(16).hex()
        holder.ClearField("caller")
        if rng.random() < 0.98:
            uid, gid, groups = rng.choice(self._callers)
            holder.caller.uid, holder.caller.gid = uid, gid
            holder.caller.groups.extend(groups if rng.random() < 0.05 else groups[:10])
            holder.caller.client_id = (
                rng.choice(("", "\u1234", "c" * 65, "\0"))
                if rng.random() < 0.1
                else rng.choice(("1" * 32, "2" * 32))
            )
            holder.caller.token = rng.choice(("", "stolen", "\u1234" * 100))
            if rng.random() < 0.7:
                is_repeat = rng.random() < 0.2
                holder.caller.request_id = (
                    rng.choice(self._request_ids) if is_repeat else rng.randbytes(16)
                )
        return request

    def _spare(self, request: Message) -> None:
        """Take out most of what refuses nearly every request,
        and choose names that are attributes' for attributes.
        """
        for name in SELDOM:
            if name in request.DESCRIPTOR.fields_by_name and self._rng.random() < 0.8:
                request.ClearField(name)
        if isinstance(request, ATTRIBUTE_REQUESTS) and self._rng.random() < 0.8:
            request.name = self._rng.choice(XATTRS)
        if isinstance(request, meta.SyncReq) and request.HasField("inline_data"):
            self._agree(request)
        if isinstance(request, meta.NoteReadsReq):
            for read in request.reads:
                read.atime_seen_ns = self._atimes_ns.get(read.inode_id, read.atime_seen_ns)

    def _agree(self, report: meta.SyncReq) -> None:
        """Have inline data say one thing, mostly: what contradicts itself is refused at once."""
        if self._rng.random() < 0.9:
            report.inline_data = self._rng.randbytes(self._rng.choice((1, 100, 65_536, 65_537)))
            report.inline_checksum = xxh3_64_intdigest(report.inline_data)
            report.inline_data_ver = self._rng.choice((0, 0, 1, 2, 2**64 - 1))
            report.has_new_data, report.counts_space = True, False
            report.length_hint.length = len(report.inline_data)

    def learn(self, method: Method, answer: Answer) -> None:
        """Take ids out of a good reply, for later calls."""
        reply = method.reply_type.FromString(answer.message)
        if isinstance(reply, meta.InodeRsp):
            self._atimes_ns[reply.inode.inode_id] = reply.inode.atime_ns
        for inode_id in _inode_ids(reply):
            if inode_id not in self._guarded.objects and inode_id != self._guarded.sticky:
                self._learned.append(inode_id)
        if len(self._atimes_ns) > LEARNED_MAX:
            self._atimes_ns.clear()
        if len(self._learned) > LEARNED_MAX:
            kept = self._learned[-LEARNED_MAX // 2 :]
            self._learned = [self._guarded.sandbox, *self._guarded.toys, *kept]

    def _value(self, rng: random.Random, spec: FieldDescriptor) -> object:
        if "inode_id" in spec.name:
            return self._inode_id(rng)
        is_number_of_kind = spec.cpp_type == FieldDescriptor.CPPTYPE_ENUM
        make = None if is_number_of_kind else self._by_name.get(spec.name)
        value = value_of(rng, spec) if make is None else make(rng)
        if is_number_of_kind and rng.random() < 0.8:
            value = rng.choice(spec.enum_type.values).number
        if spec.type == FieldDescriptor.TYPE_STRING and isinstance(value, bytes):
            return value.decode("latin-1")
        if spec.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str):
            return value.encode()
        return value

    def _inode_id(self, rng: random.Random) -> int:
        kind = rng.random()
        if kind < 0.2:
            return rng.choice(self._guarded_ids)
        if kind < 0.6:
            return rng.choice(self._learned)
        if kind < 0.85:
            return rng.choice((self._guarded.sandbox, self._guarded.sandbox, self._guarded.sticky))
        return rng.choice(HOSTILE_IDS) if kind < 0.95 else rng.randrange(2**64)

    def _name(self, rng: random.Random) -> bytes:
        kind = rng.random()
        if kind < 0.5:
            return rng.choice(OWN_NAMES)
        if kind < 0.65:
            return rng.choice(self._names)
        if kind < 0.8:
            return rng.choice(XATTRS)
        return rng.choice(NAMES) if kind < 0.9 else bytes([rng.randrange(256)])

    def _path(self, rng: random.Random) -> bytes:
        parts = [self._name(rng) for _ in range(rng.randrange(1, 5))]
        start = rng.choice((b"", b"/", b"//", b"../", b"/sandbox/", b"/sandbox/"))
        return start + b"/".join(parts)

    def _session(self, rng: random.Random) -> str:
        return rng.choice(
            (SESSION, "1" * 32, "", "A" * 32, "\0" * 32, "x" * 500, rng.randbytes(16).hex())
        )

    def _user(self, rng: random.Random) -> int:
        return rng.choice((0, STRANGER, OWNER, 2**32 - 1))


def _inode_ids(message: Message) -> Iterator[int]:
    for spec, value in message.ListFields():
        if spec.message_type is not None:
            for inner in value if spec.is_repeated else [value]:
                yield from _inode_ids(inner)
        elif spec.name == "inode_id":
            yield value


@dataclass
class Report:
    """What came of it."""

    calls: int = 0
    honest: int = 0
    statuses: Counter = field(default_factory=Counter)
    done: Counter = field(default_factory=Counter)
    """Calls that succeeded, by method."""
    problems: list[str] = field(default_factory=list)
    growth: dict[str, Growth] = field(default_factory=dict)
    """By process."""
    took_s: float = 0.0

    def __str__(self) -> str:
        growth = "; ".join(f"{name} {grown}" for name, grown in self.growth.items())
        common = {Status(k).name: v for k, v in self.statuses.most_common(16)}
        return (
            f"{self.calls:,} calls in {self.took_s:.0f} s, {self.honest} honest calls served,"
            f" {len(self.problems)} problems; {len(self.done)} of {len(METHODS)} methods succeeded"
            f" {sum(self.done.values()):,} times; growth: {growth}; {common}"
        )


class Attack:
    """Strangers at every metadata service of a cluster."""

    def __init__(self, cluster: Running, seed: int) -> None:
        self.report = Report()
        self._cluster = cluster
        self._names = [name for name in cluster.pids if name.startswith("meta")]
        self._rng = random.Random(seed)
        self._guarded = Guarded()

    async def run(self, calls: int, root_calls: int) -> None:
        """Make the trees, attack, compare, let anybody do anything."""
        began_s = time.monotonic()
        async with self._peer(0) as one, self._peer(0) as two:
            root, owner = Direct(one, 0), Direct(two, OWNER, OWNERS_CLIENT)
            await self._guarded.make(root, owner)
            await self._send(calls // 20, STRANGERS)
            before = await self._guarded.picture(root)
            self._measure()
            await self._send(calls // 2, STRANGERS)
            self._measure()
            middle = self.report.calls
            await self._send(calls, STRANGERS)
            after = await self._guarded.picture(root)
        self.report.problems += [
            f"{key} changed: {before[key]} -> {after[key]}"
            for key in before
            if before[key] != after[key]
        ]
        await self._send(calls + root_calls, ANYBODY)
        self._measure()
        for grown in self.report.growth.values():
            grown.late_calls = self.report.calls - middle
        self.report.took_s = time.monotonic() - began_s

    def _peer(self, index: int):
        address = self._cluster.address(self._names[index % len(self._names)])
        return greeted(address, self._cluster.cluster_id)

    def _measure(self) -> None:
        for name in self._cluster.pids:
            self.report.growth.setdefault(name, Growth()).sizes.append(self._cluster.size(name))

    async def _send(self, calls: int, callers: Sequence[tuple]) -> None:
        async with trio.open_nursery() as nursery:
            for index in range(CONNECTIONS_AT_ONCE):
                rng = random.Random(self._rng.random())
                stranger = Stranger(rng, self._guarded, callers)
                nursery.start_soon(self._send_until, calls, index, stranger, rng)

    async def _send_until(
        self, calls: int, index: int, stranger: Stranger, rng: random.Random
    ) -> None:
        while self.report.calls < calls:
            methods = [rng.choice(METHODS) for _ in range(BATCH_COUNT)]
            frames = [
                request_frame(
                    method, i, stranger.request(method).SerializeToString(), timeout_ms=TIMEOUT_MS
                )
                for i, method in enumerate(methods)
            ]
            self.report.calls += len(frames)
            try:
                async with self._peer(index) as peer:
                    answers = await peer.exchange(b"".join(frames), range(BATCH_COUNT))
            except SilenceError as error:
                self.report.problems.append(str(error))
                continue
            if len(answers) < BATCH_COUNT:
                self.report.problems.append(f"closed without cause: {answers[-1:]}")
            for answer in answers:
                self._count(methods[answer.request_id], answer, stranger)
            name = self._names[index % len(self._names)]
            await honest_call(self._cluster.address(name), self._cluster.cluster_id)
            self.report.honest += 1

    def _count(self, method: Method, answer: Answer, stranger: Stranger) -> None:
        report = self.report
        report.statuses[answer.status] += 1
        if answer.status in {Status.INTERNAL_ERROR, Status.RPC_TIMEOUT}:
            detail = answer.message.decode(errors="replace")
            report.problems.append(f"{method}: {Status(answer.status).name} {detail}")
        elif not answer.status:
            report.done[str(method)] += 1
            stranger.learn(method, answer)


async def contradictions(path: Path, cluster_id: str) -> list[str]:
    """Return what is wrong with the namespace in a store that nobody has open."""
    engine = await RocksDbEngine.open(
        str(path), KvSection(), real_runtime(SocketNetwork()), cluster_id=cluster_id
    )
    try:
        return await check(engine)
    finally:
        await engine.aclose()


def fuzz_meta(folder: Path, *, calls: int, root_calls: int, seed: int) -> Report:
    """Start a cluster, attack its metadata services, stop it, check the namespace."""
    with running_cluster(folder / "c") as cluster:
        attack = Attack(cluster, seed)
        trio.run(attack.run, calls, root_calls)
    report = attack.report
    (store,) = [found.parent for found in (folder / "c" / "data").rglob("CURRENT")
                if "storage" not in str(found)]  # fmt: skip
    found = trio.run(contradictions, store, cluster.cluster_id)
    report.problems += [f"namespace: {text}" for text in found]
    return report


def failures(report: Report) -> list[str]:
    """Say what breaks the demand."""
    found = list(report.problems)
    for name, grown in report.growth.items():
        if not name.startswith("kv"):  # keeps what it is given
            found += [f"{name}: {text}" for text in grown.failures()]
    return found


def untried(report: Report) -> list[str]:
    """Return the methods that never succeeded, so that little can be said of them."""
    return [str(method) for method in METHODS if str(method) not in report.done]


def main() -> int:
    """Return 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.meta.fuzz")
    parser.add_argument("--calls", type=int, default=5000, help="of strangers")
    parser.add_argument("--root-calls", type=int, default=1000, help="of anybody, afterwards")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = fuzz_meta(
            Path(folder), calls=given.calls, root_calls=given.root_calls, seed=given.seed
        )
    print(report)
    found = failures(report)
    print("\n".join(found[:20]) or "nothing changed, nothing broke")
    if missed := untried(report):
        print(f"never succeeded: {', '.join(missed)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
