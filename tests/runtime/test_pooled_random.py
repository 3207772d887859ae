"""Randomness in stock: each piece is given out once, to no child process again."""

import os
import threading

from fs.runtime.pooled_random import PIECE_BYTES, PIECE_COUNT, PooledRandom
from fs.runtime.real import real_runtime

COUNT = 10 * PIECE_COUNT


def test_no_piece_is_given_out_twice_by_whatever_thread():
    source, taken = PooledRandom(), [[] for _ in range(4)]

    def take(into):
        into.extend(source.randbytes(PIECE_BYTES) for _ in range(COUNT))

    threads = [threading.Thread(target=take, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [piece for into in taken for piece in into]
    assert len(set(found)) == len(found) == 4 * COUNT
    assert {len(piece) for piece in found} == {PIECE_BYTES}


def test_the_kernel_is_asked_once_for_many(monkeypatch):
    source, asked, real = PooledRandom(), [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or real(count))
    for _ in range(PIECE_COUNT):
        source.randbytes(PIECE_BYTES)
    assert asked == [PIECE_COUNT * PIECE_BYTES]


def test_other_lengths_and_kinds_are_as_ever():
    source = PooledRandom()
    assert [len(source.randbytes(count)) for count in (0, 1, 15, 17, 32, 5000)] == [
        0, 1, 15, 17, 32, 5000,
    ]  # fmt: skip
    assert 0.0 <= source.random() < 1.0
    assert 0 <= source.getrandbits(48) < 1 << 48


def test_a_child_process_gets_none_of_what_its_parent_has_in_stock():
    source = PooledRandom()
    source.randbytes(PIECE_BYTES)
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writable, b"".join(source.randbytes(PIECE_BYTES) for _ in range(PIECE_COUNT)))
        finally:
            os._exit(0)
    os.close(writable)
    found = b""
    while data := os.read(readable, 1 << 16):
        found += data
    os.close(readable)
    os.waitpid(child, 0)
    theirs = {found[at : at + PIECE_BYTES] for at in range(0, len(found), PIECE_BYTES)}
    ours = {source.randbytes(PIECE_BYTES) for _ in range(2 * PIECE_COUNT)}
    assert len(theirs) == PIECE_COUNT and not theirs & ours


def test_a_real_process_has_it():
    assert isinstance(real_runtime(None).random, PooledRandom)
