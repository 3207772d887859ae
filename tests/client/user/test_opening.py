"""Which client loaders take by themselves, and that all of them work with it on a mount."""

import errno
import os
import pickle
from pathlib import Path

import pytest
from emberfs.ffrecord import RecordReader, RecordWriter
from emberfs.opening import PATHS_LOOKED_AT_MAX, connect_for, open_client
from emberfs.pack import PackedFolder, pack_folder
from emberfs.posix import PosixClient
from emberfs.protocol import MOUNT_POINT_ATTRIBUTE
from emberfs.publish import CheckpointFolder, make_partial_folder, publish_folder
from emberfs.ring import RingClient

from fs.client.fuse.mount_point import mark_mount_point
from tests.client.user.serving import NEEDS_MOUNT

SAMPLES = [b"first", b"", bytes(100_000), b"last"]


def test_files_elsewhere_are_reached_by_system_calls(tmp_path):
    for paths in (
        [tmp_path / "f"],
        [tmp_path / "none" / "f"],
        [],
        ["f"],
        [tmp_path / "f", "/dev/shm/f"],
    ):
        with connect_for(paths)() as client:
            assert isinstance(client, PosixClient)


def test_a_bare_mount_point_is_no_other_file_system(disk_path):
    """Plain system calls would show an empty folder, or fill the disk beneath."""
    mark_mount_point(disk_path, "any")
    if MOUNT_POINT_ATTRIBUTE not in os.listxattr(disk_path):
        pytest.skip("no attributes here")
    for make in (open_client, RingClient):
        with pytest.raises(OSError, match=f"EmberFS is not mounted at {disk_path}") as failed:
            make(disk_path)
        assert (failed.value.errno, failed.value.filename) == (errno.ENOTCONN, str(disk_path))


@pytest.mark.parametrize(
    ("address", "number", "why"),
    [
        (b"\0nobody listens here", errno.ECONNREFUSED, "network namespace"),
        ("/nowhere/socket", errno.ENOENT, "nothing listens at /nowhere/socket"),
    ],
)
def test_a_daemon_out_of_reach_is_told_with_the_path(tmp_path, monkeypatch, address, number, why):
    """As in a container: the mount is there, and the address of its daemon leads nowhere."""
    monkeypatch.setattr("emberfs.connection.socket_address", lambda _path: address)
    for make in (open_client, RingClient):
        with pytest.raises(OSError, match=f"the mount daemon is out of reach .*{why}") as failed:
            make(tmp_path)
        assert (failed.value.errno, failed.value.filename) == (number, str(tmp_path))
    with connect_for([tmp_path / "f"])() as client:
        assert isinstance(client, PosixClient)


def test_one_client_reaches_the_files_of_one_cluster():
    made = connect_for(["ember://c@h:1/a/b", "ember://c@h:1/c"])
    assert (made.func, made.args) == (open_client, ("ember://c@h:1/",))
    for paths in (["ember://c@h:1/a", "ember://d@h:1/a"], ["ember://c@h:1/a", "/a"]):
        with pytest.raises(ValueError, match="one cluster"):
            connect_for(paths)


def test_a_million_files_are_not_all_looked_at(tmp_path):
    paths = [f"{tmp_path}/{i % 3}/{i}" for i in range(PATHS_LOOKED_AT_MAX * 10)]
    (looked_at,) = connect_for(paths).args
    assert len(looked_at) == 3


def on_mount(test):
    for mark in [*NEEDS_MOUNT, pytest.mark.slow]:
        test = mark(test)
    return test


def kind_of(paths):
    with connect_for(paths)() as client:
        return type(client)


@on_mount
def test_files_on_a_mount_are_reached_by_rings(mount_point, tmp_path):
    inside, outside = mount_point / "f", tmp_path / "f"
    for path in (inside, outside):
        path.write_bytes(b"x")
    assert kind_of([inside]) is kind_of([mount_point / "new", inside]) is RingClient
    assert kind_of([inside, outside]) is PosixClient
    (mount_point / "out").symlink_to(outside)
    (tmp_path / "in").symlink_to(inside)
    assert kind_of([mount_point / "out"]) is PosixClient
    assert kind_of([tmp_path / "in"]) is RingClient


@on_mount
def test_records_on_a_mount(mount_point):
    path = mount_point / "records.ffr"
    with RecordWriter(path, len(SAMPLES)) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    everything = range(len(SAMPLES))
    with RecordReader(path) as reader:
        assert isinstance(reader._client, RingClient)
        assert reader.read(everything) == SAMPLES
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert reader.read(everything) == SAMPLES
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pickle.loads(pickle.dumps(reader)) as copied:
            assert copied.read(everything) == SAMPLES
        reader.verify()
    with RecordReader(path, PosixClient) as reader:
        assert reader.read(everything) == SAMPLES


@on_mount
def test_folders_are_packed_and_published_on_a_mount(mount_point):
    run = CheckpointFolder(mount_point / "run", keep=2)
    for step in (1, 2, 3):
        partial_folder = make_partial_folder(run.path(step))
        Path(partial_folder, "f").write_bytes(b"%d" % step)
        publish_folder(partial_folder, run.path(step), overwrite=False)
    again = make_partial_folder(run.path(3))
    Path(again, "f").write_bytes(b"again")
    publish_folder(again, run.path(3), overwrite=True)
    make_partial_folder(run.path(2))
    assert (run.prune(), run.steps()) == ([1], [2, 3])
    assert sorted(os.listdir(run.base)) == ["step-000000002", "step-000000003"]
    assert pack_folder(run.base, mount_point / "run.ffr") == 2
    with PackedFolder(mount_point / "run.ffr") as packed:
        assert isinstance(packed.reader._client, RingClient)
        assert packed.read(["step-000000003/f", "step-000000002/f"]) == [b"again", b"2"]


@on_mount
@pytest.mark.timeout(600)  # importing torch takes seconds
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_tensors_on_a_mount(mount_point):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: pip install emberfs[torch]"
    )
    from emberfs.torch import checkpoint, datasets, saving  # noqa: PLC0415 - needs torch
    from torch.distributed import checkpoint as dcp  # noqa: PLC0415

    made = []

    def noting(paths, connect_for=connect_for):
        return lambda: made.append(client := connect_for(paths)()) or client

    with pytest.MonkeyPatch.context() as patch:
        for module in (checkpoint, datasets, saving):
            patch.setattr(module, "connect_for", noting)
        state = {"t": torch.arange(100_000), "empty": torch.zeros(0)}
        saving.save(state, mount_point / "t.pt")
        saving.save_tensors(state, mount_point / "t.safetensors")
        for load, name in ((saving.load, "t.pt"), (saving.load_tensors, "t.safetensors")):
            assert torch.equal(load(mount_point / name)["t"], state["t"])
        dcp.save(state, storage_writer=checkpoint.CheckpointWriter(mount_point / "one"))
        target = {"t": torch.zeros(100_000, dtype=torch.int64), "empty": torch.ones(0)}
        dcp.load(target, storage_reader=checkpoint.CheckpointReader(mount_point / "one"))
        assert torch.equal(target["t"], state["t"])
        array = datasets.ArrayDataset(mount_point / "one" / "rank-00000", (10,), torch.int64)
        files = datasets.FilesDataset([mount_point / "t.pt", mount_point / "t.safetensors"])
        assert len(array) >= 10_000
        assert [len(sample) for sample in files.__getitems__([0, 1])] == [
            os.path.getsize(path) for path in files.paths
        ]
        array._client.close()
        files._client.close()
    assert {type(client) for client in made} == {RingClient}
