"""Stands in for the engine of a disk that could not be opened,
so that its process can serve its other disks.

Every call is refused with the reason of the opening.  Concurrency: any.
"""

from collections.abc import Callable
from typing import NoReturn, cast

from ..schema.status import FsError, Status
from .api import ChunkEngine


class RefusedEngine:
    """Implements `ChunkEngine` as far as there is anything to implement;
    made by `refused_engine`.
    """

    checksum_block_bytes = 0
    """Not known."""

    def __init__(self, reason: FsError) -> None:
        self.reason = reason
        """What the opening raised."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        """Return a method that refuses."""

        def refuse(*_arguments: object, **_named: object) -> NoReturn:
            raise FsError(Status.IO_ERROR, f"{name}: the disk is not open: {self.reason}")

        return refuse

    def room_after_refusal(self) -> None:
        """See `ChunkEngine`."""

    def give_up(self, reason: str) -> None:
        """See `ChunkEngine`."""

    def close(self) -> None:
        """See `ChunkEngine`; nothing is held."""


def refused_engine(reason: FsError) -> ChunkEngine:
    """Return an engine for a disk whose opening raised `reason`."""
    return cast("ChunkEngine", RefusedEngine(reason))
