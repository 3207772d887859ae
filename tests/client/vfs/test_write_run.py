from hypothesis import given
from hypothesis import strategies as st

from fs.client.vfs.write_run import FLUSH_BYTES_MAX, WriteRun, WriteStream, flush_unit_bytes

MIB = 1 << 20


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12), st.data())
def test_cut_tiles_exactly(pieces, data):
    run = WriteRun(100)
    for piece in pieces:
        run.append(piece)
    whole = b"".join(pieces)
    boundary = data.draw(st.integers(101, 100 + len(whole)))
    front = run.cut_before(boundary)
    assert (front.offset, front.end, run.offset, run.end) == (
        100, boundary, boundary, 100 + len(whole),
    )  # fmt: skip
    assert bytes(front.joined()) == whole[: boundary - 100]
    assert bytes(run.joined()) == whole[boundary - 100 :]


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=150), st.data())
def test_any_part_can_be_read(pieces, data):
    run, whole = WriteRun(100), b"".join(pieces)
    for piece in pieces:
        run.append(piece)
    for _ in range(3):
        start = data.draw(st.integers(0, len(whole) - 1))
        end = data.draw(st.integers(start + 1, len(whole)))
        assert run.between(100 + start, 100 + end) == whole[start:end]
        run.append(b"more")
        whole += b"more"
    assert bytes(run.joined()) == whole and run.length == len(whole)


def test_a_single_piece_is_not_copied():
    data = b"x" * 1000
    run = WriteRun(0)
    run.append(data)
    assert run.joined() is data


def test_flush_unit_is_whole_chunks():
    assert flush_unit_bytes(MIB, MIB) == MIB
    assert flush_unit_bytes(MIB // 4, MIB) == MIB
    assert flush_unit_bytes(MIB, 3 * MIB + 5) == 3 * MIB
    assert flush_unit_bytes(4 * MIB, MIB) == 4 * MIB
    assert flush_unit_bytes(64 * MIB, MIB) == FLUSH_BYTES_MAX


def test_a_stream_holds_back_more_the_longer_it_gets():
    stream = WriteStream()
    held = [stream.held_bytes(i * MIB, MIB, 5 * MIB) for i in range(40)]
    assert held[0] < MIB and held[7] == 2 * MIB and held[39] == 5 * MIB
    assert held == sorted(held)
    assert stream.held_bytes(0, MIB, 5 * MIB) == MIB // 4, "it began anew"
