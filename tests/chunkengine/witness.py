"""What a worker process has said, and what the disk may therefore hold after a kill
or a power loss.

`child` runs the worker of any kind of witness: an object with `work`, `hear`, `check`, `counts`,
`failure` and `slow_open_count` as here.
"""

import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from fs.chunkengine.fsck_disk import check_path

from .worker import CHUNK_COUNT, content_of, hash_of, open_disk, work

State = tuple[int, str]
"""Version and hash of the content; (0, "-"): no chunk."""

NOTHING: State = (0, "-")
OPEN_S_MAX = 10.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.chunkengine.worker", "tests.kv.crash_writer"])


class Witness:
    """Per chunk its states since the last sync that covers it, and what may be there besides."""

    work = staticmethod(work)

    def __init__(self) -> None:
        self.states: dict[int, list[State]] = {n: [NOTHING] for n in range(CHUNK_COUNT)}
        self.begun: dict[int, State] = {}
        self.marks: dict[str, dict[int, int]] = {}
        self.done_count = self.synced_count = self.failed_count = 0
        self.slow_open_count = 0
        """Opens that took more than OPEN_S_MAX."""
        self.failure = ""

    def hear(self, line: str) -> None:
        """Take note of one line."""
        word, *rest = line.split(" ")
        if word == "began":
            is_removal = rest[2] == "-"
            self.begun[int(rest[0])] = NOTHING if is_removal else (int(rest[1]), rest[2])
        elif word == "done":
            self.states[int(rest[0])].append(self.begun.pop(int(rest[0])))
            self.done_count += 1
        elif word == "sync":
            self.marks[rest[0]] = {n: len(states) - 1 for n, states in self.states.items()}
        elif word == "synced":
            for index, mark in self.marks.pop(rest[0]).items():
                gone = self.states[index][:mark]
                self.states[index] = self.states[index][mark:]
                for other in self.marks.values():
                    other[index] = max(0, other[index] - len(gone))
            self.synced_count += 1
        elif word == "failed":
            self.failed_count += 1
            self.failure = line

    def counts(self) -> Counter[str]:
        """Return how much was heard."""
        return Counter(commits=self.done_count, syncs=self.synced_count)

    def check(self, path: Path, *, is_power: bool) -> None:
        """Check the disk as it lies there, open it, check every chunk and the disk again;
        go on from there.
        """
        no_finding(path)
        began = time.monotonic()
        engine = open_disk(str(path))
        took = time.monotonic() - began
        try:
            for index, states in self.states.items():
                version, content = content_of(engine, index)
                found = (version, hash_of(content))
                allowed = states if is_power else states[-1:]
                if index in self.begun:
                    allowed = [*allowed, self.begun[index]]
                assert found in allowed, f"chunk {index}: {found}, not one of {allowed}"
                self.states[index] = [found]
        finally:
            engine.close()
        self.begun.clear()
        self.marks.clear()
        no_finding(path)
        self.slow_open_count += took > OPEN_S_MAX


def no_finding(path: Path) -> None:
    """Nothing is wrong with a disk."""
    wrong = [finding.line() for finding in check_path(path) if not finding.is_notice]
    assert not wrong, "\n".join(wrong)


def run_worker(
    pipe: Connection, body: Callable[..., None], spoil: Callable[[], None] | None, how: dict
) -> None:
    """Body of the child; `spoil` breaks the engine in it, for controls, once the disk is open."""
    logging.disable(logging.CRITICAL)

    def send(line: str) -> None:
        if line == "opened" and spoil is not None:
            spoil()
        pipe.send(line)

    body(send=send, **how)
    pipe.close()


@contextmanager
def child(
    body: Callable[..., None],
    path: Path,
    seed: int,
    *,
    threads: int = 1,
    steps: int = 1 << 60,
    spoil: Callable[[], None] | None = None,
) -> Iterator[tuple["multiprocessing.process.BaseProcess", Connection]]:
    """Run a worker, `body` of a witness, in a process; it is killed at the end."""
    ours, its = FORKS.Pipe()
    how = {"path": str(path), "seed": seed, "threads": threads, "steps": steps}
    process = FORKS.Process(target=run_worker, args=(its, body, spoil, how))
    process.start()
    its.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()


def lines_of(pipe: Connection) -> Iterator[str]:
    """Yield what the child says until it is gone."""
    try:
        while True:
            yield pipe.recv()
    except EOFError:
        return


def listen(witness: Witness, pipe: Connection, line_count: int) -> bool:
    """Hear some lines; return False if the child has ended before."""
    lines = lines_of(pipe)
    for _ in range(line_count):
        line = next(lines, None)
        if line is None:
            return False
        witness.hear(line)
    return True
