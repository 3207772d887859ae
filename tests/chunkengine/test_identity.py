"""A disk is opened where it belongs, by whom it belongs to;
nothing that held data is formatted anew.
"""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from fs.app.local.waits import DISK_STATUSES
from fs.chunkengine import known_disks
from fs.chunkengine.factory import open_engine
from fs.chunkengine.format import FORMAT_KEY, FORMAT_VERSION
from fs.chunkengine.known_disks import LIST_NAME, KnownDisks
from fs.runtime import mount_table
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

CHUNK = (TargetId(1), ChunkId(InodeId(7), 0))


class Node:
    """A node with two disks and a list of them."""

    def __init__(self, path) -> None:
        self.list_path = path / "state" / LIST_NAME
        self.disks = [path / "disk-0", path / "disk-1"]

    def open(self, index: int, *, node_id: int = 1, has_list: bool = True):
        return open_engine(
            self.disks[index],
            cluster_id="c",
            node_id=node_id,
            section=StorageSection(),
            known=KnownDisks(self.list_path) if has_list else None,
        )

    def refused(self, index: int, status: Status, *, has_list: bool = True) -> str:
        before = {p: p.read_bytes() for p in self.disks[index].rglob("*/[0-9A-F][0-9A-F]")}
        with pytest.raises(FsError) as caught:
            self.open(index, has_list=has_list)
        assert caught.value.status is status
        assert "\n" not in caught.value.detail
        for path, content in before.items():
            assert path.read_bytes() == content
        return caught.value.detail


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    for index in range(2):
        engine = made.open(index)
        engine.prepare_write(
            *CHUNK, version=1, chunk_size_bytes=1 << 16, offset=0, data=b"%d" % index
        )
        engine.commit(*CHUNK, version=1, chain_version=1)
        engine.close()
    return made


def check(node: Node, index: int, expected: bytes) -> None:
    engine = node.open(index)
    assert engine.read_whole(*CHUNK) == expected
    engine.close()


def test_disks_are_opened_again_and_again(node) -> None:
    for index in (0, 1, 0):
        check(node, index, b"%d" % index)


@pytest.mark.parametrize("is_there", [True, False])
def test_an_unmounted_disk_is_not_formatted(node, is_there) -> None:
    away = node.disks[0].rename(node.disks[0].with_name("elsewhere"))
    if is_there:
        node.disks[0].mkdir()
        (node.disks[0] / "lost+found").mkdir()
    detail = node.refused(0, Status.FOREIGN_DISK)
    assert str(node.disks[0]) in detail
    assert str(node.list_path) in detail
    assert "mount it" in detail
    assert node.disks[0].exists() == is_there
    shutil.rmtree(node.disks[0], ignore_errors=True)
    away.rename(node.disks[0])
    check(node, 0, b"0")


@pytest.mark.parametrize("has_list", [True, False])
def test_nothing_begins_anew_beneath_a_mount_that_is_missing(
    tmp_path, monkeypatch, has_list
) -> None:
    """It filled the file system of the mount point, and hid its disk's chunks."""
    node = Node(tmp_path)
    planned = tmp_path / "fstab"
    planned.write_text(f"UUID=1 {tmp_path / 'disk-0'} ext4 defaults,nofail 0 2\n")
    monkeypatch.setattr(mount_table, "PLANNED", planned)
    for disk in node.disks:
        disk.mkdir()
    detail = node.refused(0, Status.FOREIGN_DISK, has_list=has_list)
    assert "fstab" in detail
    assert list(node.disks[0].iterdir()) == []
    node.open(1).close()
    planned.unlink()
    node.open(0).close()
    planned.write_text(f"UUID=1 {tmp_path / 'disk-0'} ext4 defaults,nofail 0 2\n")
    node.open(0).close()  # it has been a disk by itself


def test_disks_that_changed_places_are_refused(node) -> None:
    aside = node.disks[0].rename(node.disks[0].with_name("aside"))
    node.disks[1].rename(node.disks[0])
    detail = node.refused(0, Status.FOREIGN_DISK)
    assert f"its place is {node.disks[1]}" in detail
    aside.rename(node.disks[1])
    detail = node.refused(1, Status.FOREIGN_DISK)
    assert f"its place is {node.disks[0]}" in detail


def test_a_disk_of_another_node_is_refused_before_the_list_is_asked(node, tmp_path) -> None:
    with pytest.raises(FsError, match="belongs to cluster c node 1, not to cluster c node 2"):
        node.open(0, node_id=2)
    other = Node(tmp_path / "other")
    other.disks = [node.disks[0]]
    engine = other.open(0)
    engine.close()
    assert str(node.disks[0]) in other.list_path.read_text()


def test_a_replaced_disk_is_accepted_when_its_line_is_gone(node) -> None:
    shutil.rmtree(node.disks[0])
    node.refused(0, Status.FOREIGN_DISK)
    lines = node.list_path.read_text()
    uuid = lines.split('"')[3]
    node.list_path.write_text(lines.replace(f'"{node.disks[0]}":"{uuid}",', ""))
    engine = node.open(0)
    assert engine.get(*CHUNK) is None
    assert engine.disk_format.disk_uuid != uuid
    engine.close()
    assert engine.disk_format.disk_uuid in node.list_path.read_text()
    check(node, 1, b"1")


def test_a_crash_between_formatting_and_noting_is_made_good(node) -> None:
    node.list_path.unlink()
    check(node, 0, b"0")
    assert str(node.disks[0]) in node.list_path.read_text()


@pytest.mark.parametrize("has_list", [True, False])
def test_data_without_metadata_is_never_formatted(node, has_list) -> None:
    shutil.rmtree(node.disks[0] / "meta")
    assert node.refused(0, Status.FOREIGN_DISK, has_list=has_list)
    (node.disks[0] / "meta").mkdir()
    status = Status.FOREIGN_DISK if has_list else Status.BAD_DISK_FORMAT
    node.refused(0, status, has_list=has_list)
    node.refused(0, status, has_list=has_list)


def test_a_damaged_list_is_refused_as_a_disk_is(node) -> None:
    """It is on the disk of the chunks, mostly:
    of what others make up for, it kept the whole cluster from starting.
    """
    for text in (b"", b"{", b"[]", b'{"a": 1}', b"\0" * 40, b'{"\xff": "a"}', b'{"a": "\xfe"}'):
        node.list_path.write_bytes(text)
        assert LIST_NAME in node.refused(0, Status.BAD_DISK_FORMAT)
    assert Status.BAD_DISK_FORMAT in DISK_STATUSES


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.EIO, Status.IO_ERROR),
        (errno.EUCLEAN, Status.IO_ERROR),
        (errno.EACCES, Status.BAD_CONFIG),
        (errno.EMFILE, Status.OUT_OF_RESOURCES),
    ],
)
def test_a_list_that_cannot_be_read_tells_of_its_disk(node, monkeypatch, number, status) -> None:
    def fail(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(FsError) as caught:
        KnownDisks(node.list_path)
    assert caught.value.status is status
    assert os.strerror(number) in caught.value.detail
    assert "may be removed" not in caught.value.detail
    assert ("dmesg" in caught.value.detail) == (status is Status.IO_ERROR)
    assert (status in DISK_STATUSES) == (number != errno.EACCES)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.EIO, Status.IO_ERROR),
        (errno.ENOSPC, Status.NO_SPACE),
        (errno.EACCES, Status.BAD_CONFIG),
    ],
)
def test_a_disk_that_cannot_be_noted_is_refused_each_time_until_it_can(
    node, monkeypatch, number, status
) -> None:
    """The second time it was taken for noted: not mounted,
    it would be formatted anew at the next start.
    """
    node.list_path.unlink()
    known = KnownDisks(node.list_path)

    def fail(path, _content):
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(known_disks, "write_durable", fail)
        for _ in range(2):
            with pytest.raises(FsError) as caught:
                known.add(node.disks[0], "uuid")
            assert caught.value.status is status
    known.add(node.disks[0], "uuid")
    assert "uuid" in node.list_path.read_text()


@pytest.mark.parametrize("removes_all", [False, True])
def test_a_list_that_was_changed_meanwhile_counts_at_the_next_opening(node, removes_all) -> None:
    """Was: a process that runs refused a new disk although its line in the list was removed,
    as it had said to do.
    """
    known = KnownDisks(node.list_path)

    def open_disk(index: int):
        return open_engine(
            node.disks[index], cluster_id="c", node_id=1, section=StorageSection(), known=known
        )

    serving = open_disk(0)
    shutil.rmtree(node.disks[1])
    with pytest.raises(FsError, match="is expected here"):
        open_disk(1)
    noted = json.loads(node.list_path.read_text())
    if removes_all:
        node.list_path.unlink()
    else:
        node.list_path.write_text(json.dumps({str(node.disks[0]): noted[str(node.disks[0])]}))
    new = open_disk(1)
    then = json.loads(node.list_path.read_text())
    assert then.keys() == noted.keys(), "what serves meanwhile stays noted"
    assert then[str(node.disks[0])] == noted[str(node.disks[0])]
    assert then[str(node.disks[1])] != noted[str(node.disks[1])]
    serving.close()
    new.close()


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1])
def test_an_unknown_format_is_refused_naming_the_versions(node, version) -> None:
    engine = node.open(0)
    stored = engine._meta.get(FORMAT_KEY)
    changed = stored.replace(b'version":%d' % FORMAT_VERSION, b'version":%d' % version)
    engine._meta.write_synced([(FORMAT_KEY, changed)])
    engine.close()
    detail = node.refused(0, Status.BAD_DISK_FORMAT)
    assert f"format version {version}, this release knows 1 to {FORMAT_VERSION}" in detail
