"""Power cuts of the file system below a key-value store under commits, again and again.

    python -m tests.kv.power [--kind ext4|xfs] [--count N] [--seed S]

After each cut the store must hold a prefix of the commits that reaches at least to the last sync.
"""

from tests.chunkengine.power import main
from tests.kv.witness import StoreWitness

if __name__ == "__main__":
    raise SystemExit(main("tests.kv.power", StoreWitness))
