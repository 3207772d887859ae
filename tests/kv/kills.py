"""SIGKILL of a process that commits to a key-value store, again and again.

    python -m tests.kv.kills [--count N] [--seed S] [--jobs J]

After each kill the store must hold exactly the acknowledged commits, and
perhaps some that were under way.
"""

from tests.chunkengine.kills import main
from tests.kv.witness import StoreWitness

if __name__ == "__main__":
    raise SystemExit(main("tests.kv.kills", StoreWitness))
