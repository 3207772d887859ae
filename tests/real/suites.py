"""Others' tests of files, in a directory of a mount: what fails there, and not on a local disk?

    python -m tests.real.suites DIRECTORY [--sources SOURCES]
        [--programs PROGRAMS] [--other OTHER] [PART ...]

Parts are Python's own tests (Debian: libpython3.11-testsuite), those of Go's standard library
(golang-go), writing and verifying with fio in several ways, the stressors of files of
stress-ng, programs that live on files (tests/real/suites_of_programs.py); and, with SOURCES, a
directory in which source packages were unpacked (`apt-get source NAME`), the tests of acl,
attr, fuse3, NFStest, perl, coreutils with gnulib, tar, cpio, SQLite and git
(tests/real/suites_of_sources.py); with PROGRAMS, an interpreter, applications of training
teams, as far as it has their packages (tests/real/applications), also over both mounts when
OTHER is DIRECTORY by another one.  A word that begins several parts, such as `fio`, names them
all; without any it is all that is installed, and what is not is named.  A part that fails in
DIRECTORY is run again in a local directory: only what passes there counts.  By hand: Python and
Go take half an hour on two cores, coreutils half an hour, git hours.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import suites_of_programs, suites_of_sources
from .suite_part import Part

PYTHON = "/usr/bin/python3"
PYTHON_PARTS = [
    "test_os",
    "test_posix",
    "test_posixpath",
    "test_genericpath",
    "test_pathlib",
    "test_shutil",
    "test_glob",
    "test_tempfile",
    "test_fcntl",
    "test_mmap",
    "test_largefile",
    "test_file",
    "test_fileio",
    "test_io",
    "test_bufio",
    "test_stat",
    "test_tarfile",
    "test_zipfile",
    "test_gzip",
    "test_mailbox",
    "test_dbm",
    "test_dbm_dumb",
    "test_dbm_ndbm",
    "test_shelve",
    "test_subprocess",
    "test_filecmp",
    "test_fileinput",
    "test_py_compile",
    "test_compileall",
    "test_import",
    "test_zipapp",
    "test_zipimport",
    "test_runpy",
    "test_venv",
    "test_httpservers",
    "test_unicode_file",
    "test_unicode_file_functions",
    "test_logging",
    "test_linecache",
    "test_distutils",
]
GO_PARTS = [
    "os",
    "os/exec",
    "io/fs",
    "path/filepath",
    "io/ioutil",
    "archive/tar",
    "archive/zip",
    "syscall",
    "internal/poll",
    "cmd/go/internal/lockedfile",
    "cmd/go/internal/renameio",
    "cmd/internal/robustio",
]
FIO_PARTS = {
    "sequential": "--rw=write --bs=128k --size=32m --verify=crc32c",
    "random": "--rw=randwrite --bs=4k --verify=md5",
    "backlog": "--rw=randrw --bs=8k --verify=crc64 --verify_backlog=64",
    "odd-sizes": "--rw=randwrite --bsrange=512-64k --bs_unaligned=1 --verify=xxhash",
    "appended": "--rw=write --bs=3000 --file_append=1 --verify=crc32c",
    "strided": "--rw=write:64k --bs=4k --verify=crc32c",
    "mapped": "--rw=randwrite --bs=4k --ioengine=mmap --verify=sha1",
    "spliced": "--rw=write --bs=64k --ioengine=splice --verify=crc32c",
    "vectors": "--rw=randwrite --bs=12k --ioengine=pvsync2 --end_fsync=1 --verify=crc32c",
    "direct": "--rw=randwrite --bs=4k --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c",
    "queued": "--rw=randwrite --bs=4k --ioengine=libaio --iodepth=32 --verify=crc32c",
    "threads-verify": "--rw=randwrite --bs=4k --verify=crc32c --verify_async=4",
    "allocated": "--rw=randwrite --bs=4k --fallocate=posix --verify=crc32c",
    "many-files": "--rw=randwrite --bs=4k --nrfiles=16 --verify=crc32c",
    "four-synced": "--rw=randwrite --bs=4k --size=2m --numjobs=4 --fsync=64 --verify=crc32c",
}
"""8 MiB each, or as they say; each reads back what it wrote and compares."""
STRESSORS = [
    "access",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dup",
    "fallocate",
    "fanotify",
    "fcntl",
    "filename",
    "flock",
    "fpunch",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "inode-flags",
    "inotify",
    "io",
    "iomix",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "open",
    "rename",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "xattr",
]
APPLICATIONS = {
    "datasets_tables": "datasets",
    "duckdb_file": "duckdb",
    "hdf5_files": "h5py",
    "hub_cache": "huggingface_hub",
    "lmdb_store": "lmdb",
    "rocksdb_store": "rocksdict",
    "sample_shards": "torch, webdataset",
    "sqlite_files": "sqlite3",
    "tensorboard_logs": "tensorboard, torch",
    "tensorstore_checkpoints": "orbax.checkpoint, tensorstore",
    "torch_checkpoints": "numpy, safetensors.torch, torch",
    "torch_ranks": "torch.distributed",
    "zarr_arrays": "zarr",
}
"""Programs of tests/real/applications, and the packages that they import."""
KNOWN = {"TestNonpollableDeadline": "Linux lets any file of FUSE be watched by epoll"}
"""Forced by FUSE; specs/semantics.md, Limits."""
TIME_LIMIT_S = 1200

PYTHON_FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+) \(", re.MULTILINE)
GO_FAILED = re.compile(r"^\s*--- FAIL: (\S+)", re.MULTILINE)
STRESS_FAILED = re.compile(r"fail: +\[\d+\] (\S+: .*)$", re.MULTILINE)
STRESS_LEFT_OUT = frozenset({0, 3, 4})
"""stress-ng's exit codes for success, for lack of resources, and for what is not to be had here."""


def has_python_tests() -> bool:
    """Whether the interpreter of the machine has its tests, which are a package of their own."""
    return (
        subprocess.run(
            [PYTHON, "-c", "import test.test_os"], check=False, capture_output=True
        ).returncode
        == 0
    )


def python_parts() -> dict[str, Part]:
    command = [PYTHON, "-m", "test", "-v", "--tempdir", "."]
    return {name: Part([*command, name], PYTHON_FAILED) for name in PYTHON_PARTS}


def go_parts() -> dict[str, Part]:
    environment = {"GOFLAGS": "-count=1", "GOPROXY": "off", "GOTMPDIR": "/tmp"}
    return {name: Part(["go", "test", "-v", name], GO_FAILED, environment) for name in GO_PARTS}


def fio_parts() -> dict[str, Part]:
    always = ["fio", "--name=f", "--size=8m", "--verify_fatal=1", "--do_verify=1"]
    return {f"fio/{n}": Part([*always, *given.split()]) for n, given in FIO_PARTS.items()}


def stress_parts() -> dict[str, Part]:
    always = ["stress-ng", "--verify", "-t", "2", "--temp-path", "."]
    return {
        f"stress/{name}": Part([*always, f"--{name}", "1"], STRESS_FAILED, {}, STRESS_LEFT_OUT)
        for name in STRESSORS
    }


def application_parts(interpreter: Path, other: Path | None) -> dict[str, Part]:
    """Return the applications that an interpreter has the packages for; print what is left out.

    Each is told its folder and, if there is one, the same folder of the other mount.
    """
    found = {}
    for program, packages in APPLICATIONS.items():
        question = [interpreter, "-c", f"import {packages}"]
        if subprocess.run(question, check=False, capture_output=True).returncode:
            print(f"left out: {interpreter} cannot import {packages}")
            continue
        script = Path(__file__).parent / "applications" / f"{program}.py"
        there = f'"{other}/${{PWD##*/}}"' if other else '"$PWD"'
        run = (
            f'there={there}; [ -d "$there" ] || there=$PWD; exec {interpreter} -P {script} "$PWD" '
            '"$there"'
        )
        found[f"applications/{program}"] = Part(["/bin/sh", "-c", run])
    return found


def installed_parts() -> dict[str, Part]:
    """Return the parts of what is installed; print what is not."""
    found: dict[str, Part] = {}
    if has_python_tests():
        found |= python_parts()
    else:
        print("left out: Python's own tests are not installed (libpython3.11-testsuite)")
    for program, package, made in (
        ("go", "golang-go", go_parts),
        ("fio", "fio", fio_parts),
        ("stress-ng", "stress-ng", stress_parts),
    ):
        if shutil.which(program):
            found |= made()
        else:
            print(f"left out: {program} is not installed ({package})")
    return found


SHOWN_CHARS = 2000
"""Of what a part printed that failed without naming a test."""


def run(part: Part, directory: Path) -> tuple[bool, set[str]]:
    """Run a part with its files in a new folder of the directory;
    return whether all passed, and the tests that failed.
    """
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as folder:
        environment = os.environ | {"TMPDIR": folder, "PATH": os.defpath}
        environment |= {"HOME": os.path.expanduser("~")} | part.environment
        environment.pop("PYTHONPATH", None)
        Path(folder).chmod(0o755)
        try:
            done = subprocess.run(
                part.command,
                check=False,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIME_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return False, {f"(not done within {TIME_LIMIT_S} s)"}
    text = (done.stdout + done.stderr).decode(errors="replace")
    failed = set(part.failed.findall(text))
    passed = done.returncode in part.good_codes and not failed
    if not passed and not failed:
        print(f"exit code {done.returncode} in {directory}:\n{text[-SHOWN_CHARS:]}", flush=True)
    return passed, failed


def judge(name: str, part: Part, directory: Path) -> set[str]:
    """Return the tests of a part that fail in the directory alone and have no known reason;
    print what is found.
    """
    passed, failed = run(part, directory)
    if passed:
        print(f"{name}: passed", flush=True)
        return set()
    with tempfile.TemporaryDirectory() as local:
        Path(local).chmod(0o755)  # some parts run as a plain user
        passed_there, failed_there = run(part, Path(local))
    here = failed - failed_there or (set() if failed or not passed_there else {"(all of it)"})
    for test in sorted(here):
        print(
            f"{name}: {test} fails here alone: {KNOWN.get(test) or KNOWN.get(name, 'why?')}",
            flush=True,
        )
    if not here:
        print(f"{name}: fails on a local disk, too ({len(failed_there)} tests)", flush=True)
    return set() if name in KNOWN else here - KNOWN.keys()


def chosen(words: list[str], found: Mapping[str, Part]) -> dict[str, Part]:
    """Return the parts that words name, one by one or by what they begin with.

    Raises:
        KeyError: nothing is named by that word.
    """
    if not words:
        return dict(found)
    wanted = {}
    for word in words:
        named = {n: p for n, p in found.items() if n == word or n.startswith(f"{word}/")}
        if not named:
            raise KeyError(word)
        wanted |= named
    return wanted


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("part", nargs="*")
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--other", type=Path)
    arguments = parser.parse_intermixed_args()
    found = installed_parts() | suites_of_programs.parts()
    if arguments.programs:
        found |= application_parts(arguments.programs.absolute(), arguments.other)
    if arguments.sources:
        found |= suites_of_sources.parts(arguments.sources.resolve())
    try:
        wanted = chosen(arguments.part, found)
    except KeyError as error:
        parser.error(f"no such part: {error.args[0]}")
    failed = {
        n: here for n, part in wanted.items() if (here := judge(n, part, arguments.directory))
    }
    print(
        f"{len(wanted)} parts, {len(failed)} with failures of their own: "
        f"{', '.join(failed) or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
