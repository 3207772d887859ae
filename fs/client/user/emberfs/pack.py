"""Folders of small files in one FFRecord file, read by name.

Purpose: a million small files cost a million opens per epoch; packed, a batch
of them is one batch of reads.

    python -m emberfs.pack FOLDER FILE.ffr          every regular file below FOLDER
    python -m emberfs.pack --list FILE.ffr
    python -m emberfs.pack --check FILE.ffr         read everything, compare all checksums
    python -m emberfs.pack --unpack FILE.ffr FOLDER

The last sample is the index: `MAGIC` and a JSON list of the files' paths below the folder, in the
order of their samples.  Folders packed by the original FFRecord tools hold a pickled index there,
which runs code when it is opened: it is refused unless the caller trusts the file.

What this module does not do: keep modes, times, links or empty directories.
"""

import argparse
import io
import json
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .closing import Closing
from .ffrecord import DamagedRecordError, RecordReader, RecordWriter
from .opening import Connect

MAGIC = b"emberfs-folder-1\n"
PICKLE_MAGIC = b"piouhjgbr"


def files_below(folder: str | os.PathLike[str]) -> list[str]:
    """Return the paths of regular files below a folder, relative to it, sorted;
    links are not followed.
    """
    root = Path(folder)
    found = []
    for parent, _, names in os.walk(root, onerror=_raise):
        for name in names:
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                found.append(path.relative_to(root).as_posix())
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def pack_folder(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    connect: Connect | None = None,
) -> int:
    """Pack a folder into a file; return how many files it holds.

    Raises:
        ValueError: the name does not end in `.ffr`.
        OSError: something cannot be read or written.
    """
    names = files_below(folder)
    with RecordWriter(path, len(names) + 1, connect) as writer:
        for name in names:
            writer.write(Path(folder, name).read_bytes())
        writer.write(MAGIC + json.dumps(names).encode())
    return len(names)


class PackedFolder(Closing):
    """The files of a packed folder by name.

    Args:
        path: the file.
        connect: makes the client to read through.
        allow_pickle: open an index of the original tools, which can run any code:
            only for files that you trust.

    Raises:
        DamagedRecordError: no packed folder, or damaged.
        ValueError: the index is pickled.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        connect: Connect | None = None,
        *,
        allow_pickle: bool = False,
    ) -> None:
        self.reader = RecordReader(path, connect)
        try:
            index = bytes(self.reader.read_one(len(self.reader) - 1)) if len(self.reader) else b""
            count = len(self.reader) - 1
            self._numbers = _parse(index, os.fspath(path), count, allow_pickle)
        except BaseException:
            self.reader.close()
            raise

    def __repr__(self) -> str:
        return f"<PackedFolder of {len(self._numbers)} files: {self.reader.paths[0]!r}>"

    @property
    def names(self) -> list[str]:
        """Paths below the folder that was packed."""
        return list(self._numbers)

    @property
    def numbers(self) -> list[int]:
        """Which sample of `reader` each of `names` is."""
        return list(self._numbers.values())

    def read(self, names: Iterable[str]) -> list[memoryview]:
        """Return the contents of files, read in one batch.

        Raises:
            FileNotFoundError: the folder had no such file.
        """
        return self.reader.read([self._number(name) for name in names])

    def close(self) -> None:
        """Close the file; twice is harmless."""
        self.reader.close()

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise FileNotFoundError(f"{self.reader.paths[0]}: packed without {name}")
        return self._numbers[name]


def _parse_names(text: bytes, path: str, count: int) -> dict[str, int]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedRecordError(f"{path}: index is damaged: {error}") from None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or len(set(names)) != len(names) or len(names) != count:
        raise DamagedRecordError(f"{path}: index is damaged: no list of {count} names")
    return {name: number for number, name in enumerate(names)}


def _parse(index: bytes, path: str, count: int, allow_pickle: bool) -> dict[str, int]:
    """Return numbers of samples by name; `count`: how many there are besides the index."""
    if index.startswith(MAGIC):
        return _parse_names(index[len(MAGIC) :], path, count)
    if not index.startswith(PICKLE_MAGIC):
        raise DamagedRecordError(f"{path}: last sample is no index: not a packed folder")
    if not allow_pickle:
        raise ValueError(
            f"{path}: pickled index, which can run any code: allow_pickle=True if you trust the "
            "file"
        )
    tree = pickle.loads(index[len(PICKLE_MAGIC) :])  # noqa: S301 - the caller trusts it
    return dict(_leaves(tree, PurePosixPath()))


def _leaves(tree: dict[str, Any], parent: PurePosixPath) -> Iterator[tuple[str, int]]:
    for name, below in tree.items():
        if isinstance(below, dict):
            yield from _leaves(below, parent / name)
        else:
            yield str(parent / name), below


def unpack(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> int:
    """Write the files of a packed folder below a folder; return how many.

    Raises:
        DamagedRecordError: damaged, or a name leads out of the folder.
    """
    root = Path(folder)
    with PackedFolder(path) as packed:
        for name in packed.names:
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts:
                raise DamagedRecordError(f"{path}: {name!r} leads out of the folder")
            (root / pure).parent.mkdir(parents=True, exist_ok=True)
            (root / pure).write_bytes(packed.read([name])[0])
        return len(packed.names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m emberfs.pack",
        description="Pack all regular files below a folder into one FFRecord file, FILE.ffr.",
    )
    action = parser.add_mutually_exclusive_group()
    for name, what in (
        ("list", "print the names of the files in FILE.ffr"),
        ("check", "read all of FILE.ffr, and compare all checksums"),
        ("unpack", "write the files in FILE.ffr below a folder"),
    ):
        action.add_argument(f"--{name}", action="store_true", help=what)
    parser.add_argument("source", help="the folder; with one of the options FILE.ffr")
    parser.add_argument("target", nargs="?", help="FILE.ffr; with --unpack the folder")
    chosen = parser.parse_args(arguments)
    if (chosen.target is None) != (chosen.list or chosen.check):
        parser.error(
            "give FOLDER FILE.ffr, --unpack FILE.ffr FOLDER, --list FILE.ffr or --check FILE.ffr"
        )
    try:
        said = _act(chosen)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="surrogateescape")  # names may be any bytes
        sys.stdout.write(said)
    except (OSError, ValueError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            said = f"{error.filename}: {error.strerror}"
        sys.stderr.write(f"{said}\n")
        return 1
    return 0


def _act(chosen: argparse.Namespace) -> str:
    """Do it; return what to print."""
    if chosen.list:
        with PackedFolder(chosen.source) as packed:
            return "".join(f"{name}\n" for name in packed.names)
    if chosen.check:
        with RecordReader(chosen.source) as reader:
            reader.verify()
            return f"{chosen.source}: {len(reader)} samples are as they were written\n"
    if chosen.unpack:
        return f"{unpack(chosen.source, chosen.target)} files in {chosen.target}\n"
    return f"{pack_folder(chosen.source, chosen.target)} files in {chosen.target}\n"


if __name__ == "__main__":
    sys.exit(main())
