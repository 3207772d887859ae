"""Headers of frames: the compiled kernel and its twin make the same,
and believe only what is whole and usual.
"""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from fs.kernels import frames, frames_twin
from tests.examples import many

GOOD = (2, 3, 0, 2**64 - 1, 7, 8, 9, 10, 11, 2**40)
"""As `make_header` takes them."""
BOUNDS = 2, 6, 11, 2**40
"""Version, greatest kind, most message bytes and payload bytes."""
WIDTHS = 8, 8, 16, 64, 16, 16, 16, 32, 32, 64


def taken(values):
    """Return what `take_header` makes of what `make_header` was given."""
    version, kind, flags, *rest = values
    return (version, kind, *rest, flags)


def sealed(header):
    """Return a header whose checksum holds, whatever it says."""
    return header[:40] + xxh3_64_digest(header[:40])[::-1]


def test_a_header_lies_as_the_wire_has_it(kernel):
    header = kernel.make_header(*GOOD)
    assert header[:4] == b"EMBR"
    fields = struct.unpack("<BBHQHHHHIIQ", header[4:40])
    assert fields == (*GOOD[:7], 0, *GOOD[7:])
    assert sealed(header) == header


@pytest.mark.parametrize("kind_of_buffer", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("start", [0, 5])
def test_a_header_is_taken_from_anywhere_in_a_buffer(kernel, start, kind_of_buffer):
    buffer = kind_of_buffer(b"x" * start + kernel.make_header(*GOOD) + b"y")
    assert kernel.take_header(buffer, start, *BOUNDS) == taken(GOOD)


def test_numbers_that_no_field_holds_are_refused(kernel):
    for place, width in enumerate(WIDTHS):
        for number in (-1, 1 << width):
            with pytest.raises(ValueError, match="its field cannot hold"):
                kernel.make_header(*GOOD[:place], number, *GOOD[place + 1 :])
        most = (*GOOD[:place], (1 << width) - 1, *GOOD[place + 1 :])
        assert len(kernel.make_header(*most)) == 48


@pytest.mark.parametrize("start", [-1, 2, 49, 2**63, 2**64 - 1])
def test_headers_beyond_the_buffer_are_refused(kernel, start):
    with pytest.raises(ValueError, match=r"beyond the buffer|its field cannot hold"):
        kernel.take_header(kernel.make_header(*GOOD) + b"x", start, *BOUNDS)
    with pytest.raises(ValueError, match="beyond the buffer"):
        kernel.take_header(b"", 0, *BOUNDS)


def test_every_flipped_bit_and_whatever_is_unusual_is_left(kernel):
    header = kernel.make_header(*GOOD)
    for bit in range(48 * 8):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        assert kernel.take_header(flipped, 0, *BOUNDS) is None
    for place, value in ((0, 1), (1, 0), (1, 7), (2, 1), (8, 12), (9, 2**40 + 1)):
        unusual = kernel.make_header(*GOOD[:place], value, *GOOD[place + 1 :])
        assert kernel.take_header(unusual, 0, *BOUNDS) is None
    reserved = sealed(header[:22] + b"\x01\x00" + header[24:])
    assert kernel.take_header(reserved, 0, *BOUNDS) is None
    assert kernel.take_header(sealed(b"ember" + header[5:]), 0, *BOUNDS) is None


def test_what_is_no_number_and_too_few_are_refused(kernel):
    with pytest.raises((TypeError, ValueError)):
        kernel.make_header("2", *GOOD[1:])
    with pytest.raises(TypeError):
        kernel.make_header(*GOOD[1:])
    with pytest.raises(TypeError):
        kernel.take_header(b"", 0)


@given(
    st.tuples(*[st.integers(0, 2**width - 1) for width in WIDTHS]),
    st.tuples(
        st.integers(0, 3), st.integers(0, 7), st.integers(0, 2**33), st.integers(0, 2**64 - 1)
    ),
    st.integers(0, 47),
    st.integers(0, 255),
)
@settings(max_examples=many(300))
def test_both_say_the_same(values, bounds, place, byte):
    header = frames.make_header(*values)
    assert header == frames_twin.make_header(*values)
    changed = bytearray(header)
    changed[place] = byte
    for data in (header, changed, sealed(bytes(changed))):
        found = frames.take_header(data, 0, *bounds)
        assert found == frames_twin.take_header(data, 0, *bounds)
        if data == header and found is not None:
            assert found == taken(values)
