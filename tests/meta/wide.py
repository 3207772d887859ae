"""Random deeds of two clients and three users on everything that a namespace has,
against the model: same answers, same tree, same records.

python -m tests.meta.wide --runs 200 --seed 1000        # by hand; each run is a seed of its own
"""

import argparse
import random
import sys
import traceback

import trio

from fs.kv.faulty import RandomFaults
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.meta.check import check, read_all
from fs.runtime.simulated import SimulatedClock
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import DentryRecordPb, FileLocksRecordPb
from tests.meta.deeds import Deed
from tests.meta.harness import World, inline_report, session
from tests.meta.model import SUPERUSER
from tests.meta.wide_deeds import (
    ONE,
    OTHER,
    PEOPLE,
    WIDE_KINDS,
    WideChooser,
    WideExpectation,
    ask,
    lock_from_pb,
)
from tests.meta.wide_model import WideModel, held
from tests.sim.determinism import run_deterministic

CONFIG = {"gc_delay_s": 1.0, "inline_bytes_max": 100}
EVENTS = ["collect", "clean", "die", *["write_inline"] * 6]
EVENT_SHARE = 0.12
WRITER = "a" * 32
"""The client that sends all bytes of files with its reports."""


class Company:
    """The model and a service, and those who act on both."""

    def __init__(self, world, source, kinds=WIDE_KINDS):
        self.world = world
        self.source = source
        self.model = WideModel()
        self.chooser = WideChooser(source, kinds)
        self.inline_count = 0

    async def both(self, deed):
        """Do it on both sides; the answers must agree."""
        who = deed.who
        expected = WideExpectation(self.model, deed)
        answer = await ask(self.world.user(who.uid, who.gid, tuple(who.groups), who.client), deed)
        assert expected.agrees(answer), (str(deed), answer, expected.answer)
        self.chooser.learn(deed, answer)

    async def run(self, count):
        for number in range(count):
            if self.source.random() < EVENT_SHARE:
                await getattr(self, self.source.choice(EVENTS))()
            deed = self.chooser.deed(self.source.choice(PEOPLE))
            await self.both(deed)
            if deed.kind == "remove_tree" or (deed.kind == "trash" and self._is_tree_gone()):
                # Names inside count as links until the tree has been emptied.
                await self.collect()
            for directory in self.model.directories():
                await self.both(Deed("list", SUPERUSER, (directory.ident,)))
            if number % 5 == 0:
                await self.compare()
        await self.compare()

    def _is_tree_gone(self):
        return any(getattr(node, "is_in_removed_tree", False) for node in self.model.nodes.values())

    async def collect(self):
        """Let garbage collection do all there is to do."""
        for _ in range(3):
            await trio.sleep(12)
            while await self.world.meta.gc.step():
                pass
        self.model.collect()

    async def clean(self):
        """Let the trash be cleaned."""
        await trio.sleep(2)
        while await self.world.meta.trash.step():
            pass
        self.model.clean()
        await self.collect()

    async def die(self):
        """One of the clients is gone for longer than the grace; another one of its name comes."""
        self.world.mgmtd.client_ids = [ONE]
        await trio.sleep(150)
        await self.world.meta.sessions.step()
        self.model.end_client(OTHER)

    async def write_inline(self):
        """Somebody opens a file, sends all that is to be in it, and closes it:
        taken if nothing is in chunks and nobody else writes.
        """
        files = [node for node in self.model.nodes.values() if node.kind == "file"]
        if not files:
            return
        node, length = self.source.choice(files), self.source.choice([1, 7, 50, 100])
        writer, one = self.world.user(client=WRITER), session(10**6)
        fields = {"wants_write": True, "takes_inline": True, "session": one}
        part = (await writer.open(node.ident, **fields)).file
        sent = inline_report(bytes(length), part.data_ver, part.truncate_ver)
        request = meta.SyncReq(inode_id=node.ident, **sent)
        reply = await writer.call("sync", request)
        await writer.close(node.ident, one.session_id)
        others = any(writes for _, writes in held(node, "sessions").values())
        may_be = (part.is_inline or not part.length) and not (others or part.has_lost_writer)
        if reply.is_inline_refused:
            assert not may_be or self.is_over_quota(node, length), node.ident
            return
        assert may_be and not self.is_over_quota(node, length), node.ident
        node.length = length
        self.inline_count += 1

    @staticmethod
    def is_over_quota(_node, _length):
        """Whether a limit forbids that a file has this length."""
        return False

    async def compare(self):
        """Everything that no list of a directory shows, and what has no name any more."""
        for ident in list(self.model.nodes):
            await self.both(Deed("attr", SUPERUSER, (ident,)))
        nodes = self.model.nodes.items()
        found = {key[4:] for key, _ in await read_all(self.world.engine, records.FILE_SESSION)}
        assert found == {
            records.file_session_key(i, f"{n:032x}")[4:]
            for i, node in nodes
            for n in held(node, "sessions")
        }
        found = dict(await read_all(self.world.engine, records.XATTR))
        assert found == {
            records.xattr_key(i, name): value
            for i, node in nodes
            for name, value in held(node, "xattrs").items()
        }
        await self._compare_locks()
        await self._compare_marks()
        found = await check(self.world.engine)
        assert found == [], found

    async def _compare_locks(self):
        found = {}
        for key, value in await read_all(self.world.engine, records.FILE_LOCKS):
            ident = records.unpack_id(key[4:12])
            locks = FileLocksRecordPb.FromString(value).locks
            found[ident] = sorted(map(lock_from_pb, locks))
        nodes = self.model.nodes.items()
        assert found == {i: runs for i, node in nodes if (runs := self.model.runs(node))}

    async def _compare_marks(self):
        found = {}
        for key, value in await read_all(self.world.engine, records.DENTRY):
            mark = DentryRecordPb.FromString(value)
            if mark.HasField("trash"):
                place = int.from_bytes(key[4:12], "big"), records.dentry_name(key)
                found[place] = (mark.trash.parent_inode_id, mark.trash.name, mark.trash.uid)
        assert found == {place: mark[:3] for place, mark in self.model.marks.items()}


async def run_seed(seed, count, company=Company):
    """One company on the store in memory, with conflicts and unknown outcomes."""
    world = World(MemoryEngine(SimulatedClock()), **CONFIG)
    await world.initialise()
    world.engine.faults = RandomFaults(
        random.Random(seed), conflict=0.05, unknown_committed=0.05, unknown_lost=0.05
    )
    made = company(world, random.Random(seed))
    await made.run(count)
    return made.inline_count


def main(program="python -m tests.meta.wide", company=Company):
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--deeds", type=int, default=200, help="of each run")
    given = parser.parse_args()
    failure_count = inline_count = 0
    for seed in range(given.seed, given.seed + given.runs):
        try:
            inline_count += run_deterministic(
                lambda seed=seed: run_seed(seed, given.deeds, company), seed
            )
        except AssertionError as error:
            failure_count += 1
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"seed {seed}: {place.name}: {place.line}: {error}", flush=True)
    print(
        f"{given.runs} runs of {given.deeds} deeds, {inline_count} times bytes came with a "
        f"report, {failure_count} differ"
    )
    return int(failure_count > 0)


if __name__ == "__main__":
    sys.exit(main())
