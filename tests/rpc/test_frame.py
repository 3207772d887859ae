"""Frame headers: golden bytes, round trips, and nothing believed that is not whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from fs.rpc.frame import (
    DETAIL_BYTES_MAX,
    FLAG_TRACED,
    HEADER_BYTES,
    TRACE_BYTES,
    VERSION_MAX,
    FrameLimits,
    Kind,
    decode_error,
    decode_header,
    encode_error,
    encode_header,
)
from fs.runtime.tracing import WIRE_BYTES
from fs.schema.status import FsError, Status

LIMITS = FrameLimits(1 << 20, 1 << 30)
GOLDEN = {
    1: (
        (
            "454d4252 01 02 0000 0807060504030201 0300 1100 0000 0000 e8030000 10000000 "
            "0000100000000000"
        ),
        "17b4ca92a5abc3dd",
    ),
    2: (
        (
            "454d4252 02 02 0000 0807060504030201 0300 1100 0000 0000 e8030000 10000000 "
            "0000100000000000"
        ),
        "3f49b57769ade1ee",
    ),
}
"""By version; of requests that are not traced."""

GOLDEN_TRACED = (
    "454d4252 02 02 0100 0807060504030201 0300 1100 0000 0000 e8030000 28000000 0000100000000000"
)

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)


def golden_header(**fields):
    values = {"message_bytes": 16, **fields}
    return encode_header(
        Kind.REQUEST,
        0x0102030405060708,
        service=3,
        method=17,
        timeout_ms=1000,
        payload_bytes=1 << 20,
        **values,
    )


@pytest.mark.parametrize("version", GOLDEN)
def test_golden_bytes(version):
    data = golden_header(version=version)
    assert data[:40] == bytes.fromhex(GOLDEN[version][0])
    assert data[40:] == bytes.fromhex(GOLDEN[version][1])
    assert len(data) == HEADER_BYTES == 48


def test_golden_bytes_of_a_traced_request():
    data = golden_header(flags=FLAG_TRACED, message_bytes=TRACE_BYTES + 16)
    assert data[:40] == bytes.fromhex(GOLDEN_TRACED)
    assert decode_header(data, LIMITS).flags == FLAG_TRACED
    assert TRACE_BYTES == WIRE_BYTES


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.REQUEST, {"flags": 1, "message_bytes": TRACE_BYTES - 1}),
        (Kind.REQUEST, {"flags": 3, "message_bytes": TRACE_BYTES - 1}),
        (Kind.REQUEST, {"flags": 8, "message_bytes": TRACE_BYTES}),
        (Kind.REQUEST, {"flags": 16, "message_bytes": TRACE_BYTES}),
        (Kind.REPLY, {"flags": 4}),
        (Kind.REPLY, {"flags": 3, "message_bytes": TRACE_BYTES}),
        (Kind.RETURN, {"flags": 2}),
        (Kind.LEND, {"flags": 2}),
        (Kind.REPLY, {"flags": 1, "message_bytes": TRACE_BYTES}),
        (Kind.HELLO, {"flags": 1, "message_bytes": TRACE_BYTES}),
        (Kind.CANCEL, {"flags": 1}),
        (Kind.REQUEST, {"flags": 1, "message_bytes": TRACE_BYTES, "version": 1}),
        (Kind.REQUEST, {"flags": 2, "version": 1}),
        (Kind.REQUEST, {"flags": 4, "version": 1}),
        (Kind.REPLY, {"flags": 2, "version": 1}),
    ],
)
def test_flags_stand_only_where_they_may(kind, fields):
    with pytest.raises(FsError, match=f"flags {fields['flags']}") as caught:
        decode_header(encode_header(kind, 1, **fields), LIMITS, fields.get("version", VERSION_MAX))
    assert caught.value.status is Status.RPC_BAD_FRAME


@given(
    kind=st.sampled_from(Kind),
    request_id=u64,
    numbers=st.tuples(u16, u16, u16, u32),
    message_bytes=st.integers(0, LIMITS.message_bytes_max),
    payload_bytes=st.integers(0, LIMITS.payload_bytes_max),
)
def test_round_trip(kind, request_id, numbers, message_bytes, payload_bytes):
    service, method, status, timeout_ms = numbers
    data = encode_header(
        kind,
        request_id,
        service=service,
        method=method,
        status=status,
        timeout_ms=timeout_ms,
        message_bytes=message_bytes,
        payload_bytes=payload_bytes,
    )
    header = decode_header(memoryview(data), LIMITS)
    assert header[1:] == (kind, request_id, *numbers, message_bytes, payload_bytes, 0)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_garbage_is_refused(data):
    with pytest.raises(FsError) as caught:
        decode_header(data, LIMITS)
    assert caught.value.status is Status.RPC_BAD_FRAME


def test_another_magic_is_refused_whatever_its_checksum_says():
    body = b"RMBE" + golden_header()[4:40]
    with pytest.raises(FsError, match="magic") as caught:
        decode_header(body + xxh3_64_intdigest(body).to_bytes(8, "little"), LIMITS)
    assert caught.value.status is Status.RPC_BAD_FRAME


@given(bit=st.integers(0, HEADER_BYTES * 8 - 1))
def test_every_flipped_bit_is_noticed(bit):
    data = bytearray(golden_header())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FsError) as caught:
        decode_header(data, LIMITS)
    assert caught.value.status is Status.RPC_BAD_FRAME


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"version": VERSION_MAX - 1}, Status.RPC_BAD_VERSION),
        ({"version": VERSION_MAX + 1}, Status.RPC_BAD_VERSION),
        ({"message_bytes": LIMITS.message_bytes_max + 1}, Status.RPC_TOO_LARGE),
        ({"payload_bytes": LIMITS.payload_bytes_max + 1}, Status.RPC_TOO_LARGE),
    ],
)
def test_refusals(fields, status):
    with pytest.raises(FsError) as caught:
        decode_header(encode_header(Kind.REPLY, 1, **fields), LIMITS)
    assert caught.value.status is status


@pytest.mark.parametrize("kind", [0, 9, 255])
def test_unknown_kinds(kind):
    with pytest.raises(FsError, match=f"kind {kind}"):
        decode_header(encode_header(kind, 1), LIMITS)


@given(status=st.sampled_from([s for s in Status if s]), detail=st.text(max_size=2000))
def test_errors_cross(status, detail):
    header, data = encode_error(Kind.REPLY, 5, FsError(status, detail))
    decoded = decode_header(header, LIMITS)
    assert decoded.message_bytes == len(data) <= DETAIL_BYTES_MAX
    error = decode_error(decoded.status, data)
    assert error.status is status
    if len(detail.encode(errors="replace")) <= DETAIL_BYTES_MAX:
        assert error.detail == detail.encode(errors="replace").decode()


def test_a_status_of_a_newer_release_is_an_internal_error():
    error = decode_error(64_999, b"text")
    assert error.status is Status.INTERNAL_ERROR
    assert "64999" in error.detail
