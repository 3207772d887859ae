import pytest

from fs.chunkengine.factory import memory_engine, open_engine
from fs.chunkengine.format import file_name
from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.schema.config import StorageSection


class Lab:
    """A disk that can be opened again and again."""

    def __init__(self, kind: str, path) -> None:
        self.kind = kind
        self.path = path / "disk"
        self.disk = SimulatedDisk()
        self.section = StorageSection(checksum_block_bytes=4096)
        self.engine = self.open()

    def open(self, *, cluster_id: str = "c", node_id: int = 1, section=None):
        section = section or self.section
        if self.kind == "memory":
            return memory_engine(self.disk, cluster_id=cluster_id, node_id=node_id, section=section)
        return open_engine(self.path, cluster_id=cluster_id, node_id=node_id, section=section)

    def reopen(self):
        self.engine.close()
        self.engine = self.open()
        return self.engine

    def flip(self, file_id, offset: int) -> None:
        if self.kind == "memory":
            self.disk.flip_bit(file_id, offset)
            return
        with (self.path / file_name(file_id)).open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x10]))


@pytest.fixture(params=["memory", "disk"])
def lab(request, tmp_path):
    lab = Lab(request.param, tmp_path)
    yield lab
    lab.engine.close()
