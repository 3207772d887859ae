"""A program on a mount: makes, syncs, reads back and replaces files until told to stop; every byte is checked.

python load.py PATH        files PATH.N; PATH.stop ends it; PATH.round says how many it has written
"""

import hashlib
import os
import sys
from pathlib import Path

FILE_COUNT = 12
FILE_BYTES = 300_000


def main(path: str) -> None:
    kept: dict[str, bytes] = {}
    done = 0
    while not os.path.exists(f"{path}.stop"):
        name, content = f"{path}.{done % FILE_COUNT}", os.urandom(FILE_BYTES)
        with open(name, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        kept[name] = hashlib.sha256(content).digest()
        other = f"{path}.{done * 7 % FILE_COUNT}"
        if other in kept:
            check(other, kept[other])
        done += 1
        Path(f"{path}.round").write_text(str(done))
    for other, digest in kept.items():
        check(other, digest)
    print(done)


def check(name: str, digest: bytes) -> None:
    found = hashlib.sha256(Path(name).read_bytes()).digest()
    assert found == digest, f"{name} is not what was written"


if __name__ == "__main__":
    main(sys.argv[1])
