"""Something to read, and who reads it: in a module that the children of a test can import."""

import os
import random

from emberfs.batch import Transfer

CONTENT = random.Random(4).randbytes(3_000_000)


def read_pieces(client, path, seed, count=50):
    """Read random pieces of a file and compare them."""
    rng = random.Random(seed)
    iov = client.allocate(count * 5000)
    with client.open(path) as file:
        places = [(rng.randrange(len(CONTENT) - 5000), i * 5000) for i in range(count)]
        transfers = [Transfer(file, offset, iov.view[at : at + 5000]) for offset, at in places]
        assert client.read(transfers) == [5000] * count
    for offset, at in places:
        assert iov.view[at : at + 5000] == CONTENT[offset : offset + 5000]


HAS_HUGE_PAGES = os.path.exists("/sys/kernel/mm/transparent_hugepage")


def kinds_of_pages(size):
    """Return, of our mappings of memory files of rings of so many bytes,
    whether huge pages are asked for.
    """
    found, is_wanted = set(), False
    with open("/proc/self/smaps", encoding="utf-8") as file:
        for line in file:
            first, *rest = line.split()
            if not first.endswith(":"):
                start, end = (int(part, 16) for part in first.split("-"))
                is_wanted = "emberfs-batch" in line and end - start == size
            elif is_wanted and first == "VmFlags:":
                found.add("hg" in rest)
    return found
