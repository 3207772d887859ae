"""What clients do by path to one small tree, all at once:
names that others move, replace and remove meanwhile.

A file's content is written before its name is put there, so whoever opens the name reads all of it;
of what was removed or replaced meanwhile a reader without a session may be told STALE, and is never
given anything else.  Look-ups and opens are often begun, as a mount does it.

A loss of all power begins another tree: what was under way has no answer.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from fs.client.inline_bytes import brought_bytes
from fs.client.native import EmberFile, EmberFs
from fs.schema import services
from fs.schema.inode import inode_from_pb
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Retry, Status

from .linearizable import FOREVER
from .namespace_model import NameOp, explained

WORKERS_PER_CLIENT: Final = 2
PAUSE: Final = 1.5
"""Mean pause between two operations, in those of a client's other work."""
CONTENT_BYTES: Final = 1500
BEGUN_SHARE: Final = 0.5
MAY_FAIL: Final = {Status.NO_SPACE, Status.WRITES_LOST}
"""What writing a file may end with."""
KINDS: Final = {
    "make": 3,
    "put": 4,
    "mkdir": 6,
    "unlink": 3,
    "rmdir": 1,
    "rename": 6,
    "exchange": 1,
    "no_replace": 2,
    "read": 8,
}
DEPTHS: Final = {"mkdir": [8, 3, 1], "rmdir": [8, 3, 1], "rename": [5, 5, 1]}
"""Weights of paths of one, two and three names, where they are not mostly of two."""


def draw_path(source: random.Random, kind: str) -> str:
    """Return a path for an operation: files mostly lie in directories,
    and these mostly in the tree itself.
    """
    weights = DEPTHS.get(kind, [1, 10, 2])
    (depth,) = source.choices([1, 2, 3], weights=weights)
    return "/".join([source.choice("ab"), *source.choices("xy", k=depth - 1)])


def content_of(value: int) -> bytes:
    """Return the content of a file: recognisable and of one piece; 0 is an empty file."""
    return (b"%015d|" % value) * (CONTENT_BYTES // 16) if value else b""


def value_of(content: bytes) -> int:
    """Inverse of `content_of`; anything else is an error."""
    value = int(content[:15]) if content else 0
    assert content == content_of(value), f"a file of {len(content)} bytes: {content[:64]!r}..."
    return value


@dataclass
class NameHistory:
    """What all clients did to names, and saw."""

    ops: list[list[NameOp]] = field(default_factory=lambda: [[]])
    """By tree."""
    value_next: int = 0
    gone_count: int = 0
    """Readers that were told that the file is gone."""
    begun_count: int = 0

    @property
    def op_count(self) -> int:
        """Operations in all histories."""
        return sum(map(len, self.ops))

    def note_cut(self, now_s: float) -> None:
        """All power is lost: nobody knows what became of what is under way."""
        for op in self.ops[-1]:
            if op.end_s >= now_s:
                op.end_s, op.answer = FOREVER, None
        self.ops.append([])

    def check(self) -> None:
        """Raise AssertionError unless every tree's answers have an order that explains them."""
        for number, ops in enumerate(self.ops):
            assert explained(ops), f"names of tree {number} have no order: {_told(ops)}"


def _told(ops: list[NameOp]) -> str:
    return "\n".join(
        f"[{op.begin_s:.4f}, {op.end_s:.4f}] {op.who} {op.kind} {op.path} {op.new_path} "
        f"{op.value}: {op.answer!r}"
        for op in ops
    )


class NameWorker:
    """One task of a client that changes names."""

    def __init__(self, name: str, history: NameHistory, *, seed: int, think_s: float) -> None:
        self.name = name
        self.history = history
        self.random = random.Random(f"{seed}/names-{name}")
        self.pause_s = PAUSE * think_s
        self.tree = -1
        self._stage_count = 0

    async def run(self, fs: EmberFs, until_s: float) -> None:
        """Change names until the virtual time `until_s`."""
        while trio.current_time() < until_s:
            await trio.sleep(self.random.expovariate(1.0 / self.pause_s))
            await self._begin_tree(fs)
            await self._one(fs)

    async def _begin_tree(self, fs: EmberFs) -> None:
        while self.tree != (newest := len(self.history.ops) - 1):
            await fs.mkdir(f"/names-{newest}", exist_ok=True)
            self.tree = newest

    async def _one(self, fs: EmberFs) -> None:
        (kind,) = self.random.choices([*KINDS], weights=[*KINDS.values()])
        tree, ops = self.tree, self.history.ops[self.tree]
        root, path, new_path, value, stage = (
            f"/names-{tree}",
            draw_path(self.random, kind),
            "",
            0,
            "",
        )
        if kind in {"rename", "exchange", "no_replace"}:
            new_path = draw_path(self.random, kind)
        if kind == "put":
            self.history.value_next += 1
            self._stage_count += 1
            value, stage = self.history.value_next, f"/stage-{self.name}-{self._stage_count}"
            try:
                await fs.write_file(stage, content_of(value))
            except FsError as error:  # nothing is there to be put
                if tree == len(self.history.ops) - 1 and error.status not in MAY_FAIL:
                    raise
                return
        op = NameOp(kind, path, trio.current_time(), self.name, new_path=new_path, value=value)
        if len(self.history.ops) - 1 != tree:
            return
        ops.append(op)
        answer: int | Status | None
        try:
            answer = await self._do(fs, op, root, stage)
        except FsError as error:
            answer = error.status if error.definite else None
        if op.kind == "read" and answer is Status.STALE:
            self.history.gone_count += 1
            ops.remove(op)
        elif len(self.history.ops) - 1 == tree and answer is not None:
            op.end_s, op.answer = trio.current_time(), answer

    async def _do(self, fs: EmberFs, op: NameOp, root: str, stage: str) -> int:
        path, new_path = f"{root}/{op.path}", f"{root}/{op.new_path}"
        if op.kind == "read":
            return await self._read(fs, path)
        if op.kind == "make":
            await (await fs.create(path, exclusive=True)).close()
        elif op.kind == "put":
            await fs.rename(stage, path)
        elif op.kind == "mkdir":
            await fs.mkdir(path)
        elif op.kind == "unlink":
            await fs.unlink(path)
        elif op.kind == "rmdir":
            await fs.rmdir(path)
        else:
            await fs.rename(
                path,
                new_path,
                exchange=op.kind == "exchange",
                no_replace=op.kind == "no_replace",
            )
        return 0

    async def _read(self, fs: EmberFs, path: str) -> int:
        file = await self._open(fs, path)
        if self.random.random() < 0.3:  # it may be removed meanwhile
            await trio.sleep(self.random.uniform(0.0, 6.0))
        async with file:
            return value_of(await file.read(0, file.length))

    async def _open(self, fs: EmberFs, path: str) -> EmberFile:
        if self.random.random() < BEGUN_SHARE:
            asked_s = trio.current_time()
            reply = await self._begun(fs, path)
            if reply is not None:
                inode = inode_from_pb(reply.inode)
                return fs._read_only(inode, path, brought_bytes(reply), asked_s)
        return await fs.open(path)

    async def _begun(self, fs: EmberFs, path: str) -> meta_pb2.InodeRsp | None:
        """Find what a path names by a call that is begun;
        None: it was not, or another try may do it.

        Some are as of an earlier release, for which inline bytes are moved to a
        chunk first, if there is room.
        """
        ended, found = trio.Event(), list[Any]()
        request = meta_pb2.ResolvePathReq(
            caller=fs._identity.caller(),
            path=path.encode(),
            follow_last=True,
            wants_read=True,
            takes_inline=self.random.random() < 0.7,
        )

        def end(reply: meta_pb2.InodeRsp | None, error: FsError | None) -> None:
            found.append((reply, error))
            ended.set()

        call = fs._meta.begin(services.META_RESOLVE_PATH, request, end)  # type: ignore[attr-defined]
        if call is None:
            return None
        self.history.begun_count += 1
        if self.random.random() < 0.1:
            await trio.sleep(self.random.uniform(0.0, 0.02))
            call.fail(FsError(Status.RPC_TIMEOUT, "given up"))
        await ended.wait()
        assert len(found) == 1, found
        ((reply, error),) = found
        if not request.takes_inline and error is not None and error.status is Status.NO_SPACE:
            return None
        if error is not None and error.retry is Retry.NEVER:
            raise error
        return reply if error is None else None
