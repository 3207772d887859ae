"""What all that has `close` has besides: `with`,
and a line in place of an address where it is shown.
"""

from abc import ABC, abstractmethod
from typing import NoReturn, Self


def shown(thing: object, what: str, *, is_closed: bool) -> str:
    """Return what `repr` says of a thing: its kind, what tells it from others of its kind,
    and whether it is of any use still.
    """
    said = f"{type(thing).__name__} {what}".rstrip()
    return f"<{said}, closed>" if is_closed else f"<{said}>"


def in_use(size: int) -> BufferError:
    """Return the error of memory that cannot be given back."""
    what = "views of it, such as slices, arrays or tensors, are still in use: let go of them first"
    return BufferError(f"{size} bytes of memory: {what}")


class Closing(ABC):
    """Is closed at the end of a `with` block, whatever happened in it."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


class OfOneProcess(Closing):
    """Has what other processes do not: descriptors, memory, places at the mount daemon.

    Says so to who pickles it.
    """

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is of this process alone: give another one the client, or a path, and make "
            "it anew there"
        )


class Memory(OfOneProcess):
    """Memory, of which views may be in use when it is to be closed."""

    __slots__ = ()

    def __exit__(self, *details: object) -> None:
        """Close; where an error ended the block, that is told, and not that its own traceback
        still has views: the memory is freed with the last of them.
        """
        try:
            self.close()
        except BufferError:
            if details[0] is None:
                raise
