"""Copies out of shared memory."""

import pytest
from emberfs import memory


def test_no_memory_goes_while_it_is_copied(monkeypatch):
    content, place = bytearray(b"x" * memory.LONG_COPY_BYTES), bytearray(memory.LONG_COPY_BYTES)
    source, target = memoryview(content), memoryview(place)
    real = memory.memmove

    def beside_another_thread(*arguments):
        source.release()
        target.release()
        for buffer in (content, place):
            with pytest.raises(BufferError):
                buffer.append(0)
        return real(*arguments)

    monkeypatch.setattr(memory, "memmove", beside_another_thread)
    memory.copy(source, target)
    assert place == content
    place.append(0)
    content.append(0)


@pytest.mark.parametrize("count", [1, memory.LONG_COPY_BYTES])
def test_what_is_too_large_is_refused(count):
    target = memoryview(bytearray(count - 1))
    with pytest.raises(ValueError, match=r"bytes into|different"):
        memory.copy(memoryview(bytearray(count)), target)
