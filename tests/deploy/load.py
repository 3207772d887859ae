"""A program on a mount: makes, syncs, reads back and replaces files until told to stop; every byte is checked.

python load.py PATH        files PATH.N; PATH.stop ends it; PATH.round says how many it has written
"""

import os
import sys
from pathlib import Path

FILE_COUNT = 12
FILE_BYTES = 300_000


def main(path: str) -> None:
    kept: dict[str, bytes] = {}  # what was written last
    done = 0
    while not os.path.exists(f"{path}.stop"):
        name, content = f"{path}.{done % FILE_COUNT}", os.urandom(FILE_BYTES)
        with open(name, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        kept[name] = content
        other = f"{path}.{done * 7 % FILE_COUNT}"
        if other in kept:
            check(other, kept[other])
        done += 1
        Path(f"{path}.round").write_text(str(done))
    for other, content in kept.items():
        check(other, content)
    print(done)


def check(name: str, content: bytes) -> None:
    found = Path(name).read_bytes()
    assert found == content, f"{name} is not what was written: {difference(found, content)}"


def difference(found: bytes, content: bytes) -> str:
    """Say where two contents differ, and whether the bytes there are zeros."""
    if len(found) != len(content):
        return f"{len(found)} bytes long, not {len(content)}"
    wrong = [at for at, (one, other) in enumerate(zip(found, content, strict=True)) if one != other]
    zeros = sum(found[at] == 0 for at in wrong)
    return f"{len(wrong)} bytes differ from {wrong[0]} to {wrong[-1]}, {zeros} of them are zero"


if __name__ == "__main__":
    main(sys.argv[1])
