"""How each fault is made on a running cluster, and ended.

Which one, and when, plan.py has drawn.
"""

import random
import shutil
import signal
import time
from contextlib import suppress

from fs.schema.routing import PublicState
from fs.schema.status import Status

from .direct import read_target
from .disk import MIB, StoredChunk, flip, stored_chunks
from .fleet import Fleet
from .plan import Fault

OUT_TIMEOUT_S = 30.0
"""A disk that only gives errors must have left its chains by then."""
REPAIR_TIMEOUT_S = 100.0
ERROR_GRACE_S = 40.0
"""A full disk may be reported this long after it has space again:
buffers are told later, by fsync or close.
"""
SLOW_BYTES_PER_S = MIB
RESET_S = 0.3
HEALED_TIMEOUT_S = 40.0
"""A disk that was given up because it was full must be in use again so long
after there was room.
"""
FAILED, IN_USE_AGAIN = ") failed: ", "is in use again"
"""What a storage process logs when it gives a disk up, and when it has opened it anew."""
MOUNT_GRACE_S = 5.0
"""An application may see a dead mount until so long after a new one serves:
what it had open stays dead.
"""


class Faults:
    """Makes faults; knows when a full disk may have been seen."""

    def __init__(self, fleet: Fleet, generator: random.Random) -> None:
        self._fleet, self._generator = fleet, generator
        self.full_times: list[tuple[float, float]] = []
        self.noticed_s: list[float] = []
        """For each kill of a storage process: how long until routing info said so."""
        self.healed_s: list[float] = []
        """For each full disk that was given up: how long
        after there was room it was in use again.
        """
        self.mount_times: list[tuple[float, float]] = []
        """When the mount was dead."""

    def make(self, fault: Fault) -> str:
        """Make a fault, let it last, end it; return what is worth telling."""
        told = getattr(self, f"_{fault.kind}")(fault)
        return told or ""

    def may_be_full(self, since: float, at: float) -> bool:
        """True if an application may have seen ENOSPC at that time,
        of something that it wrote at `since` or later.
        """
        return any(begin <= at and since <= end for begin, end in self.full_times)

    def may_be_dead(self, at: float) -> bool:
        """True if an application may have seen a dead mount at that time."""
        return any(begin <= at <= end for begin, end in self.mount_times)

    # ---- processes

    def _kill(self, fault: Fault) -> str:
        """Kill a process; of a storage process, also wait until its targets have left
        and it has come back.
        """
        if fault.victim == "mountd":
            return self._kill_mount()
        child = self._fleet.children[fault.victim]
        count = child.start_count
        began = time.monotonic()
        self._fleet.send(fault.victim, signal.SIGKILL)
        told = ""
        if child.role == "storage":
            self.noticed_s.append(self.wait_out(fault.victim))
            told = f"noticed after {self.noticed_s[-1]:.2f} s"
        while child.start_count == count:
            assert time.monotonic() - began < OUT_TIMEOUT_S, f"{fault.victim} was not started again"
            time.sleep(0.05)
        return told

    def _kill_mount(self) -> str:
        began = time.monotonic()
        self.mount_times.append((began, float("inf")))
        dead_s, again_s = self._fleet.kill_mount()
        self.mount_times[-1] = began, time.monotonic() + MOUNT_GRACE_S
        return f"ENOTCONN after {dead_s:.2f} s, mounted anew in {again_s:.2f} s"

    def _stop(self, fault: Fault) -> None:
        pid = self._fleet.pid(fault.victim)
        self._fleet.send(fault.victim, signal.SIGSTOP)
        time.sleep(fault.duration_s)
        if self._fleet.pid(fault.victim) == pid:
            self._fleet.send(fault.victim, signal.SIGCONT)

    _long_stop = _stop

    def _rolling(self, _fault: Fault) -> str:
        fleet, longest = self._fleet, 0.0
        for name in (*fleet.storages, *fleet.controls):
            code = fleet.stop(name)
            assert code == 0, f"{name} ended with {code} when asked to"
            fleet.start(name)
            longest = max(longest, fleet.wait_healthy(120))
        return f"healthy again {longest:.1f} s after the slowest"

    # ---- network

    def _isolate(self, fault: Fault) -> None:
        self._fleet.network.isolate(fault.victim)
        self._end_network(fault)

    def _one_way(self, fault: Fault) -> str:
        is_deaf = self._generator.random() < 0.5
        network = self._fleet.network
        (network.deafen if is_deaf else network.mute)(fault.victim)
        self._end_network(fault)
        return "deaf" if is_deaf else "mute"

    def _half(self, fault: Fault) -> None:
        self._fleet.network.cut(fault.victim, fault.peer)
        self._end_network(fault)

    _apart = _half

    def _loss(self, fault: Fault) -> None:
        self._fleet.network.lose(fault.victim, fault.amount)
        self._end_network(fault)

    def _narrow(self, fault: Fault) -> None:
        self._fleet.network.narrow(fault.victim, fault.amount)
        self._end_network(fault)

    def _reset(self, fault: Fault) -> None:
        self._fleet.network.reset(fault.victim)
        time.sleep(RESET_S)
        self._fleet.network.heal(fault.victim)

    def _end_network(self, fault: Fault) -> None:
        try:
            time.sleep(fault.duration_s)
        finally:
            self._fleet.network.heal(fault.victim)

    # ---- disks

    def _full(self, fault: Fault) -> str:
        """Fill the disk, then free it; if the process has given it up,
        it must take it into use again by itself.
        """
        disk = self._fleet.disks[fault.victim]
        failed_before, healed_before = self._disk_events(fault.victim)
        began = time.monotonic()
        self.full_times.append((began, float("inf")))
        try:
            disk.fill()
            time.sleep(fault.duration_s)
        finally:
            disk.empty()
            self.full_times[-1] = (began, time.monotonic() + ERROR_GRACE_S)
        room_s = time.monotonic()
        while True:
            failed, healed = self._disk_events(fault.victim)
            took = time.monotonic() - room_s
            if failed == failed_before:
                return ""
            if healed - healed_before >= failed - failed_before:
                self.healed_s.append(took)
                return f"the disk was given up, and in use again {took:.1f} s after there was room"
            assert took < HEALED_TIMEOUT_S, (
                f"{fault.victim}: the disk is still out of use {took:.0f} s after there was room"
            )
            time.sleep(0.25)

    def _disk_events(self, name: str) -> tuple[int, int]:
        """How often a process has given up its disk and has taken it into use again,
        by what it logged.
        """
        log = self._fleet.log(name).read_text(errors="replace")
        return log.count(FAILED), log.count(IN_USE_AGAIN)

    def _slow_disk(self, fault: Fault) -> None:
        disk = self._fleet.disks[fault.victim]
        disk.throttle(self._fleet.pid(fault.victim), SLOW_BYTES_PER_S)
        try:
            time.sleep(fault.duration_s)
        finally:
            disk.release()

    def _disk_error(self, fault: Fault) -> str:
        """The disk gives errors only, then is replaced by itself, as after a bus reset."""
        fleet, disk = self._fleet, self._fleet.disks[fault.victim]
        disk.shut_down()
        out_s = self.wait_out(fault.victim)
        time.sleep(fault.duration_s)
        fleet.stop(fault.victim, signal.SIGKILL)
        disk.mount_again()
        fleet.start(fault.victim)
        return f"out of its chains after {out_s:.1f} s"

    def wait_out(self, name: str) -> float:
        """Wait until no target of a node serves; return the seconds."""
        began = time.monotonic()
        node_id = 11 + self._fleet.storages.index(name)
        while True:
            info = self._fleet.routing()
            serving = [
                m.target_id
                for chain in info.chains.values()
                for m in chain.targets
                if m.target_id // 1000 == node_id and m.public_state is PublicState.SERVING
            ]
            took = time.monotonic() - began
            if not serving:
                return took
            assert took < OUT_TIMEOUT_S, f"{serving} of {name} still serve after {took:.0f} s"
            time.sleep(0.02)

    def _wipe(self, fault: Fault) -> str:
        """A disk is lost and replaced by an empty one."""
        self._fleet.stop(fault.victim, signal.SIGKILL)
        self.wait_out(fault.victim)
        path = self._fleet.disk(fault.victim)
        before = sum(1 for _ in path.rglob("*"))
        for entry in path.iterdir():
            if not entry.is_dir():
                entry.unlink()
            elif entry.name != "lost+found":
                shutil.rmtree(entry)
        self._fleet.start(fault.victim)
        return f"{before} files lost"

    def _flip(self, fault: Fault) -> str:
        chunks = self.damage(fault.victim, fault.amount)
        repaired_s = self.wait_repaired(fault.victim, chunks)
        return f"{len(chunks)} chunks damaged, all right after {repaired_s:.1f} s"

    def damage(self, name: str, count: int) -> list[StoredChunk]:
        """Flip a bit in each of some chunks of a node; return them."""
        path = self._fleet.disk(name)
        found = [chunk for chunk in stored_chunks(path) if chunk.record.length]
        chosen = self._generator.sample(found, min(count, len(found)))
        for chunk in chosen:
            with suppress(FileNotFoundError):  # reclaimed since
                flip(path, chunk, self._generator)
        return chosen

    def wait_repaired(self, name: str, chunks: list[StoredChunk]) -> float:
        """Read the damaged chunks where they are until none is damaged any more;
        return the seconds.
        """
        began = time.monotonic()
        left = chunks
        while left:
            answers = read_target(self._fleet, left)
            bad = {Status.CHECKSUM_MISMATCH, Status.IO_ERROR}
            left = [c for c, answer in zip(left, answers, strict=True) if answer.status in bad]
            took = time.monotonic() - began
            assert took < REPAIR_TIMEOUT_S, f"{name}: {len(left)} chunks not repaired: {left[:3]}"
            if left:
                time.sleep(0.5)
        return time.monotonic() - began
