"""`with` for whatever has `close`."""

from abc import ABC, abstractmethod
from typing import Self


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
