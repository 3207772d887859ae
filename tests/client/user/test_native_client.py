"""The batch client inside the process, over the model of a cluster;
what all batch clients share is in test_batch.py.
"""

import errno
import os
import random
import time

import pytest
from emberfs import native, opening
from emberfs.batch import Transfer
from emberfs.clusters import Place
from emberfs.kvcache import KVCache
from emberfs.native import NativeClient
from emberfs.posix import PosixClient

from fs.schema.status import FsError, Status


@pytest.fixture
def client(native_client):
    return native_client


def test_batches_over_several_files(client):
    content = random.Random(1).randbytes(300_000)
    iov = client.allocate(len(content))
    iov.view[:] = content
    with client.open("/a", "x") as a, client.open("ember://test@host:1/b", "w") as b:
        client.write(
            [Transfer((a, b)[i % 2], i * 1000, iov.view[i * 1000 :][:1000]) for i in range(300)]
        )
        a.fsync()
    buffers = [bytearray(1000) for _ in range(300)]
    with client.open("/a") as a, client.open("/b", "r+") as b:
        assert (a.length(), b.length()) == (299_000, 300_000)
        transfers = [Transfer((a, b)[i % 2], i * 1000, memoryview(buffers[i])) for i in range(300)]
        assert client.read(transfers) == [1000] * 300
        assert client.read([Transfer(a, 298_990, memoryview(bytearray(20)))]) == [10]
    assert b"".join(buffers) == content


def test_a_failure_leaves_the_others_and_names_its_file(client, cluster):
    with client.open("/w", "w") as w, client.open("/v", "w") as v:
        cluster.chunks.write_faults = [FsError(Status.NO_SPACE, "test")]
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
            client.write([Transfer(w, 0, memoryview(b"lost")), Transfer(v, 0, memoryview(b"kept"))])
        assert (failed.value.errno, failed.value.filename) == (errno.ENOSPC, "/w")
        with pytest.raises(OSError) as failed:  # noqa: PT011
            client.read([Transfer(w, 0, memoryview(bytearray(1)))])
        assert (failed.value.errno, failed.value.filename) == (errno.EBADF, "/w")
    buffer = bytearray(4)
    with client.open("/v") as v:
        client.read([Transfer(v, 0, memoryview(buffer))])
    assert buffer == b"kept"
    with pytest.raises(FileNotFoundError):
        client.open("/none", "r+")
    with pytest.raises(FileExistsError):
        client.open("/v", "x")


def test_the_child_of_a_fork_opens_its_files_anew(client):
    with client.open("/f", "w") as file:
        client.write([Transfer(file, 0, memoryview(b"content"))])
    file = client.open("/f", "r+")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            buffer = bytearray(7)
            assert client.read([Transfer(file, 0, memoryview(buffer))]) == [7]
            assert buffer == b"content"
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert client.read([Transfer(file, 0, memoryview(bytearray(3)))]) == [3]


def test_a_client_for_each_place(tmp_path, monkeypatch):
    assert isinstance(opening.open_client(tmp_path), PosixClient)
    with pytest.raises(FileNotFoundError):
        opening.open_client(tmp_path / "none")
    seen = []
    monkeypatch.setattr(native, "connection", seen.append)
    monkeypatch.setattr(native, "find_place", lambda **given: Place((str(given),), "", None))
    assert isinstance(opening.open_client("ember://c@h:1,i:2/"), NativeClient)
    (tmp_path / "cluster.json").write_text("{}")
    assert isinstance(opening.open_client(tmp_path), NativeClient)
    assert "'hosts': 'h:1,i:2', 'cluster_id': 'c'" in seen[0].addresses[0]
    assert str(tmp_path) in seen[1].addresses[0]


def test_a_kv_cache_needs_no_mount(client):
    clock = [time.time()]

    def opened(folder):
        return KVCache(
            folder, block_bytes=4096, capacity_bytes=16 * 4096, ttl_s=60, clock=lambda: clock[0],
            connect=lambda: NativeClient.of_url("ember://test@host:1/"),
        )  # fmt: skip

    blocks = [(b"%d" % n, memoryview(random.Random(n).randbytes(4096))) for n in range(9)]
    keys = [key for key, _ in blocks]
    with opened("/") as one, opened("ember://test@host:1/") as other:
        client.fs().mkdir(f"/segment-{'0' * 32}")
        assert one.put(blocks) == 9
        clock[0] += 5
        assert other.get([*keys, b"none"]) == [*(bytes(block) for _, block in blocks), None]
        assert other.delete([keys[3]]) == 1
        clock[0] += 40
        assert one.contains(keys) == [True] * 9  # not looked yet
        one.refresh()
        assert one.get(keys)[3] is None
        clock[0] += 30
        assert one.get(keys) == [None] * 9
        assert other.collect().segment_count == 3
