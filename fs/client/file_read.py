"""What a chunk client is asked to read."""

from typing import ClassVar

import msgspec

from ..schema.layout import FileRef


class FileRead(msgspec.Struct):
    """One read of a batch: fills `buffer` from `offset` on;
    bytes that were never written read as zeros.

    `hole_bytes` is set to how many of the bytes came from holes.  The caller clips to the file's
    length before: a chunk client does not know it.
    """

    file: FileRef
    offset: int
    buffer: memoryview
    hole_bytes: int = 0
    is_ahead: ClassVar[bool] = False
    """Nobody waits for it yet: how much work it is counts, not when it has come."""


class ReadAhead(FileRead):
    """One for which nobody waits yet.

    If it fails its buffer may be written to at any later time: it is to be used
    for nothing else, and dropped.
    """

    is_ahead: ClassVar[bool] = True
