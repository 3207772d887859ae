"""Data sets and the resumable loader in real DataLoaders:
every start method of workers, exact resume.
"""

import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install emberfs[torch]")

from emberfs.ffrecord import DamagedRecordError, RecordWriter
from emberfs.pack import pack_folder
from emberfs.posix import PosixClient
from emberfs.torch.datasets import (
    ArrayDataset,
    FilesDataset,
    PackedDataset,
    RecordDataset,
    RecordStream,
)
from emberfs.torch.loader import BlockSampler, ResumableLoader
from emberfs.torch.memory import stack_neighbours
from torch.utils.data import DataLoader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # importing torch takes seconds

COUNT = 103


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # a spawned worker imports this module


class CountingClient(PosixClient):
    """Counts batches of reads."""

    batches = 0

    def read(self, transfers):
        CountingClient.batches += 1
        return super().read(transfers)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two files; sample i holds i as a number, and bytes up to a length of its own."""
    folder = tmp_path_factory.mktemp("records")
    for name, numbers in (("a", range(60)), ("b", range(60, COUNT))):
        with RecordWriter(folder / f"{name}.ffr", len(numbers)) as writer:
            for number in numbers:
                writer.write(number.to_bytes(8, "little") + bytes(number))
    return folder


def number_of(sample):
    return int(sample[:8].view(torch.int64))


def as_list(samples):
    return list(samples)


def test_a_batch_is_one_read_into_one_buffer(records):
    dataset = RecordDataset(records, connect=CountingClient)
    assert len(dataset) == COUNT
    CountingClient.batches = 0
    samples = dataset.__getitems__([5, 102, 60, 0])
    assert CountingClient.batches == 1
    assert [number_of(s) for s in samples] == [5, 102, 60, 0]
    assert [len(s) for s in samples] == [13, 110, 68, 8]
    assert len({s.untyped_storage().data_ptr() for s in samples}) == 1
    assert number_of(dataset[7]) == 7
    with pytest.raises(IndexError):
        dataset[COUNT]


@pytest.mark.parametrize("method", ["none", "fork", "spawn", "persistent"])
def test_workers_of_every_start_method(records, method):
    dataset = RecordDataset(records, decode=number_of)
    options = {} if method == "none" else {
        "num_workers": 1 if method == "spawn" else 2,  # each imports torch
        "multiprocessing_context": "fork" if method == "persistent" else method,
        "persistent_workers": method in {"persistent", "spawn"},
    }  # fmt: skip
    loader = DataLoader(dataset, batch_size=10, shuffle=True, **options)
    for _ in range(2):
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(COUNT))


class Labelled(PackedDataset):
    """As the guide has it."""

    def __getitems__(self, indices):
        samples = super().__getitems__(indices)
        return [
            (sample, self.names[index].split("/")[0])
            for index, sample in zip(indices, samples, strict=True)
        ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_files_of_a_packed_folder_are_samples_and_its_index_is_none(tmp_path, method):
    for number in range(5):
        (tmp_path / "folder" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / f"{number % 2}" / f"{number}").write_bytes(bytes([number]) * 3)
    pack_folder(tmp_path / "folder", tmp_path / "f.ffr")
    dataset = PackedDataset(tmp_path / "f.ffr")
    assert len(RecordDataset(tmp_path / "f.ffr")) == 6
    assert dataset.names == ["0/0", "0/2", "0/4", "1/1", "1/3"]
    assert repr(dataset) == f"<PackedDataset of 5 files: '{tmp_path}/f.ffr'>"
    assert dataset[3].tolist() == [1, 1, 1]
    with pytest.raises(IndexError, match=r"no sample 5: .*has 5"):
        dataset[5]
    with pytest.raises(TypeError, match=r"slice.0, 2, None. in place of a sample's number"):
        dataset[0:2]
    labelled = Labelled(tmp_path / "f.ffr")
    assert (labelled[2][1], labelled[3][1]) == ("0", "1")
    sampler = BlockSampler(len(dataset), batch_size=2)
    loader = ResumableLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=1,
        collate_fn=as_list,
        multiprocessing_context=method,
    )
    found = sorted(sample.tolist() for batch in loader for sample in batch)
    assert found == [[number] * 3 for number in range(5)]
    with RecordWriter(tmp_path / "other.ffr", 0):
        pass
    with pytest.raises(DamagedRecordError):
        PackedDataset(tmp_path / "other.ffr")


def test_what_is_shown_of_data_sets(records, tmp_path):
    (tmp_path / "f").write_bytes(bytes(8))
    files = f"<RecordReader of {COUNT} samples: '{records}/a.ffr' and 1 more>"
    assert repr(RecordDataset(records)) == f"<RecordDataset over {files}>"
    assert repr(RecordStream(records)) == f"<RecordStream of rank 0 of 1 over {files}>"
    assert repr(FilesDataset(tmp_path)) == f"<FilesDataset of 1 files: '{tmp_path}/f' ...>"
    array = ArrayDataset(tmp_path / "f", (2,), torch.int32)
    assert repr(array) == f"<ArrayDataset of 1 samples of (2,) torch.int32: '{tmp_path}/f'>"
    assert repr(BlockSampler(9, batch_size=2)).startswith("<BlockSampler of rank 0: samples=9, ")


def test_files_are_samples(tmp_path):
    contents = [random.Random(i).randbytes(i * 100) for i in range(20)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number:02}").write_bytes(content)
    dataset = FilesDataset(tmp_path)
    assert [bytes(s.numpy()) for s in dataset.__getitems__(range(20))] == contents
    assert bytes(dataset[3].numpy()) == contents[3]
    loader = DataLoader(dataset, batch_size=7, num_workers=2, collate_fn=as_list)
    assert [bytes(s.numpy()) for batch in loader for s in batch] == contents
    (tmp_path / "05").unlink()
    with pytest.raises(FileNotFoundError, match="05"):
        dataset.__getitems__([4, 5])


def test_samples_lie_as_in_any_other_batch_when_they_happen_to_be_of_one_size(tmp_path):
    """Of two that had it by chance the second lay anywhere,
    and a view of its head as a number failed.
    """
    sizes = [11, 11, 8, 27, 27]
    with RecordWriter(tmp_path / "a.ffr", len(sizes)) as writer:
        for number, size in enumerate(sizes):
            writer.write(number.to_bytes(8, "little") + bytes(size - 8))
            (tmp_path / f"{number}.bin").write_bytes(number.to_bytes(8, "little") + bytes(size - 8))
    paths = [tmp_path / f"{number}.bin" for number in range(len(sizes))]
    for dataset in (
        RecordDataset(tmp_path / "a.ffr", number_of),
        FilesDataset(paths, number_of),
    ):
        for batch in ([0, 1], [3, 4], [0, 1, 2], [4, 3, 3]):
            assert dataset.__getitems__(batch) == batch


@pytest.mark.parametrize("size", [11, 32])
def test_a_data_set_of_one_size_becomes_batches_without_a_copy(tmp_path, size):
    for name in ("a", "b"):
        with RecordWriter(tmp_path / f"{name}.ffr", 4) as writer:
            for number in range(4):
                writer.write(bytes([number]) * size)
    samples = RecordDataset(tmp_path).__getitems__([7, 0, 2])
    batch = stack_neighbours(samples)
    assert batch.tolist() == [[number] * size for number in (3, 0, 2)]
    assert batch.data_ptr() == samples[0].data_ptr()


def test_no_files_are_no_data_set(tmp_path):
    """A pattern that fits nothing was an epoch of nothing."""
    for made in (RecordDataset, FilesDataset, RecordStream):
        with pytest.raises(ValueError, match="a data set of no files"):
            made([])
    with pytest.raises(ValueError, match=f"a data set of no files: {tmp_path}"):
        FilesDataset(tmp_path)
    with pytest.raises(FileNotFoundError) as failed:
        RecordDataset(tmp_path)
    assert failed.value.filename == str(tmp_path)


def test_equal_pieces_become_a_batch_without_a_copy(tmp_path):
    numbers = torch.arange(6 * 10 + 4, dtype=torch.int32)
    (tmp_path / "f").write_bytes(b"head" + numbers.numpy().tobytes())
    dataset = ArrayDataset(tmp_path / "f", (2, 3), torch.int32, offset=4)
    assert len(dataset) == 10
    samples = dataset.__getitems__([9, 0, 4])
    batch = stack_neighbours(samples)
    assert batch.tolist() == [numbers[i * 6 : i * 6 + 6].view(2, 3).tolist() for i in (9, 0, 4)]
    assert batch.data_ptr() == samples[0].data_ptr()
    apart = stack_neighbours([samples[2], samples[0]])
    assert apart.tolist() == [samples[2].tolist(), samples[0].tolist()]
    for workers in (0, 1):
        loader = DataLoader(
            dataset, batch_size=4, num_workers=workers, collate_fn=stack_neighbours,
        )  # fmt: skip
        assert torch.cat(list(loader)).flatten().tolist() == numbers[:60].tolist()
    with pytest.raises(IndexError):
        dataset[10]
    for wrong in ({"shape": (0,)}, {"shape": (1,), "offset": -4}):
        with pytest.raises(ValueError, match="samples of"):
            ArrayDataset(tmp_path / "f", dtype=torch.int32, **wrong)
    (tmp_path / "f").write_bytes(b"short")
    with pytest.raises(EOFError, match="shorter"):
        dataset[3]


def test_a_damaged_sample_ends_the_loader_with_its_place(tmp_path):
    with RecordWriter(tmp_path / "f.ffr", 3) as writer:
        for _ in range(3):
            writer.write(b"12345678")
    content = (tmp_path / "f.ffr").read_bytes()
    (tmp_path / "f.ffr").write_bytes(content[:-1] + b"!")
    loader = DataLoader(RecordDataset(tmp_path), batch_size=3)
    with pytest.raises(DamagedRecordError, match=r"f\.ffr: CRC-32 of the 8 bytes") as failed:
        list(loader)
    # From a worker it comes like this; a loader whose worker fails takes torch five seconds to end.
    assert str(type(failed.value)(str(failed.value))) == str(failed.value)


def stream(records, **options):
    return RecordStream(records, number_of, block=4, window=3, seed=5, **options)


def test_ranks_and_workers_share_an_epoch(records):
    seen = Counter()
    for rank in range(2):
        dataset = stream(records, rank=rank, world=2)
        loader = DataLoader(dataset, batch_size=8, num_workers=2)
        numbers = [number for batch in loader for number in batch.tolist()]
        assert len(numbers) == 2 * (COUNT // 4)
        assert numbers != sorted(numbers)
        seen.update(numbers)
    assert set(seen.values()) == {1}


def make_loader(kind, records, workers, **options):
    if kind == "stream":
        return ResumableLoader(stream(records), batch_size=8, num_workers=workers, **options)
    dataset = RecordDataset(records, number_of)
    sampler = BlockSampler(len(dataset), 8, block=4, window=3, seed=5)
    return ResumableLoader(dataset, batch_sampler=sampler, num_workers=workers, **options)


def epochs(loader, count):
    return [[batch.tolist() for batch in loader] for _ in range(count)]


@pytest.mark.parametrize("kind", ["stream", "sampler"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_at_exactly_the_next_batch(kind, workers, records):
    expected = epochs(make_loader(kind, records, workers), 2)
    assert expected[0] != expected[1]
    each = len(expected[0])
    flat = [batch for epoch in expected for batch in epoch]
    for stop in (5, each + 3) if workers else (1, 5, each, each + 3):  # each starts many workers
        loader = make_loader(kind, records, workers)
        taken = []
        while len(taken) < stop:
            for batch in loader:
                taken.append(batch.tolist())
                if len(taken) == stop:
                    state = loader.state_dict()
                    break
        resumed = make_loader(kind, records, workers)
        resumed.load_state_dict(state)
        taken += [batch.tolist() for batch in resumed]
        if stop <= each:
            taken += [batch.tolist() for batch in resumed]
        assert taken == flat


@pytest.mark.parametrize("kind", ["stream", "sampler"])
def test_persistent_workers_have_the_same_epochs(kind, records):
    plain = epochs(make_loader(kind, records, 0 if kind == "sampler" else 2), 2)
    loader = make_loader(kind, records, 2, persistent_workers=True)
    assert epochs(loader, 2) == plain


def test_a_sampler_resumes_with_another_number_of_workers(records):
    loader = make_loader("sampler", records, 2)
    expected = epochs(make_loader("sampler", records, 0), 1)[0]
    batches = iter(loader)
    first = [next(batches).tolist() for _ in range(4)]
    resumed = make_loader("sampler", records, 0)
    resumed.load_state_dict(loader.state_dict())
    assert first + epochs(resumed, 1)[0] == expected


def test_a_state_of_another_shape_is_refused(records, tmp_path):
    state = make_loader("stream", records, 2).state_dict()
    with pytest.raises(ValueError, match="'workers': 2"):
        make_loader("stream", records, 1).load_state_dict(state)
    with RecordWriter(tmp_path / "other.ffr", 1) as writer:
        writer.write(bytes(8))
    for other in ({"seed": 6}, {"block": 5}, {"window": 1}, {"rank": 0, "world": 2}):
        changed = RecordStream(records, **{"block": 4, "window": 3, "seed": 5} | other)
        with pytest.raises(ValueError, match="was saved with"):
            ResumableLoader(changed, batch_size=8, num_workers=2).load_state_dict(state)
    state = make_loader("sampler", records, 0).state_dict()
    with pytest.raises(ValueError, match=f"'samples': {COUNT}.*'samples': 1"):
        make_loader("sampler", tmp_path, 0).load_state_dict(state)
    with pytest.raises(TypeError, match="BlockSampler"):
        ResumableLoader(RecordDataset(records), batch_size=4)


@pytest.mark.parametrize("rank", [-1, 2, 5])
def test_a_rank_that_does_not_exist_is_refused(records, rank):
    for make in (partial(BlockSampler, COUNT, 8), partial(RecordStream, records)):
        with pytest.raises(ValueError, match=f"rank {rank} of 2"):
            make(rank=rank, world=2)


def test_no_share_is_silently_empty(tmp_path):
    """A program that trains for a number of steps, epoch after epoch, would never end."""
    with RecordWriter(tmp_path / "few.ffr", 3) as writer:
        for sample in (b"1", b"2", b"3"):
            writer.write(sample)
    for make in (partial(BlockSampler, 3, 8), partial(RecordStream, tmp_path)):
        with pytest.raises(ValueError, match="3 samples for 4 ranks"):
            make(rank=0, world=4)
        assert list(make(rank=2, world=3))
    stream = RecordStream(tmp_path, rank=0, world=2)
    assert len(list(DataLoader(stream, batch_size=1, num_workers=1))) == 1
    with pytest.raises(ValueError, match="3 samples for 4 ranks, or workers"):
        list(DataLoader(stream, batch_size=1, num_workers=2))
    assert list(BlockSampler(0, 8, rank=0, world=4)) == []


def test_a_sampler_drops_what_it_is_told_to():
    sampler = BlockSampler(10, 4, seed=None, rank=0, world=1)
    assert (list(sampler), len(sampler)) == ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 3)
    sampler = BlockSampler(10, 4, seed=None, rank=0, world=1, drop_last=True)
    assert (list(sampler), len(sampler)) == ([[0, 1, 2, 3], [4, 5, 6, 7]], 2)
