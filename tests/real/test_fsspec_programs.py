"""What people use `ember://` with: pandas, pyarrow,
DuckDB and zarr read and write on a real cluster.
"""

import secrets

import pytest
from emberfs.clusters import disconnect
from emberfs.fsspec import EmberFileSystem

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 5000


@pytest.fixture(scope="module", autouse=True)
def connections(cluster):  # noqa: ARG001 - to be ended before it
    yield
    disconnect()


@pytest.fixture
def fs(cluster):
    return EmberFileSystem(cluster=cluster.directory)


@pytest.fixture
def folder(fs):
    made = f"/programs-{secrets.token_hex(4)}"
    fs.mkdir(made)
    yield made
    fs.rm(made, recursive=True)


@pytest.fixture
def options(cluster):
    return {"cluster": str(cluster.directory)}


def test_pandas(folder, options):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"n": range(ROWS), "text": [f"row {i}" for i in range(ROWS)]})
    table.to_csv(f"ember://{folder}/t.csv.gz", index=False, storage_options=options)
    table.to_parquet(f"ember://{folder}/t.parquet", storage_options=options)
    for read, name in ((pandas.read_csv, "t.csv.gz"), (pandas.read_parquet, "t.parquet")):
        found = read(f"ember://{folder}/{name}", storage_options=options)
        pandas.testing.assert_frame_equal(found, table)


# It leaves tar files open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_shards_of_webdataset(fs, folder, cluster, monkeypatch):
    """Tar files of samples, by fsspec and by path, shared out over their readers."""
    webdataset = pytest.importorskip("webdataset")
    images = {f"{n:04}": secrets.token_bytes(3000 + n) for n in range(40)}
    for shard in range(4):
        with fs.open(f"{folder}/train-{shard}.tar", "wb") as raw, webdataset.TarWriter(raw) as tar:
            for key in list(images)[shard::4]:
                tar.write({"__key__": key, "bin": images[key], "cls": int(key)})

    def opened(url, mode="rb", bufsize=8192, **_):
        return fs.open(url, mode, block_size=max(bufsize, 1 << 20))

    monkeypatch.setitem(webdataset.gopen_schemes, "ember", opened)
    for base in (f"ember://{folder}", f"{cluster.mount}{folder}"):
        shards = f"{base}/train-{{0..3}}.tar"
        found = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
        assert [sample["cls"] for sample in found] == [n for s in range(4) for n in range(s, 40, 4)]
        assert {sample["__key__"]: sample["bin"] for sample in found} == images
        shuffled = webdataset.WebDataset(shards, shardshuffle=4, seed=3).shuffle(16).to_tuple("cls")
        assert sorted(int(number) for (number,) in shuffled) == list(range(40))


def test_a_parquet_data_set_of_pyarrow(fs, folder):
    arrow = pytest.importorskip("pyarrow")
    data_set = pytest.importorskip("pyarrow.dataset")
    table = arrow.table({"n": range(ROWS), "part": [i % 3 for i in range(ROWS)]})
    data_set.write_dataset(
        table, f"{folder}/set", format="parquet", partitioning=["part"], filesystem=fs
    )
    assert len(fs.find(f"{folder}/set")) == 3
    found = data_set.dataset(f"{folder}/set", partitioning=["part"], filesystem=fs)
    wanted = found.to_table(filter=data_set.field("part") == 1, columns=["n"])
    assert sorted(wanted["n"].to_pylist()) == list(range(1, ROWS, 3))


def test_duckdb(fs, folder):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        path = f"ember://{folder}/t.parquet"
        connection.execute(f"copy (select range as n from range({ROWS})) to '{path}'")
        (total,) = connection.execute(f"select sum(n) from '{path}'").fetchone()
        assert total == sum(range(ROWS))
        (count,) = connection.execute(
            f"select count(*) from 'ember://{folder}/*.parquet'"
        ).fetchone()
        assert count == ROWS


def test_zarr(folder, options):
    zarr, numpy = pytest.importorskip("zarr"), pytest.importorskip("numpy")
    url = f"ember://{folder}/array.zarr"
    values = numpy.arange(10_000).reshape(100, 100)
    written = zarr.create_array(
        url, shape=values.shape, chunks=(30, 40), dtype=values.dtype, storage_options=options
    )
    written[:] = values
    found = zarr.open_array(url, mode="r", storage_options=options)
    assert (found[25:65, 35:85] == values[25:65, 35:85]).all()


def test_numpy_and_the_standard_library(fs, folder):
    """What takes an open file, and seeks in it while writing."""
    numpy = pytest.importorskip("numpy")
    values = numpy.arange(100_000)
    with fs.open(f"{folder}/a.npz", "wb") as file:
        numpy.savez_compressed(file, values=values)
    with fs.open(f"{folder}/a.npz", "rb") as file:
        assert (numpy.load(file)["values"] == values).all()
