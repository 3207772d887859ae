"""A program on a mount: makes, syncs, reads back and replaces files until told to stop;
every byte is checked.

python load.py PATH PAUSE_S        files PATH.N, each PAUSE_S after the one before; PATH.stop ends
                                   it; PATH.round says how many it has written
"""

import os
import sys
import time
from pathlib import Path

FILE_COUNT = 12
FILE_BYTES = 300_000


def main(path: str, pause_s: float) -> None:
    kept: dict[str, bytes] = {}  # what was written last
    before: dict[str, bytes] = {}  # what it replaced
    done = 0
    while not os.path.exists(f"{path}.stop"):
        name, content = f"{path}.{done % FILE_COUNT}", os.urandom(FILE_BYTES)
        with open(name, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        if name in kept:
            before[name] = kept[name]
        kept[name] = content
        other = f"{path}.{done * 7 % FILE_COUNT}"
        if other in kept:
            check(other, kept[other], before.get(other, b""))
        done += 1
        Path(f"{path}.round").write_text(str(done))
        time.sleep(pause_s)
    for other, content in kept.items():
        check(other, content, before.get(other, b""))
    print(done)


def check(name: str, content: bytes, before: bytes) -> None:
    found = Path(name).read_bytes()
    if found != content:
        wrong, again = difference(found, content, before), []
        for wait_s in (0, 1, 15):  # whether it stays so, also when nothing of it is cached
            time.sleep(wait_s)
            with open(name, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                again.append(difference(file.read(), content, before) or "right")
        raise AssertionError(f"{name} is not what was written: {wrong}; read again: {again}")


def difference(found: bytes, content: bytes, before: bytes = b"") -> str:
    """Say where two contents differ, and what is there: zeros, what was there before, or neither;
    empty if they do not.
    """
    if found == content:
        return ""
    if len(found) != len(content):
        return f"{len(found)} bytes long, not {len(content)}"
    wrong = [at for at, (one, other) in enumerate(zip(found, content, strict=True)) if one != other]
    zeros = sum(found[at] == 0 for at in wrong)
    old = sum(found[at : at + 1] == before[at : at + 1] for at in wrong)
    where = f"{len(wrong)} bytes differ from {wrong[0]} to {wrong[-1]}"
    return f"{where}, {zeros} of them are zero, {old} as before"


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
