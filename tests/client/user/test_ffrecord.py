"""FFRecord files and packed folders: the format byte by byte, damage, reading across processes."""

import multiprocessing
import os
import pickle
import random
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import pytest
from emberfs.ffrecord import DamagedRecordError, RecordReader, RecordWriter
from emberfs.pack import (
    MAGIC,
    PICKLE_MAGIC,
    PackedFolder,
    files_below,
    main,
    pack_folder,
    unpack,
)

SAMPLES = [b"first", b"", b"third sample", bytes(1000)]


def write(path, samples=SAMPLES):
    with RecordWriter(path, len(samples)) as writer:
        for sample in samples:
            writer.write(sample)
    return path


def by_the_format(samples):
    """What the file must be, from the description of the format alone."""
    begin = 12 + 12 * len(samples)
    offsets = [begin + sum(map(len, samples[:i])) for i in range(len(samples))]
    rest = struct.pack("<q", len(samples))
    rest += struct.pack(f"<{len(samples)}I", *map(zlib.crc32, samples))
    rest += struct.pack(f"<{len(samples)}q", *offsets)
    return struct.pack("<I", zlib.crc32(rest)) + rest + b"".join(samples)


@pytest.mark.parametrize("samples", [SAMPLES, [], [b""], [b"x"] * 3])
def test_the_file_is_as_the_format_says(tmp_path, samples):
    path = write(tmp_path / "f.ffr", samples)
    assert path.read_bytes() == by_the_format(samples)
    with RecordReader(path) as reader:
        assert len(reader) == len(samples)
        assert [bytes(s) for s in reader.read(range(len(samples)))] == samples
        reader.verify()


def test_samples_come_in_the_order_asked_for_from_several_files(tmp_path):
    source = random.Random(1)
    parts = [[source.randbytes(source.randrange(3000)) for _ in range(n)] for n in (7, 0, 30)]
    for number, part in enumerate(parts):
        write(tmp_path / f"{number}.ffr", part)
    (tmp_path / "readme.txt").write_text("not a record")
    samples = [sample for part in parts for sample in part]
    wanted = [source.randrange(37) for _ in range(100)]
    for paths in (tmp_path, str(tmp_path), [tmp_path / f"{i}.ffr" for i in range(3)]):
        with RecordReader(paths) as reader:
            assert [bytes(s) for s in reader.read(wanted)] == [samples[i] for i in wanted]
            assert reader.read([]) == []
            assert reader.read_one(36) == samples[36]
            for wrong in (37, -1):
                with pytest.raises(IndexError, match="has 37"):
                    reader.read_one(wrong)


def test_a_directory_without_records_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \*\.ffr"):
        RecordReader(tmp_path)


def test_every_changed_byte_is_noticed(tmp_path):
    good = write(tmp_path / "f.ffr", [b"abc", b"defg"]).read_bytes()
    path = tmp_path / "g.ffr"
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(DamagedRecordError, match=r"g\.ffr"), RecordReader(path) as reader:
            reader.read([0, 1])


def test_every_cut_is_noticed(tmp_path):
    good = write(tmp_path / "f.ffr", [b"abc", b"defg"]).read_bytes()
    path = tmp_path / "g.ffr"
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(DamagedRecordError, match=r"g\.ffr"), RecordReader(path) as reader:
            reader.read([0, 1])


def test_unchecked_reading_is_told_to_and_still_notices_the_end(tmp_path):
    path = write(tmp_path / "f.ffr", [b"abc", b"defg"])
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"!")
    with RecordReader(path, check=False) as reader:
        assert reader.read_one(1) == b"def!"
        with pytest.raises(DamagedRecordError):
            reader.verify()
        path.write_bytes(good[:-1])
        with pytest.raises(DamagedRecordError, match="ends within"):
            reader.read_one(1)


def test_a_header_without_checksum_is_of_an_old_writer(tmp_path):
    path = write(tmp_path / "f.ffr")
    path.write_bytes(bytes(4) + path.read_bytes()[4:])
    with pytest.warns(UserWarning, match="without checksum"):
        reader = RecordReader(path)
    assert reader.read_one(0) == b"first"
    reader.close()


def test_nothing_is_left_of_a_file_that_was_not_completed(tmp_path):
    path = tmp_path / "f.ffr"
    with pytest.raises(ValueError, match="1 samples of 2"), RecordWriter(path, 2) as writer:
        writer.write(b"abc")
    with pytest.raises(TypeError), RecordWriter(path, 2) as writer:  # noqa: PT012 - at the end
        writer.write(b"abc")
        writer.write("text")
    with pytest.raises(TypeError, match="a sample is int"), RecordWriter(path, 1) as writer:
        writer.write(7)  # not seven zeros
    with pytest.raises(ValueError, match="2 of 1"), RecordWriter(path, 1) as writer:  # noqa: PT012
        writer.write(b"abc")
        writer.write(b"abc")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"end in \.ffr"):
        RecordWriter(tmp_path / "f.dat", 1)
    with pytest.raises(ValueError, match="-1 samples"):
        RecordWriter(path, -1)
    for count in (1.0, "1"):  # which was noticed when all was written
        with pytest.raises(TypeError, match=r"samples of .* not an integer"):
            RecordWriter(path, count)
    with pytest.raises(ValueError, match="not by its URL"):
        RecordWriter("ember:///f.ffr", 1)
    assert list(tmp_path.iterdir()) == []
    write(path)
    with pytest.raises(ZeroDivisionError), RecordWriter(path, 1) as writer:
        _ = 1 / 0
    assert path.read_bytes() == by_the_format(SAMPLES)


def answer(reader, answers):
    answers.put([bytes(sample) for sample in reader.read(range(len(SAMPLES)))])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_reader_goes_to_other_processes(tmp_path, method, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # a spawned child imports this module
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    with RecordReader(write(tmp_path / "f.ffr")) as reader:
        child = context.Process(target=answer, args=(reader, answers))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert answers.get() == SAMPLES
        copied = pickle.loads(pickle.dumps(reader))
    assert copied.read_one(2) == b"third sample"
    copied.close()


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "folder"
    for name, content in {"b.txt": b"B", "a/deep/x": b"X" * 5000, "a/y": b""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "link").symlink_to("b.txt")
    return root


def test_a_folder_is_packed_and_read_by_name(tmp_path, folder):
    path = tmp_path / "packed.ffr"
    assert pack_folder(folder, path) == 3
    packed = PackedFolder(path)
    assert packed.names == files_below(folder) == ["a/deep/x", "a/y", "b.txt"]
    assert [bytes(c) for c in packed.read(["b.txt", "a/deep/x", "a/y"])] == [b"B", b"X" * 5000, b""]
    with pytest.raises(FileNotFoundError, match="without c"):
        packed.read(["c"])
    packed.close()
    assert unpack(path, tmp_path / "out") == 3
    assert (tmp_path / "out/a/deep/x").read_bytes() == b"X" * 5000


def test_a_pickled_index_is_opened_only_for_those_who_trust_it(tmp_path):
    index = PICKLE_MAGIC + pickle.dumps({"a": {"x": 1}, "b": 0})
    path = write(tmp_path / "f.ffr", [b"B", b"X", index])
    with pytest.raises(ValueError, match="any code"):
        PackedFolder(path)
    packed = PackedFolder(path, allow_pickle=True)
    assert [bytes(c) for c in packed.read(["a/x", "b"])] == [b"X", b"B"]
    packed.close()


def test_what_is_no_packed_folder_is_refused(tmp_path):
    for samples in (SAMPLES, []):
        with pytest.raises(DamagedRecordError, match="not a packed folder"):
            PackedFolder(write(tmp_path / "f.ffr", samples))


@pytest.mark.parametrize(
    "index",
    [b"", b"5", b"null", b'["a"]', b'["a", "a"]', b'["a", 1]', b'{"a": 0, "b": 1}', b"[" * 100_000],
)
def test_a_damaged_index_says_so(tmp_path, index):
    path = write(tmp_path / "f.ffr", [b"A", b"B", MAGIC + index])
    with pytest.raises(DamagedRecordError, match=r"f\.ffr: index is damaged"):
        PackedFolder(path)


def header(count, offsets, samples=b"", checksums=()):
    """A file whose header has a right checksum, whatever it says."""
    rest = struct.pack(f"<q{len(checksums)}I{len(offsets)}q", count, *checksums, *offsets)
    return struct.pack("<I", zlib.crc32(rest)) + rest + samples


@pytest.mark.parametrize(
    "content",
    [
        header(-1, []),
        header(2**63 - 1, []),
        header(2**62, [36]),
        header(1, [23], b"x", [0]),
        header(1, [2**62], b"x", [0]),
        header(1, [-1], b"x", [0]),
        header(2, [36, 30], b"xy", [0, 0]),
        header(2, [36, 2**63 - 1], b"xy", [0, 0]),
        header(1, [24]),
        b"",
    ],
)
def test_headers_that_lie_are_refused_also_with_a_right_checksum(tmp_path, content):
    (tmp_path / "f.ffr").write_bytes(content)
    with pytest.raises(DamagedRecordError, match=r"f\.ffr"), RecordReader(tmp_path) as reader:
        reader.read([0])


def test_samples_beyond_four_gigabytes(tmp_path):
    path, begin = tmp_path / "f.ffr", 2**32 + 7
    path.write_bytes(header(2, [36, begin], checksums=[0, zlib.crc32(b"far away")]))
    with path.open("r+b") as file:  # a hole between
        file.seek(begin)
        file.write(b"far away")
    with RecordReader(path) as reader:
        assert reader.place(0).size == begin - 36
        assert reader.read([1]) == [b"far away"]


def test_names_of_any_bytes_are_packed_and_listed(tmp_path):
    names = sorted([b"\xff\xfe", "ä\n".encode(), b"-"])
    (tmp_path / "folder").mkdir()
    for name in names:
        (tmp_path / "folder" / os.fsdecode(name)).write_bytes(name)
    command = [sys.executable, "-m", "emberfs.pack"]
    folder = Path(sys.modules["emberfs"].__path__[0]).parent
    path = tmp_path / "f.ffr"
    assert pack_folder(tmp_path / "folder", path) == 3
    listed = subprocess.run(
        [*command, "--list", path],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONUTF8": "1"},
    )
    assert set(listed.stdout.removesuffix(b"\n").split(b"\n")) >= {b"\xff\xfe", b"-"}
    assert unpack(path, tmp_path / "out") == 3
    assert sorted(os.listdir(os.fsencode(tmp_path / "out"))) == names
    for name in names:
        assert (tmp_path / "out" / os.fsdecode(name)).read_bytes() == name


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    path = write(tmp_path / "f.ffr", [b"B", MAGIC + b'["' + name.encode() + b'"]'])
    with pytest.raises(DamagedRecordError, match="leads out"):
        unpack(path, tmp_path / "below" / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path, folder, capsys):
    path = str(tmp_path / "f.ffr")
    assert main([str(folder), path]) == 0
    assert main(["--list", path]) == 0
    assert main(["--check", path]) == 0
    assert main(["--unpack", path, str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "a/deep/x\na/y\nb.txt\n" in printed
    assert "4 samples are as they were written" in printed
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    assert main(["--check", path]) == 1
    assert "damaged" in capsys.readouterr().err
    assert main(["--list", "/no.ffr"]) == 1
    assert capsys.readouterr().err == "/no.ffr: No such file or directory\n"
    for wrong in ([path], ["--list", path, path], ["--unpack", path]):
        with pytest.raises(SystemExit):
            main(wrong)
        assert "--unpack FILE.ffr FOLDER" in capsys.readouterr().err


def test_the_package_needs_the_standard_library_only():
    """Programs import it where nothing of EmberFS's servers, and no numpy, is installed."""
    code = (
        "import sys; before = set(sys.modules); import emberfs.pack, emberfs.order;"
        "names = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(names - set(sys.stdlib_module_names)))"
    )
    folder = Path(sys.modules["emberfs"].__path__[0]).parent
    with warnings.catch_warnings():
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                f"import sys; sys.path.append({str(folder)!r});{code}",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == "['emberfs']"
