from .reads_twin import Chunk

INTERFACE: int

def read_row(
    block: int,
    bounce_max: int,
    source: int,
    start: int,
    chunk_length: int,
    checksums: bytes,
    offset: int,
    view: memoryview,
    /,
) -> int | None: ...
def row_checksums(view: memoryview, ends: list[int], /) -> list[int]: ...
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
