"""Page-aligned buffers for the bytes of read replies, reused between requests.

Invariants:
    - A buffer belongs to one reply from `take` to `give`; nobody keeps a view of it afterwards.
    - The pool keeps at most `pooled_bytes_max`; what comes back beyond that is freed.
"""

import mmap

PAGE_BYTES = mmap.PAGESIZE
BUFFER_BYTES_MIN = 64 * 1024


class ReadBuffers:
    """A pool of anonymous mappings in power-of-two sizes."""

    def __init__(self, pooled_bytes_max: int) -> None:
        self._pooled_bytes_max = pooled_bytes_max
        self._pooled_bytes = 0
        self._free: dict[int, list[mmap.mmap]] = {}

    def take(self, size: int) -> mmap.mmap:
        """Return a page-aligned buffer of at least `size` bytes; its content is arbitrary."""
        rounded = max(BUFFER_BYTES_MIN, 1 << (size - 1).bit_length())
        free = self._free.get(rounded)
        if free:
            self._pooled_bytes -= rounded
            return free.pop()
        return mmap.mmap(-1, rounded)

    def give(self, buffer: mmap.mmap) -> None:
        """Take a buffer back."""
        size = len(buffer)
        if self._pooled_bytes + size > self._pooled_bytes_max:
            return  # unmapped when the last view of it is gone
        self._pooled_bytes += size
        self._free.setdefault(size, []).append(buffer)

    @property
    def pooled_bytes(self) -> int:
        """Bytes waiting for reuse."""
        return self._pooled_bytes


def page_rounded(length: int) -> int:
    """Return `length` rounded up to whole pages."""
    return -(-length // PAGE_BYTES) * PAGE_BYTES
