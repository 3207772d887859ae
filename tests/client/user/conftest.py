"""Which tests of this folder are looked at, and the mount that they share in a module."""

import pytest

from .serving import Server


def pytest_ignore_collect(collection_path, config):
    """Importing torch takes seconds: where no slow test runs, tests that need it are not even read."""
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
