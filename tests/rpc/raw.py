"""One end of a connection by hand, which says what it likes, and what it says of memory."""

import ctypes
import mmap
from types import SimpleNamespace

import trio

from fs.kernels.lent import PIECE, pieces_of
from fs.rpc.api import Identity
from fs.rpc.frame import Kind, decode_error, encode_header
from fs.rpc.handshake import encode_hello
from fs.schema.proto.rpc_pb2 import HelloPb

ME = Identity("test-cluster", client_id="raw")
NONCE = bytes(range(16))


class Raw:
    """One end of a connection that says what it likes."""

    def __init__(self, stream):
        self.stream = stream

    async def exactly(self, count):
        data = memoryview(bytearray(count))
        done = 0
        while done < count:
            got = await self.stream.receive_into(data[done:])
            if not got:
                raise EOFError
            done += got
        return bytes(data)

    async def frame(self):
        """Return kind, flags, status, message and payload size of the next frame."""
        head = await self.exactly(48)
        size = int.from_bytes(head[28:32], "little")
        return SimpleNamespace(
            kind=head[5], flags=head[6], status=int.from_bytes(head[20:22], "little"),
            id=int.from_bytes(head[8:16], "little"),
            payload_bytes=int.from_bytes(head[32:40], "little"), message=await self.exactly(size),
        )  # fmt: skip

    async def say(self, kind, message=b"", number=0, **fields):
        header = encode_header(kind, number, message_bytes=len(message), **fields)
        await self.stream.send_all([header, message])

    async def hello(self, **fields):
        await self.stream.send_all(encode_hello(ME, **fields))
        heard = await self.frame()
        assert heard.kind == Kind.HELLO
        return HelloPb.FromString(heard.message)

    async def refusal(self):
        with trio.fail_after(30):
            heard = await self.frame()
        return heard.kind, decode_error(heard.status, heard.message).status


def prefix_of(*pieces, count=None):
    packed = b"".join(PIECE.pack(*piece) for piece in pieces)
    return (len(pieces) if count is None else count).to_bytes(4, "little") + packed


def place_of(buffer):
    return PIECE.unpack(pieces_of([buffer]))[0]


def protect(memory, is_readable):
    """Take memory away from everybody who reads it, or give it back."""
    address, _ = PIECE.unpack(pieces_of([memory]))
    bits = mmap.PROT_READ | mmap.PROT_WRITE if is_readable else 0
    library = ctypes.CDLL(None, use_errno=True)
    assert not library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), bits)
