"""What a hostile program can send to the mount daemon's socket,
and what becomes of others meanwhile.
"""

import array
import os
import random
import socket
import struct

import pytest
from emberfs.connection import socket_address
from emberfs.protocol import REQUEST, VERSION, Call
from emberfs.ring import RingClient

from tests.client.user.pieces import CONTENT, read_pieces
from tests.client.user.serving import NEEDS_MOUNT, Server, eventually

pytestmark = NEEDS_MOUNT


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "mnt")
    yield server
    try:
        assert server.stop()["sessions"] == 0
    finally:
        server.close()


def random_request(rng):
    def number(bits):
        return rng.choice([0, 1, 2, 3, 7, 64, 4096, 2**bits - 1, rng.getrandbits(bits)])

    call = rng.choice([*Call, 0, 11, 2**32 - 1])
    depth = struct.unpack("<i", struct.pack("<I", number(32)))[0]
    packet = REQUEST.pack(
        call, number(32), number(32), depth, number(32), number(32), number(64), number(64)
    )
    kind = rng.random()
    if kind < 0.02:
        return packet[: rng.randrange(len(packet))]
    return packet if kind < 0.98 else packet + rng.randbytes(rng.randrange(2000))


def send(connection, packet, fds):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        connection.sendmsg([packet], rights)
        while connection.recv(2048, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False  # it was ended
    return False


@pytest.mark.slow
def test_random_packets_and_descriptors(server, capfd):
    """Whatever comes: others are served meanwhile, and nothing is left of it."""
    path = server.mount_point / "file"
    path.write_bytes(CONTENT)
    address = socket_address(str(server.mount_point))
    rng = random.Random(5)
    memory = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 10_000)
    fds = [memory, os.open(path, os.O_RDWR), os.open("/dev/null", os.O_RDWR), *os.pipe()]
    with RingClient(server.mount_point) as honest:
        read_pieces(honest, str(path), 1)
        before = len(server.held()), server.descriptor_count()
        connection = None
        for step in range(3000):
            if connection is None:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.connect(address)
                send(connection, REQUEST.pack(Call.HELLO, 1, VERSION, 0, 0, 0, 0, 0), [])
            count = rng.choice([0, 0, 0, 1, 1, 2, 5])
            if not send(connection, random_request(rng), rng.choices(fds, k=count)):
                connection.close()
                connection = None
            if step % 500 == 0:
                read_pieces(honest, str(path), step)
        if connection is not None:
            connection.close()
        for fd in fds:
            os.close(fd)
        read_pieces(honest, str(path), 2)
        eventually(
            lambda: len(server.held()) <= before[0] and server.descriptor_count() <= before[1],
            "something is left",
        )
    assert "bug in" not in capfd.readouterr().err
