"""A disk of a storage process hangs: its file system is frozen in the middle of writes,
and neither answers nor fails.

    python -m tests.torture.hung [--rounds N] [--watch S] [--recheck S] [--dir DIR]

The process has another disk, whose targets have to go on serving; the chains of the frozen one go
on without it.  Afterwards it is thawed, and has to come back by itself; the last time the process
is told to stop meanwhile, and started again.
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from fs.schema.routing import PublicState

from . import sooner
from .disk import LoopDisk
from .fleet import LOOP_NODE, Fleet, Sizes

SIZES = Sizes(chains=6, loop_mib=384)
HANG_S = 5.0
FOUND_S_MAX = 60.0
BACK_S_MAX = 300.0
WATCH_S = 12.0
FILE_COUNT = 24
PAUSE_S = 0.1
"""Between two files: at full speed they take most of the machine."""
LEFT_ALONE = "it is left as it is"


class Load:
    """Writes and syncs small and large files, one after the other, and reads each back."""

    def __init__(self, mount: Path) -> None:
        self._directory = mount / "hung"
        self._directory.mkdir()
        self.contents: dict[Path, bytes] = {}
        self.longest_s = 0.0
        self.count = 0
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            path = self._directory / f"{self.count % FILE_COUNT:04d}"
            data = os.urandom(16) * (250 if self.count % 3 else 200_000)
            began = time.monotonic()
            try:
                self._write(path, data)
            except OSError as error:
                self.errors.append(f"{path}: {error}")
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.count += 1
            self._is_over.wait(PAUSE_S)

    def _write(self, path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.contents[path] = data
        if path.read_bytes() != data:
            self.errors.append(f"{path}: wrong bytes")

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        for path, data in self.contents.items():
            if path.read_bytes() != data:
                self.errors.append(f"{path}: wrong bytes in the end")
        assert not self.errors, self.errors[:5]


class Trial:
    """A cluster whose first storage process has two disks."""

    def __init__(self, base: Path, recheck_s: float | None) -> None:
        self.fleet = Fleet(base, SIZES, wrapper=sooner.MODULE if recheck_s is not None else "")
        if recheck_s is not None:
            self.fleet.children[LOOP_NODE].environment[sooner.VARIABLE] = str(recheck_s)
        self.disk = LoopDisk(base / "second.img", base / "data" / "second", SIZES.loop_mib)
        self.fleet.disks["second"] = self.disk
        config = self.fleet.config(LOOP_NODE)
        head, _, rest = config.read_text().partition("[[storage.disks]]")
        targets = [int(number) for number in rest.partition("[")[2].rstrip("]\n").split(",")]
        half = len(targets) // 2
        self.hung, self.others = targets[half:], targets[:half]
        disk = '[[storage.disks]]\npath = "{}"\ntarget_ids = {}\n'
        config.write_text(
            f"{head}[storage]\ndisk_hang_s = {HANG_S}\n"
            + disk.format(self.fleet.disk(LOOP_NODE), self.others)
            + disk.format(self.disk.path, self.hung)
        )

    def states(self) -> dict[int, PublicState]:
        chains = self.fleet.routing(5.0).chains.values()
        return {m.target_id: m.public_state for chain in chains for m in chain.targets}

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", self.disk.path], check=True)

    def thaw(self) -> None:
        subprocess.run(["fsfreeze", "--unfreeze", self.disk.path], check=False, capture_output=True)

    def wait_found(self) -> float:
        """Wait until no target of the frozen disk serves; all others must, all the time."""
        began = time.monotonic()
        while True:
            states = self.states()
            away = [t for t, s in states.items() if s is not PublicState.SERVING]
            assert not set(away) - set(self.hung), f"others are out of service: {away}"
            if set(away) == set(self.hung):
                return time.monotonic() - began
            assert time.monotonic() - began < FOUND_S_MAX, f"only {away} are out of service"
            time.sleep(0.1)

    def watch_others(self, seconds: float) -> None:
        """See that the others stay in service."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.wait_found()
            time.sleep(0.2)

    def stop_hung(self) -> float:
        """Tell the process to stop; return the seconds until nobody listens any more."""
        child = self.fleet.children[LOOP_NODE]
        with self.fleet._lock:
            child.is_wanted = False
        os.kill(child.process.pid, signal.SIGTERM)
        began = time.monotonic()
        while LEFT_ALONE not in self.fleet.log(LOOP_NODE).read_text():
            assert time.monotonic() - began < FOUND_S_MAX, "it does not end"
            time.sleep(0.1)
        return time.monotonic() - began


def run(
    base: Path, rounds: int, *, watch_s: float = WATCH_S, recheck_s: float | None = None
) -> dict[str, object]:
    """Run it; return the figures.

    Args:
        base: an empty folder.
        rounds: freezes and thaws.
        watch_s: how long the others are watched while it hangs.
        recheck_s: how long the process waits before it tries a disk
            again; None: as the product does.
    """
    trial = Trial(base, recheck_s)
    fleet, figures = trial.fleet, {}
    found_s, back_s = [], []
    try:
        fleet.up()
        load = Load(fleet.mount)
        for _ in range(rounds):
            pid = fleet.pid(LOOP_NODE)
            time.sleep(3)
            trial.freeze()
            found_s.append(round(trial.wait_found(), 1))
            trial.watch_others(watch_s)
            trial.thaw()
            back_s.append(round(fleet.wait_healthy(BACK_S_MAX), 1))
            assert fleet.pid(LOOP_NODE) == pid, "it was started again"
        time.sleep(2)
        trial.freeze()
        found_s.append(round(trial.wait_found(), 1))
        figures["stopped_s"] = round(trial.stop_hung(), 1)
        trial.thaw()
        figures["code"] = fleet.children[LOOP_NODE].process.wait(30)
        fleet.start(LOOP_NODE)
        fleet.wait_healthy(BACK_S_MAX)
        load.end()
        count, different = fleet.compare()
        assert not different, different[:5]
        figures |= {"found_s": found_s, "back_s": back_s, "writes": load.count, "chunks": count}
        return figures | {"longest_write_s": round(load.longest_s, 1)}
    finally:
        trial.thaw()
        fleet.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.hung")
    parser.add_argument("--rounds", type=int, default=3, help="freezes and thaws")
    parser.add_argument(
        "--watch", type=float, default=WATCH_S, metavar="S", help="with a disk frozen"
    )
    parser.add_argument(
        "--recheck", type=float, metavar="S", help="then it is tried again; default: as ever"
    )
    parser.add_argument("--dir", type=Path, help="a folder to work in, kept")
    given = parser.parse_args()
    base = given.dir or Path(tempfile.mkdtemp(prefix="ember-hung-"))
    told = run(base / "cluster", given.rounds, watch_s=given.watch, recheck_s=given.recheck)
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
