from .batches_twin import Buffer, Request

INTERFACE: int

def kinds_of(
    entries: bytes,
    memory_id: int,
    size: int,
    block_size: int,
    length_max: int,
    end_max: int,
    kinds_max: int,
    /,
) -> list[bytes] | None: ...
def are_within(entries: bytes, ends: bytes, /) -> bool: ...
def plan_reads(
    entries: bytes,
    layouts: bytes,
    slots: bytes,
    chains: bytes | bytearray,
    node_count: int,
    start: int,
    together: int,
    joined_max: int,
    count_max: int,
    bytes_max: int,
    tags: bytes,
    /,
) -> list[Request] | None: ...
def windows_of(
    view: memoryview, rows: bytes, lengths: list[int], payload_bytes: int, /
) -> list[memoryview] | None: ...
def have_come(
    view: memoryview, rows: bytes, lengths: list[int], checksums: list[int] | None, /
) -> bool: ...
def put_reply(
    view: memoryview,
    rows: bytes,
    message: Buffer,
    tags: bytes,
    payload: Buffer,
    verifies: bool,
    /,
) -> bool: ...
def completions_of(entries: bytes, /) -> bytes: ...
