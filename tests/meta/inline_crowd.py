"""Clients that keep small files inline or in chunks, whose requests come late, twice or never,
at services that die in the middle of a move.

    python -m tests.meta.inline_crowd [--runs N] [--seed S]

Each file is changed by one client at a time, as if under a lock, and read by all: by some that know
of inline files, and by some that do not.  Whatever was acknowledged is what everybody reads from
then on: never zeros, never bytes of before, never those of a move that comes late.  A client that
is given no answer goes on as a mount does: it ends late reports before it writes a chunk, and asks
what has become of the last one.

The one exception: while a client waits to be told that its bytes are inline, another one may change
the file, too.  Who of both was first is seen by what that one finds there; if it finds the bytes,
they were taken, and never come back.
"""

import argparse
import random
import sys
from collections.abc import Awaitable, Callable

import trio
from xxhash import xxh3_64_intdigest

from fs.kv.faulty import RandomFaults
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock
from fs.schema.proto import meta_pb2 as meta
from tests.meta.harness import ROOT, World, hint, inline_report, session
from tests.meta.late_calls import LATE_S_MAX, PATIENCE_S, LateCalls
from tests.sim.determinism import run_deterministic

LENGTH_MAX = 64
"""Of what is sent inline; a fifth of all contents is longer."""
FILE_COUNT = 3
CLIENT_COUNT = 2
CHANGE_COUNT = 15
"""Of each client."""
INTRUDER = "b" * 32
INTRUSION_SHARE = 0.4
"""Of all that is sent inline."""


class ByteChunks:
    """Chunk 0 of each file, behind a head that remembers which truncations are over;
    requests take their time on the way.
    """

    def __init__(self, source: random.Random) -> None:
        self.data: dict[int, bytes] = {}
        self.fill_count = self.late_count = 0
        self._finished: dict[int, int] = {}
        self._random = source

    async def _way(self) -> None:
        await trio.sleep(self._random.random() ** 4 * LATE_S_MAX)

    def _is_late(self, inode_id: int, truncate_ver: int) -> bool:
        is_late = truncate_ver <= self._finished.get(inode_id, 0)
        self.late_count += is_late
        return is_late

    async def remove_files(self, files) -> None:
        await self._way()
        for file in files:
            self.data.pop(file.inode_id, None)

    async def truncate_file(
        self, file, length: int, truncate_ver: int, is_wanted: Callable[[], Awaitable[bool]]
    ) -> None:
        if not await is_wanted():
            return
        await self._way()
        if not self._is_late(file.inode_id, truncate_ver):
            self.data[file.inode_id] = self.data.get(file.inode_id, b"")[:length]
            self._finished[file.inode_id] = truncate_ver
        await self._way()

    async def fill_file(
        self, file, data: bytes, truncate_ver: int, is_wanted: Callable[[], Awaitable[bool]]
    ) -> None:
        if not await is_wanted():
            return
        await self._way()
        if not self._is_late(file.inode_id, truncate_ver):
            self.fill_count += 1
            self.data[file.inode_id] = bytes(data)
            self._finished[file.inode_id] = truncate_ver
        await self._way()

    async def write(self, inode_id: int, offset: int, data: bytes, finished_cut: int) -> None:
        """As a client does, that knows which truncation is over."""
        self._finished[inode_id] = max(self._finished.get(inode_id, 0), finished_cut)
        before = self.data.get(inode_id, b"").ljust(offset, b"\0")
        self.data[inode_id] = before[:offset] + data + before[offset + len(data) :]
        await trio.lowlevel.checkpoint()

    async def file_length(self, file) -> tuple[int, int]:
        length = len(self.data.get(file.inode_id, b""))
        return length, length

    async def space(self) -> tuple[int, int]:
        return 1000, 400


class Shared:
    """A file, what is in it, and who may change it."""

    def __init__(self, inode_id: int) -> None:
        self.inode_id = inode_id
        self.content = b""
        self.turn = trio.Lock()
        self.change_count = 0
        """Odd while somebody changes it."""


class Intrusion:
    """A change by another client beside one that sends its bytes inline."""

    def __init__(self, sent: bytes) -> None:
        self.sent = sent
        self.found: bytes | None = None
        self.content = b""
        """What is in the file afterwards."""

    @property
    def has_seen(self) -> bool:
        return self.found == self.sent


class Crowd:
    """The clients, the services and the files."""

    def __init__(self, world: World, source: random.Random, nursery: trio.Nursery) -> None:
        self.world, self.random = world, source
        self.chunks = world.chunks = ByteChunks(source)
        self.call = LateCalls(world, source, nursery).call
        self.files: list[Shared] = []
        self.inline_count = self.refused_count = self.read_count = 0
        self.doubt_count = self.intrusion_count = 0
        """Reports that were given up; changes by others of what was taken
        before its writer knew.
        """
        self._session_count = 0

    # ---- what clients do -----------------------------------------------------------------------

    async def attr(self, client: str, file: Shared):
        reply = await self.call(client, "get_attr", meta.GetAttrReq(inode_id=file.inode_id))
        return reply.inode.file

    async def work(self, number: int) -> None:
        client = f"{number:032x}"
        for _ in range(CHANGE_COUNT):
            file = self.random.choice(self.files)
            if self.random.random() < 0.5:
                await self.read(client, file)
                continue
            async with file.turn:
                file.change_count += 1
                await self._change(client, file)
                file.change_count += 1
            await self.read(client, file)

    async def _change(self, client: str, file: Shared) -> None:
        draw = self.random
        others = [self.truncate, self.append, self.empty]
        self._session_count += 1
        number = self._session_count
        opened = await self.call(
            client,
            "open",
            meta.OpenReq(
                inode_id=file.inode_id,
                wants_write=True,
                session=session(number),
                takes_inline=draw.random() < 0.8,
            ),
        )
        idle = session(number + 1_000_000) if draw.random() < 0.2 else None
        if idle is not None:  # somebody else could write: nothing is made inline
            beside = meta.OpenReq(
                inode_id=file.inode_id, wants_write=True, session=idle, takes_inline=True
            )
            await self.call("f" * 32, "open", beside)
        if draw.random() < 0.7:
            await self.empty(client, file, 0)
        for _ in range(draw.choice([1, 2, 4])):
            change = self.overwrite if draw.random() < 0.8 else draw.choice(others)
            await change(client, file, opened.inline_bytes_max)
        if idle is not None:
            await self._close("f" * 32, file, idle)
        await trio.sleep(draw.random() * LATE_S_MAX)
        await self._judge(file)
        await self._close(client, file, session(number))

    async def _close(self, client: str, file: Shared, ended: meta.FileSessionPb) -> None:
        closing = meta.CloseReq(
            sync=meta.SyncReq(inode_id=file.inode_id), session_id=ended.session_id
        )
        await self.call(client, "close", closing)

    def _new_content(self) -> bytes:
        draw = self.random
        length = draw.randrange(1, LENGTH_MAX + LENGTH_MAX // 4)
        return bytes(draw.randrange(1, 256) for _ in range(length))

    async def overwrite(self, client: str, file: Shared, inline_bytes_max: int) -> None:
        """Overwrite from the start, without a truncation: of a longer file the rest stays."""
        data = self._new_content()
        whole = data + file.content[len(data) :]
        part = await self.attr(client, file)
        may_be = part.is_inline or not part.length
        if not (may_be and len(whole) <= inline_bytes_max):
            await self.write(client, file, 0, data)
            return
        report = inline_report(whole, part.data_ver, part.truncate_ver)
        request = meta.SyncReq(inode_id=file.inode_id, **report)
        is_taken: bool | None = None
        intrusion = Intrusion(whole)
        async with trio.open_nursery() as nursery:
            if whole != file.content and self.random.random() < INTRUSION_SHARE:
                nursery.start_soon(self.intrude, file, intrusion)
            with trio.move_on_after(self.random.choice([2 * PATIENCE_S, float("inf")])):
                is_taken = await self._send(client, request)
        if is_taken is not None:
            self._settle(file, intrusion, is_taken=is_taken)
            if not is_taken:
                await self.write(client, file, 0, whole)
            return
        # It may have been taken, or be taken now, when something else is to be there.
        report_id = request.caller.request_id
        is_taken = await self._end(client, file, report_id)
        self._settle(file, intrusion, is_taken=is_taken)
        self.doubt_count += 1
        await self.write(client, file, 0, bytes(byte ^ 1 for byte in whole))

    async def _end(self, client: str, file: Shared, report_id: bytes) -> bool:
        """Have a report refused from now on; return whether it was taken before."""
        asked = meta.ExtendStripeReq(
            inode_id=file.inode_id, dyn_stripe_min=1, ends_inline=True, report_id=report_id
        )
        outcome = (await self.call(client, "extend_stripe", asked)).inline_outcome
        assert outcome in {meta.INLINE_TAKEN, meta.INLINE_NOT_TAKEN}
        return outcome == meta.INLINE_TAKEN

    def _settle(self, file: Shared, intrusion: Intrusion, *, is_taken: bool) -> None:
        """Take in what is in the file, by what its writer was told and another client has seen."""
        if intrusion.found is not None:
            assert intrusion.has_seen is is_taken, (intrusion.found, intrusion.sent, is_taken)
            self.intrusion_count += is_taken
            file.content = intrusion.content
        elif is_taken:
            file.content = intrusion.sent

    async def intrude(self, file: Shared, intrusion: Intrusion) -> None:
        """Open the file, see what is there, and change it."""
        draw = self.random
        await trio.sleep(draw.random() ** 2 * LATE_S_MAX)
        self._session_count += 1
        mine = session(self._session_count)
        opened = meta.OpenReq(
            inode_id=file.inode_id,
            wants_read=True,
            wants_write=True,
            takes_inline=True,
            session=mine,
        )
        reply = await self.call(INTRUDER, "open", opened)
        found = intrusion.found = await self._bytes(INTRUDER, file, reply)
        data = b"" if draw.random() < 0.3 else self._new_content()
        if data:
            asked = meta.ExtendStripeReq(inode_id=file.inode_id, dyn_stripe_min=1)
            part = (await self.call(INTRUDER, "extend_stripe", asked)).inode.file
            await self._write_chunk(INTRUDER, file, 0, data, part)
            intrusion.content = data + found[len(data) :]
        else:
            request = meta.SetAttrReq(inode_id=file.inode_id, length=0)
            await self.call(INTRUDER, "set_attr", request)
        await self._close(INTRUDER, file, mine)

    async def _send(self, client: str, request: meta.SyncReq) -> bool:
        reply = await self.call(client, "sync", request)
        if reply.is_inline_refused:
            self.refused_count += 1
            return False
        part = reply.inode.file
        # To a repeat meta tells what the file is by now: others may have had the
        # bytes moved, and changed them.
        is_moved = part.truncate_ver > request.length_hint.truncate_ver
        assert is_moved or (part.is_inline and part.length == len(request.inline_data))
        self.inline_count += 1
        return True

    async def write(self, client: str, file: Shared, offset: int, data: bytes) -> None:
        """Write to the chunk and report it."""
        part = await self.attr(client, file)
        if not part.dyn_stripe or part.truncate_pending:
            asked = meta.ExtendStripeReq(inode_id=file.inode_id, dyn_stripe_min=1)
            part = (await self.call(client, "extend_stripe", asked)).inode.file
        await self._write_chunk(client, file, offset, data, part)
        before = file.content
        file.content = before[:offset].ljust(offset, b"\0") + data + before[offset + len(data) :]

    async def _write_chunk(self, client, file: Shared, offset: int, data: bytes, part) -> None:
        assert part.dyn_stripe and not part.is_inline and not part.truncate_pending
        await self.chunks.write(file.inode_id, offset, data, part.truncate_ver)
        report = meta.SyncReq(
            inode_id=file.inode_id,
            has_new_data=True,
            length_hint=hint(offset + len(data), part.truncate_ver),
        )
        await self.call(client, "sync", report)

    async def append(self, client: str, file: Shared, _inline_bytes_max: int) -> None:
        data = self._new_content()[:8]
        request = meta.ReserveAppendReq(inode_id=file.inode_id, length=len(data))
        reply = await self.call(client, "reserve_append", request)
        assert reply.offset == len(file.content)
        part = reply.inode.file
        await self.chunks.write(file.inode_id, reply.offset, data, part.truncate_ver)
        file.content += data

    async def truncate(self, client: str, file: Shared, _inline_bytes_max: int) -> None:
        await self._set_length(client, file, self.random.randrange(LENGTH_MAX + 10))

    async def empty(self, client: str, file: Shared, _inline_bytes_max: int) -> None:
        await self._set_length(client, file, 0)

    async def _set_length(self, client: str, file: Shared, length: int) -> None:
        request = meta.SetAttrReq(inode_id=file.inode_id, length=length)
        reply = await self.call(client, "set_attr", request)
        assert reply.inode.file.length == length
        file.content = file.content[:length].ljust(length, b"\0")

    async def _judge(self, file: Shared) -> None:
        """Look at what is there while the file is still open:
        a late report finds a session that lets it in.
        """
        asked = meta.GetAttrReq(inode_id=file.inode_id, takes_inline=True)
        found = await self._bytes("e" * 32, file, await self.call("e" * 32, "get_attr", asked))
        assert found == file.content, (found, file.content)

    async def read(self, client: str, file: Shared) -> None:
        """Read all of it, in one of the ways there are;
        what somebody changes meanwhile is not judged.
        """
        draw = self.random
        before = file.change_count
        takes_inline = draw.random() < 0.7
        wanted = {"takes_inline": takes_inline}
        if draw.random() < 0.5:
            request = meta.OpenReq(inode_id=file.inode_id, wants_read=True, **wanted)
            reply = await self.call(client, "open", request)
        else:
            path = b"/%d" % self.files.index(file)
            request = meta.ResolvePathReq(path=path, wants_read=True, **wanted)
            reply = await self.call(client, "resolve_path", request)
        part = reply.inode.file
        assert takes_inline or not part.is_inline
        found = await self._bytes(client, file, reply)
        if found is not None and before == file.change_count and not before % 2:
            self.read_count += 1
            assert found == file.content, (part, found, file.content)

    async def _bytes(self, client: str, file: Shared, reply) -> bytes | None:
        """Return what a reader gets; None: it would have to ask again."""
        part = reply.inode.file
        if part.is_inline:
            assert xxh3_64_intdigest(reply.inline_data) == reply.inline_checksum
            assert len(reply.inline_data) == part.length > 0
            if self.random.random() < 0.3:  # as one whose bytes have become old
                await trio.sleep(self.random.random() * LATE_S_MAX)
                asked = meta.GetAttrReq(inode_id=file.inode_id, takes_inline=True)
                return await self._bytes(client, file, await self.call(client, "get_attr", asked))
            return reply.inline_data
        stored = self.chunks.data.get(file.inode_id, b"") if part.dyn_stripe else b""
        return stored[: part.length].ljust(part.length, b"\0")

    # ---- all of it -----------------------------------------------------------------------------

    async def run(self) -> None:
        for number in range(FILE_COUNT):
            request = meta.CreateReq(parent_inode_id=ROOT, name=b"%d" % number, mode=0o666)
            made = await self.call("e" * 32, "create", request)
            self.files.append(Shared(made.inode.inode_id))
        async with trio.open_nursery() as nursery:
            for number in range(CLIENT_COUNT):
                nursery.start_soon(self.work, number)
        await trio.sleep(20 * LATE_S_MAX)  # everything that was late has arrived
        for file in self.files:
            for _ in range(4):
                await self.read("e" * 32, file)

    async def check(self) -> None:
        """Records agree, and no chunk is left of an inline file."""
        assert await check(self.world.engine) == []
        dump = await self.world.dump()
        for file in self.files:
            if records.inline_key(file.inode_id) in dump:
                assert not self.chunks.data.get(file.inode_id), "chunks of an inline file"


async def run_seed(seed: int) -> Crowd:
    source = random.Random(seed)
    world = World(MemoryEngine(SimulatedClock()), inline_bytes_max=LENGTH_MAX)
    await world.initialise()
    world.engine.faults = RandomFaults(
        random.Random(seed), conflict=0.05, unknown_committed=0.05, unknown_lost=0.05,
        delay_before_s_max=0.05, delay_after_s_max=0.05,
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        crowd = Crowd(world, source, nursery)
        await crowd.run()
    world.engine.faults = None
    await crowd.check()
    return crowd


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.meta.inline_crowd")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failed = 0
    for seed in range(given.seed, given.seed + given.runs):
        try:
            crowd = run_deterministic(lambda seed=seed: run_seed(seed), seed)
        except BaseExceptionGroup as group:
            failed += 1
            error = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            print(f"seed {seed}: {type(error).__name__} {error}", flush=True)
            if given.runs == 1:
                raise
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
        else:
            figures = (
                crowd.inline_count,
                crowd.refused_count,
                crowd.read_count,
                crowd.doubt_count,
                crowd.intrusion_count,
            )
            print(seed, *figures, crowd.chunks.fill_count, crowd.chunks.late_count)
    print(f"{given.runs} runs, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
