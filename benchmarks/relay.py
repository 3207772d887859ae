"""The least that one small read through a ring can take:
four wake-ups of processes that do nothing else.

A program rings a bell, a second process asks a third one, which answers with 4 KiB, and the bell
rings back: the same sockets, waits and sizes as those of program, mount daemon and storage
process, without any work in between.

`python -m benchmarks.relay UP [DOWN]` is one such process: it answers on the socket
UP, after DOWN has answered it.
"""

import select
import socket
import statistics
import subprocess
import sys
import time

from .cluster import ROOT

BELL = bytes(4)
REQUEST = bytes(78)
REPLY = bytes(4161)
RECEIVE_BYTES = 16 * 1024


def wake_ups_us(count: int, pause_s: float) -> float:
    """Return the median of one round through three processes.

    Args:
        count: rounds.
        pause_s: after each, in seconds: processes that have slept take longer.
    """
    program, daemon_up = socket.socketpair()
    daemon_down, storage = socket.socketpair()
    with program, daemon_up, daemon_down, storage:
        relays = [_start(daemon_up, daemon_down), _start(storage)]
        try:
            daemon_up.close()
            daemon_down.close()
            storage.close()
            taken = [_one_s(program, pause_s) for _ in range(count)]
            program.close()
        finally:
            for relay in relays:
                relay.terminate()
                relay.wait()
    return statistics.median(taken) * 1e6


def _start(*ends: socket.socket) -> subprocess.Popen[bytes]:
    fds = [end.fileno() for end in ends]
    command = [sys.executable, "-m", "benchmarks.relay", *map(str, fds)]
    return subprocess.Popen(command, pass_fds=fds, cwd=ROOT)  # noqa: S603


def _one_s(program: socket.socket, pause_s: float) -> float:
    began = time.perf_counter()
    program.send(BELL)
    if not program.recv(RECEIVE_BYTES):
        raise ConnectionError("a relay has ended")
    took_s = time.perf_counter() - began
    if pause_s:
        time.sleep(pause_s)
    return took_s


def relay(up: socket.socket, down: socket.socket | None) -> None:
    """Answer on `up` until its other end is closed."""
    with select.epoll() as epoll:
        epoll.register(up, select.EPOLLIN)
        if down is not None:
            epoll.register(down, select.EPOLLIN)
        while True:
            epoll.poll()
            if not up.recv(RECEIVE_BYTES):
                return
            if down is None:
                up.send(REPLY)
                continue
            down.send(REQUEST)
            epoll.poll()
            if not down.recv(RECEIVE_BYTES):
                return
            up.send(BELL)


if __name__ == "__main__":
    own = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
    relay(own[0], own[1] if len(own) > 1 else None)
