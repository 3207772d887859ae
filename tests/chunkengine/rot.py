"""Rot in each file of the engine's RocksDB: the disk opens with everything, refuses, or says so;
it never loses silently.

    python -m tests.chunkengine.rot [--places N] [--seeds N] [--jobs J]

Of a disk that was closed and of one whose process was killed, one byte at a time is
changed in every file beside the data (also in those that RocksDB does not need), at N
places each; then each file is cut in half, and then removed. Every chunk must then be
read as it was, or with a definite error.
"""

import argparse
import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fs.chunkengine.factory import open_engine
from fs.schema.status import FsError, Status

from .campaign import run_campaign
from .corrupt import SECTION, make_disk
from .workload import CHUNKS, Content, read

DEFINITE = (Status.IO_ERROR, Status.CHECKSUM_MISMATCH, Status.BAD_DISK_FORMAT, Status.FOREIGN_DISK)
Contents = dict[object, Content]


def contents_of(path: Path) -> Contents:
    """Return what every chunk holds; where it cannot be read, the error."""
    found: Contents = {}
    engine = open_engine(path, cluster_id="c", node_id=1, section=SECTION)
    try:
        for chunk in CHUNKS:
            try:
                found[chunk] = read(engine, chunk)
            except FsError as error:
                found[chunk] = definite(error)
        for target in {target for target, _ in CHUNKS}:
            try:
                found[target] = tuple(state.chunk_id for state in engine.list_chunks(target))
            except FsError as error:
                found[target] = definite(error)
    finally:
        engine.close()
    return found


def definite(error: FsError) -> FsError:
    """Return the error if it is one that nobody can take for an answer."""
    if error.status not in DEFINITE:
        raise AssertionError(str(error))
    return error


def judge(path: Path, wanted: Contents) -> str:
    """Open a damaged disk; return what came of it; raises AssertionError for a silent loss."""
    try:
        found = contents_of(path)
    except FsError as error:
        definite(error)
        return "refused"
    wrong = {key: value for key, value in found.items() if value != wanted[key]}
    assert all(isinstance(value, FsError) for value in wrong.values()), f"silently lost: {wrong}"
    return "error on reading" if wrong else "opened with everything"


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def halve(path: Path, _rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def remove(path: Path, _rng: random.Random) -> None:
    path.unlink()


def harm_each(
    saved: Path, path: Path, folder: str, judge: Callable[[], str], *, places: int, seed: int
) -> Counter[str]:
    """Harm each file in a folder of what is saved, in each way, in a copy at `path`;
    count what is said of the copies.

    Args:
        places: how many bits of each file are flipped, each in a copy of its own.
        judge: says what became of the copy.
    """
    harms: list[Callable[[Path, random.Random], None]] = [flip] * places + [halve, remove]
    rng, outcome = random.Random(seed), Counter[str]()
    for name in sorted(entry.name for entry in (saved / folder).iterdir()):
        for harm in harms:
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(saved, path)
            harm(path / folder / name, rng)
            try:
                verdict = judge()
            except AssertionError as error:
                error.add_note(f"seed {seed}: {harm.__name__} {name}")
                raise
            kind = name.split("-")[0] if "-" in name else name.split(".")[-1]
            outcome[f"{kind} {harm.__name__}: {verdict}"] += 1
            outcome[harm.__name__] += 1
    return outcome


def run_seed(places: int, seed: int, directory: Path) -> Counter[str]:
    """Damage every file of one disk's metadata store; even seeds: closed, odd ones: killed."""
    path = make_disk(directory, seed, is_killed=seed % 2 == 1)
    saved = directory / "saved"
    shutil.copytree(path, saved)
    wanted = contents_of(path)
    return harm_each(saved, path, "meta", partial(judge, path, wanted), places=places, seed=seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chunkengine.rot")
    parser.add_argument("--places", type=int, default=5, help="per file")
    parser.add_argument("--seeds", type=int, default=4, help="disks")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    trial = partial(run_seed, arguments.places)
    outcome = run_campaign(trial, 0, arguments.seeds, arguments.jobs, "disks")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
