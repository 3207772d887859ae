"""Which chains a new file gets: pure arithmetic over a chain table.

Files start one after the other around the table, so that their first chunks, and with them small
files, load every chain alike; a random seed per file shuffles the chains of its stripe, so that
large files do not march over the chains in step.
"""

from ..schema.proto.common_pb2 import LayoutPb
from ..schema.routing import ChainTable


def place(default: LayoutPb, table: ChainTable, turn: int, shuffle_seed: int) -> LayoutPb:
    """Return the layout of one file made under the layout `default`.

    The stripe is cut to the length of the table: more slots than chains would only repeat chains.

    Args:
        default: chunk size and stripe size count; a nonzero table version would be honoured by the
            caller when choosing `table`.
        table: the version of the chain table to use, with at least one chain.
        turn: grows by one per file made by this process.
        shuffle_seed: 64 random bits.
    """
    length = len(table.chain_ids)
    assert length > 0, table.table_id
    return LayoutPb(
        table_id=table.table_id,
        table_version=table.table_version,
        chunk_size_bytes=default.chunk_size_bytes,
        stripe_size=min(default.stripe_size, length),
        first_chain_index=turn % length,
        shuffle_seed=shuffle_seed,
    )
