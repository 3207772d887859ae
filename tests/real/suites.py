"""Others' tests of files, in a directory of a mount: what fails there, and not on a local disk?

    python -m tests.real.suites DIRECTORY [PART ...]

Parts are Python's own tests (Debian: libpython3.11-testsuite) and those of Go's standard library (golang-go), one by one; what
is not installed is left out and named.  A part that fails in DIRECTORY is run again in a local directory: only what passes there counts.
By hand: half an hour on two cores.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
KNOWN = {"TestNonpollableDeadline": "Linux lets any file of FUSE be watched by epoll"}
"""Forced by FUSE; specs/semantics.md, Limits."""
TIME_LIMIT_S = 1200
_FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+) \(|^\s*--- FAIL: (\S+)", re.MULTILINE)


def has_python_tests() -> bool:
    """Whether the interpreter of the machine has its tests, which are a package of their own."""
    return (
        subprocess.run(
            [PYTHON, "-c", "import test.test_os"], check=False, capture_output=True
        ).returncode
        == 0
    )


def parts() -> list[str]:
    found = []
    if has_python_tests():
        found += PYTHON_PARTS
    else:
        print("left out: Python's own tests are not installed (libpython3.11-testsuite)")
    if shutil.which("go"):
        found += GO_PARTS
    else:
        print("left out: Go is not installed (golang-go)")
    return found


def run(part: str, directory: Path) -> tuple[bool, set[str]]:
    """Run a part with its files in a new folder of the directory; return whether all passed, and the tests that failed."""
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as folder:
        environment = os.environ | {"TMPDIR": folder, "GOFLAGS": "-count=1", "GOPROXY": "off"}
        environment |= {"PATH": os.defpath, "HOME": os.path.expanduser("~"), "GOTMPDIR": "/tmp"}
        environment.pop("PYTHONPATH", None)
        if part in PYTHON_PARTS:
            command = [PYTHON, "-m", "test", "-v", "--tempdir", folder, part]
        else:
            command = ["go", "test", "-v", part]
        try:
            done = subprocess.run(
                command,
                check=False,
                cwd=folder,
                env=environment,
                capture_output=True,
                timeout=TIME_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return False, {f"(not done within {TIME_LIMIT_S} s)"}
    text = (done.stdout + done.stderr).decode(errors="replace")
    return done.returncode == 0, {name for pair in _FAILED.findall(text) for name in pair if name}


def judge(part: str, directory: Path) -> set[str]:
    """Return the tests of a part that fail in the directory alone and have no known reason; print what is found."""
    passed, failed = run(part, directory)
    if passed:
        print(f"{part}: passed", flush=True)
        return set()
    with tempfile.TemporaryDirectory() as local:
        passed_there, failed_there = run(part, Path(local))
    here = failed - failed_there or (set() if failed or not passed_there else {"(all of it)"})
    for name in sorted(here):
        print(f"{part}: {name} fails here alone: {KNOWN.get(name, 'why?')}", flush=True)
    if not here:
        print(f"{part}: fails on a local disk, too ({len(failed_there)} tests)", flush=True)
    return here - KNOWN.keys()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("part", nargs="*")
    arguments = parser.parse_args()
    wanted = arguments.part or parts()
    unknown = set(wanted) - {*PYTHON_PARTS, *GO_PARTS}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    failed = {part: here for part in wanted if (here := judge(part, arguments.directory))}
    print(
        f"{len(wanted)} parts, {len(failed)} with failures of their own: {', '.join(failed) or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
