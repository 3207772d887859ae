"""Frames between the fake client library and the fake server: a length, then a pickled tuple.

Loopback, tests only.
"""

import pickle
import socket
import struct
from pathlib import Path

LENGTH = struct.Struct(">I")


def pack(message: tuple) -> bytes:
    body = pickle.dumps(message)
    return LENGTH.pack(len(body)) + body


def unpack(buffer: bytearray) -> list[tuple]:
    """Take the whole frames out of what has arrived."""
    found = []
    while len(buffer) >= LENGTH.size:
        end = LENGTH.size + LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            break
        found.append(pickle.loads(bytes(buffer[LENGTH.size : end])))
        del buffer[:end]
    return found


def address_of(cluster_file: str) -> tuple[str, int]:
    host, _, port = Path(cluster_file).read_text().strip().partition("@")[2].rpartition(":")
    return host, int(port)


def ask(cluster_file: str, *request: object) -> object:
    """Send one request from plain code and return the answer."""
    with socket.create_connection(address_of(cluster_file), timeout=10) as connection:
        connection.sendall(pack((0, *request)))
        buffer = bytearray()
        while not (answers := unpack(buffer)):
            chunk = connection.recv(1 << 16)
            assert chunk, "the fake server hung up"
            buffer += chunk
    return answers[0][1]
