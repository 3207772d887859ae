"""Which tests of this folder are looked at, and the mount that they share in a module."""

import os
import random
from contextlib import asynccontextmanager

import pytest
from emberfs import native
from emberfs.native import NativeClient

from fs.client.blocking import BlockingFs
from fs.client.native import EmberFs, Identity
from fs.runtime.ports import Runtime
from tests.client.fakes import FakeClock, FakeCluster, run_inline
from tests.client.test_native import PathMeta

from .serving import Server


def pytest_ignore_collect(collection_path, config):
    """Importing torch takes seconds: where no slow test runs,
    tests that need it are not even read.
    """
    needs_torch = collection_path.name.startswith("test_torch")
    return True if needs_torch and "not slow" in config.option.markexpr else None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A mount over the model of a cluster; whoever uses it leaves no file session behind."""
    server = Server(tmp_path_factory.mktemp("served") / "mnt")
    yield server
    try:
        assert server.stop()["sessions"] == 0
    finally:
        server.close()


@pytest.fixture(scope="module")
def mount_point(server):
    return server.mount_point


@pytest.fixture
def cluster():
    return FakeCluster(FakeClock())


@pytest.fixture
def native_client(cluster, monkeypatch):
    """A client inside the process whose connections, one for each process,
    are to the model of a cluster.
    """
    made = {}

    def connection(place):
        assert place.addresses == ("tcp:host:1",)
        pid = os.getpid()
        if pid not in made:

            @asynccontextmanager
            async def connected():
                runtime = Runtime(cluster.clock, None, run_inline, random.Random(pid))
                meta, store = PathMeta(cluster, f"client{pid}"), cluster.store()
                yield EmberFs(meta, store, runtime=runtime, identity=Identity(0, 0))

            made[pid] = BlockingFs(connected).__enter__()
        return made[pid]

    monkeypatch.setattr(native, "connection", connection)
    with NativeClient.of_url("ember://test@host:1/") as client:
        yield client
    for fs in made.values():
        fs.close()
