"""Checkpoints: what is saved is loaded bit by bit, on as many ranks as one likes, or is refused;
and never half there.
"""

import errno
import json
import os
import struct
from pathlib import Path
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install emberfs[torch]")

import torch.distributed.checkpoint as dcp
from emberfs import in_order
from emberfs.posix import PosixClient
from emberfs.torch import checkpoint
from emberfs.torch.checkpoint import CheckpointReader, CheckpointWriter, DamagedCheckpointError
from emberfs.torch.saving import load, load_tensors, save, save_tensors
from torch.distributed.checkpoint.api import CheckpointException

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # importing torch takes seconds
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2]


def tensors(fill=None):
    """One tensor of each type and of several shapes; `fill`: all of that value."""
    made = {}
    generator = torch.Generator().manual_seed(1)
    for dtype in TYPES:
        for shape in ((), (0, 3), (7,), (33, 65)):
            values = torch.randint(0, 2, shape, generator=generator)
            made[f"{dtype}{shape}"] = (values if fill is None else torch.full(shape, fill)).to(
                dtype
            )
    return made


def same(one, other):
    def bits(tensor):
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return one.keys() == other.keys() and all(
        one[n].dtype == other[n].dtype
        and one[n].shape == other[n].shape
        and torch.equal(bits(one[n]), bits(other[n]))
        for n in one
    )


def damage(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


class RecordingClient(PosixClient):
    """Notes where reads land."""

    addresses: ClassVar = []

    def read(self, transfers):
        for transfer in transfers:
            if len(transfer.buffer):
                array = torch.frombuffer(transfer.buffer, dtype=torch.uint8)
                self.addresses.append(array.data_ptr())
        return super().read(transfers)


def test_everything_comes_back_and_lands_in_the_targets_own_memory(tmp_path):
    state = {"tensors": tensors(), "text": "some", "step": 7, "list": [1, {"x": (2, 3)}]}
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path / "one"))
    assert sorted(os.listdir(tmp_path)) == ["one"]
    assert sorted(os.listdir(tmp_path / "one")) == [".metadata", "rank-00000"]
    target = {"tensors": tensors(fill=0), "text": "", "step": 0, "list": [0, {"x": (0, 0)}]}
    places = {t.data_ptr() for t in target["tensors"].values() if t.numel()}
    RecordingClient.addresses.clear()
    dcp.load(target, storage_reader=CheckpointReader(tmp_path / "one", connect=RecordingClient))
    assert same(target["tensors"], state["tensors"])
    assert {name: target[name] for name in ("text", "step", "list")} == {
        name: state[name] for name in ("text", "step", "list")
    }
    assert places <= set(RecordingClient.addresses)


class CountingClient(PosixClient):
    """Notes what is written at a time."""

    sizes: ClassVar = []

    def write(self, transfers):
        self.sizes.extend(len(transfer.buffer) for transfer in transfers)
        super().write(transfers)


@pytest.mark.parametrize("kind", ["distributed", "pickled", "safetensors"])
def test_small_tensors_go_together(tmp_path, kind):
    state = {f"layer-{n}.bias": torch.full((n,), float(n)) for n in range(500)}
    CountingClient.sizes.clear()
    if kind == "distributed":
        dcp.save(state, storage_writer=CheckpointWriter(tmp_path / "one", connect=CountingClient))
        assert len(CountingClient.sizes) == 2, "of the tensors, and of what is known of them"
        return
    path = tmp_path / "one"
    (save if kind == "pickled" else save_tensors)(state, path, connect=CountingClient)
    assert [path.stat().st_size] == CountingClient.sizes
    assert same((load if kind == "pickled" else load_tensors)(path), state)


def test_targets_that_are_views_are_filled_too(tmp_path):
    matrix = torch.arange(12.0).view(3, 4)
    dcp.save({"m": matrix.t()}, storage_writer=CheckpointWriter(tmp_path / "one"))
    target = torch.zeros(3, 4)
    dcp.load({"m": target.t()}, storage_reader=CheckpointReader(tmp_path / "one"))
    assert torch.equal(target, matrix)


def seen_otherwise():
    """Tensors whose values are not their bytes:
    torch notes that they are conjugated or negated, and changes nothing.
    """
    values = torch.arange(6, dtype=torch.float32) + 1
    imaginary = torch.complex(values, values)
    return {"conjugated": imaginary.conj(), "negated": imaginary.conj().imag, "plain": values}


def test_tensors_that_are_seen_conjugated_or_negated(tmp_path):
    state = seen_otherwise()
    assert state["conjugated"].is_conj()
    assert state["negated"].is_neg()
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path / "one"))
    save_tensors(state, tmp_path / "two")
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for loaded in (target, seen_otherwise()):
        for tensor in loaded.values():
            tensor.zero_()
        dcp.load(loaded, storage_reader=CheckpointReader(tmp_path / "one"))
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in load_tensors(tmp_path / "two").items()
    )


def test_asynchronous_saves_see_the_state_as_it_was(tmp_path):
    state = {"t": torch.ones(1000)}
    saved = dcp.async_save(state, storage_writer=CheckpointWriter(), checkpoint_id=tmp_path / "one")
    state["t"].zero_()
    saved.result()
    target = {"t": torch.zeros(1000)}
    dcp.load(target, storage_reader=CheckpointReader(), checkpoint_id=tmp_path / "one")
    assert torch.equal(target["t"], torch.ones(1000))


def test_damage_is_refused_with_its_place(tmp_path):
    path = tmp_path / "one"
    dcp.save({"t": torch.ones(100), "n": 3}, storage_writer=CheckpointWriter(path))
    good = (path / "rank-00000").read_bytes()

    def loading():
        with pytest.raises((CheckpointException, DamagedCheckpointError)) as failed:
            dcp.load({"t": torch.zeros(100), "n": 0}, storage_reader=CheckpointReader(path))
        return str(failed.value)

    for at in range(0, 400, 37):
        damage(path / "rank-00000", at)
        assert "go back to an older checkpoint" in loading()
        (path / "rank-00000").write_bytes(good)
    (path / "rank-00000").write_bytes(good[:200])
    assert "are there" in loading()
    (path / "rank-00000").write_bytes(good)
    damage(path / ".metadata")
    assert ".metadata: damaged" in loading()
    (path / ".metadata").write_bytes(b"something else")
    assert "not written by emberfs" in loading()


def test_items_that_are_read_in_parts(tmp_path, monkeypatch):
    """What is in place, beside its place and no tensor, each of several parts;
    damage in any of them is found.
    """
    monkeypatch.setattr(in_order, "BATCH_BYTES", 1000)
    state = {"t": torch.arange(2000.0), "m": torch.arange(900.0).view(30, 30), "l": "x" * 5000}
    path = tmp_path / "one"
    dcp.save(state, storage_writer=CheckpointWriter(path))
    save(state, tmp_path / "two")
    save_tensors({"t": state["t"]}, tmp_path / "three")

    def loaded():
        target = {"t": torch.zeros(2000), "m": torch.zeros(30, 30).t(), "l": ""}
        dcp.load(target, storage_reader=CheckpointReader(path))
        return target

    target = loaded()
    assert torch.equal(target["t"], state["t"])
    assert torch.equal(target["m"], state["m"])
    assert target["l"] == state["l"]
    assert torch.equal(load(tmp_path / "two")["t"], state["t"])
    assert torch.equal(load_tensors(tmp_path / "three")["t"], state["t"])
    good = (path / "rank-00000").read_bytes()
    for at in range(13, len(good), 900):
        damage(path / "rank-00000", at)
        with pytest.raises(CheckpointException, match="go back to an older checkpoint"):
            loaded()
        damage(path / "rank-00000", at)
    os.truncate(path / "rank-00000", len(good) - 2500)
    with pytest.raises(CheckpointException, match="are there"):
        loaded()


def test_a_checkpoint_is_never_half_there_and_never_silently_replaced(tmp_path):
    path = tmp_path / "one"

    class Failing(CheckpointWriter):
        def write_data(self, plan, planner):
            super().write_data(plan, planner)
            raise OSError("power")

    with pytest.raises(CheckpointException, match="power"):
        dcp.save({"t": torch.ones(10)}, storage_writer=Failing(path))
    assert not path.exists()
    assert len(os.listdir(tmp_path)) == 1
    dcp.save({"t": torch.ones(10)}, storage_writer=CheckpointWriter(path))
    assert os.listdir(tmp_path) == ["one"]
    with pytest.raises(CheckpointException, match="is there already"):
        dcp.save({"t": torch.zeros(10)}, storage_writer=CheckpointWriter(path))
    dcp.save({"t": torch.zeros(10)}, storage_writer=CheckpointWriter(path, overwrite=True))
    target = {"t": torch.ones(10)}
    dcp.load(target, storage_reader=CheckpointReader(path))
    assert not target["t"].any()
    assert os.listdir(tmp_path) == ["one"]


@pytest.mark.parametrize("is_cut", [True, False])
def test_nothing_is_published_of_which_the_coordinator_sees_only_a_part(tmp_path, is_cut):
    """As when a rank has written to a disk of its own machine."""

    class Elsewhere(CheckpointWriter):
        def finish(self, metadata, results):
            path = Path(self._partial, "rank-00000")
            if is_cut:
                os.truncate(path, path.stat().st_size - 1)
            else:
                path.unlink()
            super().finish(metadata, results)

    with pytest.raises(CheckpointException, match="same file system"):
        dcp.save({"t": torch.ones(10)}, storage_writer=Elsewhere(tmp_path / "one"))
    assert not (tmp_path / "one").exists()


def test_what_filled_the_disk_does_not_stay_there(tmp_path):
    """A job that goes on without this checkpoint must be able to write the next one."""

    class Full(PosixClient):
        def write(self, transfers):
            super().write(transfers)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), transfers[0].file.path)

    with pytest.raises(CheckpointException, match="No space left"):
        dcp.save(
            {"a": torch.zeros(3 << 20)},
            storage_writer=CheckpointWriter(tmp_path / "c", connect=Full),
        )
    (partial,) = tmp_path.iterdir()
    assert not list(partial.iterdir())


def test_what_another_rank_has_written_stays(tmp_path):
    class Late(PosixClient):
        def open(self, path, mode="r"):
            if mode == "x":
                Path(path).write_bytes(b"another's")
            return super().open(path, mode)

    with pytest.raises(CheckpointException, match="File exists"):
        dcp.save(
            {"a": torch.zeros(10)}, storage_writer=CheckpointWriter(tmp_path / "c", connect=Late)
        )
    (partial,) = tmp_path.iterdir()
    assert [one.read_bytes() for one in partial.iterdir()] == [b"another's"]


def test_plain_saves_are_read_by_torch_and_its_saves_by_us(tmp_path):
    state = {"tensors": tensors(), "step": 3}
    save(state, tmp_path / "ours.pt")
    torch.save(state, tmp_path / "torchs.pt")
    for name in ("ours.pt", "torchs.pt"):
        assert same(torch.load(tmp_path / name)["tensors"], state["tensors"])
        assert same(load(tmp_path / name)["tensors"], state["tensors"])
    large = {"t": torch.arange(4_500_000, dtype=torch.int64)}  # more than one buffer
    save(large, tmp_path / "ours.pt")
    assert torch.equal(load(tmp_path / "ours.pt")["t"], large["t"])
    assert sorted(os.listdir(tmp_path)) == ["ours.pt", "torchs.pt"]


def test_a_plain_save_that_is_damaged_is_refused(tmp_path):
    path = tmp_path / "f.pt"
    save({"t": torch.ones(100)}, path)
    size = path.stat().st_size
    for at in [*range(0, size, 97), size - 40, size - 1]:
        damage(path, at)
        with pytest.raises(DamagedCheckpointError, match=r"f\.pt: damaged"):
            load(path)
        damage(path, at)
    load(path)


def test_a_save_whose_folder_another_one_has_removed_says_so(tmp_path, monkeypatch):
    gone = tmp_path / "one.partial-0"
    monkeypatch.setattr(checkpoint, "make_partial_folder", lambda _: str(gone))
    with pytest.raises(CheckpointException, match="another one of the same checkpoint has begun"):
        dcp.save({"a": torch.ones(1)}, storage_writer=CheckpointWriter(tmp_path / "one"))
    assert not list(tmp_path.iterdir())


def test_a_url_is_not_taken_for_a_folder_of_this_one(tmp_path, monkeypatch):
    """`Path` makes `ember:/run` of it, below the current folder:
    a checkpoint that nobody would find.
    """
    monkeypatch.chdir(tmp_path)
    url = "ember:///run/step-1"
    for kind in (CheckpointWriter, CheckpointReader):
        with pytest.raises(ValueError, match=f"{url}: is written under a path of a mount"):
            kind(url)
        with pytest.raises(ValueError, match=f"{url}: is written under a path of a mount"):
            kind("elsewhere").reset(url)
        with pytest.raises(ValueError, match="ember:/run/step-1: is written under a path"):
            kind(Path(url))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", bytes(1000), b"PK\3\4junk", b"\x80\2abc", b"N.", b"x" * 300],
    ids=["empty", "text", "zeros", "zip", "pickle", "none", "letters"],
)
def test_what_is_no_save_of_torch_is_called_that(tmp_path, content):
    """torch.load shows a KeyError, or advises to trust the file."""
    (tmp_path / "f.pt").write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"f\.pt: "):
        load(tmp_path / "f.pt")


def test_a_save_that_was_cut_is_damaged(tmp_path):
    save({"a": torch.ones(100)}, tmp_path / "f.pt")
    os.truncate(tmp_path / "f.pt", (tmp_path / "f.pt").stat().st_size // 2)
    with pytest.raises(DamagedCheckpointError, match="its end is missing or damaged"):
        load(tmp_path / "f.pt")


def test_older_saves_of_torch_are_read(tmp_path):
    for protocol in (2, 4):
        options = {"_use_new_zipfile_serialization": False, "pickle_protocol": protocol}
        torch.save({"a": torch.arange(3)}, tmp_path / "f.pt", **options)
        assert load(tmp_path / "f.pt", weights_only=protocol == 2)["a"].tolist() == [0, 1, 2]


def test_errors_of_saving_name_what_the_caller_knows(tmp_path):
    with pytest.raises(FileNotFoundError) as failed:
        save({}, tmp_path / "no" / "f.pt")
    assert failed.value.filename == f"{tmp_path}/no/f.pt"
    with pytest.raises(TypeError, match="inner: is dict, not a tensor"):
        save_tensors({"inner": {"w": torch.ones(1)}, "w": torch.ones(1)}, tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_old_file(tmp_path):
    save({"t": torch.ones(3)}, tmp_path / "f.pt")
    with pytest.raises(Exception, match="pickle"):
        save({"t": lambda: 1}, tmp_path / "f.pt")
    assert torch.equal(load(tmp_path / "f.pt")["t"], torch.ones(3))
    assert os.listdir(tmp_path) == ["f.pt"]


def test_safetensors(tmp_path):
    state = tensors()
    save_tensors(state, tmp_path / "f.safetensors", {"step": "3"})
    assert same(load_tensors(tmp_path / "f.safetensors"), state)
    good = (tmp_path / "f.safetensors").read_bytes()
    for at in [*range(0, 2000, 201), *range(2000, len(good), 2003)]:
        damage(tmp_path / "f.safetensors", at)
        with pytest.raises(DamagedCheckpointError, match=r"f\.safetensors"):
            load_tensors(tmp_path / "f.safetensors")
        (tmp_path / "f.safetensors").write_bytes(good)
    for size in (0, 7, 8, 100, len(good) - 1):
        (tmp_path / "f.safetensors").write_bytes(good[:size])
        with pytest.raises(DamagedCheckpointError, match=r"f\.safetensors"):
            load_tensors(tmp_path / "f.safetensors")
    with pytest.raises(ValueError, match="complex128"):
        save_tensors({"t": torch.zeros(1, dtype=torch.complex128)}, tmp_path / "f.safetensors")
    with pytest.raises(TypeError, match="metadata 'step': 3"):
        save_tensors(state, tmp_path / "f.safetensors", {"step": 3})
    for kind, empty in (
        ("meta", torch.empty(3, device="meta")),
        ("sparse", torch.eye(3).to_sparse()),
    ):
        with pytest.raises(ValueError, match=f"t: a {kind}.* has no bytes"):
            save_tensors({"t": empty}, tmp_path / "f.safetensors")
    with pytest.raises(ValueError, match="no tensor of this name"):
        save_tensors({"__metadata__": torch.zeros(1)}, tmp_path / "f.safetensors")
    # Of the file that these were loaded from.
    stale = {"emberfs-xxh3": "0123456789abcdef", "step": "3"}
    save_tensors({"0" * 16: torch.ones(1)}, tmp_path / "f.safetensors", stale)
    assert load_tensors(tmp_path / "f.safetensors")["0" * 16] == 1


ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        {"t": None},
        {"t": []},
        {"t": {}},
        {"t": ENTRY | {"dtype": "X"}},
        {"t": ENTRY | {"shape": [-4]}},
        {"t": ENTRY | {"shape": [2**50, 2**50]}},
        {"t": ENTRY | {"shape": "4"}},
        {"t": ENTRY | {"shape": [4.0]}},
        {"t": ENTRY | {"shape": [-2, -2]}},
        {"t": ENTRY | {"data_offsets": [0, 5]}},
        {"t": ENTRY | {"data_offsets": [-4, 0]}},
        {"t": ENTRY | {"data_offsets": [4, 8]}},
        {"t": ENTRY | {"data_offsets": ["0", "4"]}},
        {"t": ENTRY | {"data_offsets": [0]}},
        {"t": ENTRY | {"shape": [2**40], "data_offsets": [0, 2**40]}},
        {"__metadata__": [], "t": ENTRY},
        {"__metadata__": {"emberfs-xxh3": 7}, "t": ENTRY},
        {"__metadata__": {"emberfs-xxh3": ""}, "t": ENTRY},
        [],
        None,
        5,
    ],
)
def test_safetensors_whose_headers_lie(tmp_path, header):
    text = json.dumps(header).encode()
    (tmp_path / "f").write_bytes(struct.pack("<Q", len(text)) + text + b"1234")
    with pytest.raises(DamagedCheckpointError, match="damaged"):
        load_tensors(tmp_path / "f")


def test_safetensors_as_its_own_library_sees_them(tmp_path):
    theirs = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    state = {name: tensor for name, tensor in tensors().items() if "complex" not in name}
    save_tensors(state, tmp_path / "ours", {"step": "3"})
    assert same(theirs.load_file(tmp_path / "ours"), state)
    theirs.save_file(state, tmp_path / "theirs")
    assert same(load_tensors(tmp_path / "theirs"), state)
