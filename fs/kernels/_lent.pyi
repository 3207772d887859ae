from collections.abc import Sequence

from .lent_twin import Buffer

INTERFACE: int

def pieces_of(buffers: Sequence[Buffer], /) -> bytes: ...
def read_lent(
    pid: int, pieces: Buffer, skip: int, into: bytearray | memoryview, place: int, nonce: bytes, /
) -> None: ...
def read_files(
    pid: int,
    ranges: Buffer,
    into: Sequence[bytearray | memoryview],
    place: int,
    nonce: bytes,
    /,
) -> None: ...
