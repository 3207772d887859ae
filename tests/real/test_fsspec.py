"""`ember://` on a real cluster: fsspec's own suite, and what it does not ask for."""

import posixpath
import secrets

import pytest
from emberfs.fsspec import EmberFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def fs(cluster):
    return EmberFileSystem(cluster=cluster.directory)


@pytest.fixture
def folder(fs):
    """A fresh directory, without any character that means something to glob."""
    made = f"/fsspec-{secrets.token_hex(4)}"
    fs.mkdir(made)
    yield made
    fs.rm(made, recursive=True)


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, cluster):
        return EmberFileSystem(cluster=cluster.directory, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, folder):
        return folder

    @pytest.fixture
    def fs_join(self):
        return posixpath.join

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmp_path):
        return str(tmp_path)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass
