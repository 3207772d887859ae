from .reads_twin import Chunk, OneRow

INTERFACE: int

def row_checksums(view: memoryview, ends: list[int], /) -> list[int]: ...
def distinct_pairs(
    firsts: list[int], seconds: list[int], /
) -> tuple[list[tuple[int, int]], list[int]]: ...
def chunk_keys(
    owners: list[int], numbers: list[int], inode_ids: list[int], chunk_indexes: list[int], /
) -> tuple[list[bytes], list[int]]: ...
def read_rows(
    block: int,
    bounce_max: int,
    cold_min: int,
    chunks: list[Chunk | None],
    numbers: list[int],
    offsets: list[int],
    lengths: list[int],
    ends: list[int],
    view: memoryview,
    want_checksums: bool,
    /,
) -> tuple[list[int], list[int], list[int], int]: ...
def one_row(message: bytes, columns: bytes, flags: bytes, /) -> OneRow | None: ...
def one_reply(
    columns: bytes, length: int, version: int, checksum: int, want_checksum: bool, /
) -> bytes: ...
