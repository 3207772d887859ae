"""Something to read, and who reads it: in a module that the children of a test can import."""

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
