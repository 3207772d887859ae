"""The developer's commands: test, check, fix, generate, lock, bench, sim, torture.

They need the checkout.

Each runs other programs, shows their output, and returns an exit code.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from ...schema.status import FsError, Status
from ..stores.foundationdb import FOUNDATIONDB, ask_store, parse_kv

BY_FILES: Final = ("--dist", "loadfile", "--no-loadscope-reorder")
"""Whole files, in the order of tests/conftest.py."""
FULL_OPTIONS: Final = ("-n", "4", *BY_FILES)
"""Twice as many files at a time as the two cores that this is for: a test with real processes
waits for two fifths of its time.  Four keep both cores busy, so more gain nothing.
"""
FAST_OPTIONS: Final = (
    *("-m", "not slow and not thorough and not mount", "--hypothesis-profile=few"),
    *("-n", "3", *BY_FILES),
)
"""Few of these wait, but those that do take a fifth of the time of a run by two workers."""
SOME_FAILED: Final = 1
"""What pytest ends with when it ran all tests and some of them failed;
what else than 0 is an interruption or a wrong option.
"""
_HELP: Final = {"--help", "-h"}
_WITH_VALUE: Final = {"--dir", "--plot", "--count", "--at", "--inline"}
"""Options of benchmarks that a value may follow as a word of its own (benchmarks/command.py)."""
_BENCH_USAGE: Final = """\
usage: ember bench [NAME ...] [--full] [--dir DIRECTORY] [--plot [FILE]] ...

Run the named benchmarks, or all, each next to the machine's own limit in the same run.  `ember
bench NAME --help` tells what one measures, and the options that it has besides (--count, --at,
--inline).
"""
MEMORY_FOLDER: Final = "/dev/shm"  # noqa: S108 - a folder with a random name is made in it
MEMORY_BYTES_MIN: Final = 4 << 30
KV_SUITES: Final = ("tests/kv", "tests/meta", "tests/mgmtd")
EMBEDDED_KINDS: Final = ("memory", "rocksdb", "remote")
FAKE_FOUNDATIONDB: Final = "foundationdb-fake"
TORCH: Final = "torch==2.13.0+cpu\nsafetensors>=0.7\nwebdataset>=1.0\n"
"""What tests of `emberfs.torch`, and of its neighbour webdataset, need, without GPU libraries;
a lock of its own, because it cannot be had everywhere.
"""

OTEL_EXTRA: Final = "otel"
"""Its tests run where it is installed; a lock of its own,
because nothing else needs what it brings.
"""

LOCK_OPTIONS: Final = [
    "--quiet",
    "--generate-hashes",
    "--allow-unsafe",
    "--strip-extras",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-trusted-host",
    "--no-emit-options",
]


def checkout() -> Path:
    """Return the root of the checkout; raises FsError(NOT_SUPPORTED) for an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "tests").is_dir():
        raise FsError(Status.NOT_SUPPORTED, f"{root} is no checkout of EmberFS")
    return root


def program(name: str) -> str:
    """Return a program of this virtual environment."""
    return str(Path(sys.executable).parent / name)


def run(command: Sequence[str | Path], root: Path, *, text: str | None = None) -> int:
    """Run a program in the checkout with our output as its output; return its exit code."""
    return subprocess.run(command, cwd=root, input=text, text=True, check=False).returncode  # noqa: S603


def run_tests(*, fast: bool, arguments: Sequence[str]) -> int:
    """Run pytest, which also runs the static checks (tests/test_checks.py); return its exit code.

    The temporary files are in a folder of this run alone, because pytest's usual place is
    cleaned up by every other run of the same user; what failed leaves its own there.
    Compiled files are kept, also where the environment says not to (PYTHONDONTWRITEBYTECODE):
    the tests start hundreds of processes.
    """
    options = FAST_OPTIONS if fast else FULL_OPTIONS
    folder = Path(tempfile.mkdtemp(prefix="ember-test-", dir=_quick_folder()))
    place = f"--basetemp={folder / 'run'}"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    code = run([sys.executable, "-m", "pytest", place, *options, *arguments], checkout())
    if code != SOME_FAILED:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _quick_folder() -> str | None:
    """Return a folder in memory with room for all tests, where nothing waits for a disk;
    None: the usual place.

    A usual place that was chosen (TMPDIR) stays.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY_FOLDER, os.W_OK):
        return None
    return MEMORY_FOLDER if shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES_MIN else None


def run_kv_tests(kv: str, *, fast: bool, arguments: Sequence[str]) -> int:
    """Run what must hold on every key-value store on the one named:
    the contract, managers, metadata, namespace checks.

    Tests on FoundationDB use keys of their own below `emberfs/test-` and remove them;
    they can share it with clusters.

    Raises:
        FsError: BAD_CONFIG for a name that is none; as `ask_store` when FoundationDB is away.
    """
    os.environ.pop("FDB_CLUSTER_FILE", None)
    if kv in EMBEDDED_KINDS:
        sys.stdout.write(f"testing on {kv}\n")
        kind = kv
    elif kv == FAKE_FOUNDATIONDB:
        sys.stdout.write("testing on a fake server, below FoundationDB's real Python binding\n")
        kind = FOUNDATIONDB
    else:
        recorded = parse_kv(kv)
        sys.stdout.write(f"testing on {ask_store(recorded, 'test').text()}\n")
        kind, _, os.environ["FDB_CLUSTER_FILE"] = recorded.partition(":")
    sys.stdout.flush()
    os.environ["EMBER_TEST_KV"] = kind
    return run_tests(fast=fast, arguments=[*arguments, *KV_SUITES])


def run_generate() -> int:
    """Regenerate what comes from the schema."""
    root = checkout()
    return run([sys.executable, "-m", "fs.rpc.generate"], root) or run(
        [sys.executable, "-m", "fs.app.documents.generate"], root
    )


def run_fix() -> int:
    """Regenerate, repair, format."""
    root = checkout()
    codes = [
        run_generate(),
        run([program("ruff"), "check", "--fix", "--quiet"], root),
        run([program("ruff"), "format", "--quiet"], root),
        run([program("clang-format"), "-i", *c_files(root)], root),
    ]
    return max(codes)


def c_files(root: Path) -> list[Path]:
    """Return all sources and headers in C of a checkout."""
    found = [path for name in ("fs", "tests") for path in (root / name).rglob("*.[ch]")]
    return sorted(path for path in found if "build" not in path.relative_to(root).parts)


def run_lock() -> int:
    """Resolve anew: build tools, run time, and development on top
    of exactly the run-time versions.
    """
    root = checkout()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    build = "\n".join(project["optional-dependencies"]["build"])
    compile_ = [program("pip-compile"), *LOCK_OPTIONS]
    run_extras = ["--extra", "fuse", "--extra", "foundationdb"]
    extras = [*run_extras, "--extra", "build", "--extra", "dev"]
    constraints = ["-c", "requirements.lock", "-c", "requirements-build.lock"]
    return (
        run([*compile_, "-o", "requirements-build.lock", "-"], root, text=build)
        or run([*compile_, *run_extras, "-o", "requirements.lock", "pyproject.toml"], root)
        or run(
            [*compile_, *extras, *constraints, "-o", "requirements-dev.lock", "pyproject.toml"],
            root,
        )
        or run(
            [*compile_, "-c", "requirements-dev.lock", "-o", "requirements-torch.lock", "-"],
            root,
            text=TORCH,
        )
        or run(
            [*compile_, "-c", "requirements-dev.lock", "-o", "requirements-otel.lock", "-"],
            root,
            text="\n".join(project["optional-dependencies"][OTEL_EXTRA]),
        )
    )


def run_bench(arguments: Sequence[str]) -> int:
    """Run the named benchmarks, or all; options (`--full`) go to each of them;
    `--help` without a name lists them.

    Raises:
        FsError: BAD_CONFIG for a name that is none, or one picture of several.
    """
    root = checkout()
    found = {p.stem: p for p in sorted((root / "benchmarks").glob("*.py")) if _is_benchmark(p)}
    names, options = _names_and_options(arguments, found)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise FsError(
            Status.BAD_CONFIG, f"no benchmark {unknown[0]!r}; there are: {', '.join(found)}"
        )
    if not names and _HELP & set(options):
        sys.stdout.write(_benchmarks_help(found))
        return 0
    wanted = names or list(found)
    if len(wanted) > 1 and any(option.startswith("--plot=") for option in options):
        raise FsError(
            Status.BAD_CONFIG, "--plot=FILE is of one benchmark; --plot draws one picture of each"
        )
    codes = [run([sys.executable, "-m", f"benchmarks.{name}", *options], root) for name in wanted]
    return max(codes, default=0)


def _names_and_options(
    arguments: Sequence[str], found: Container[str]
) -> tuple[list[str], list[str]]:
    """Tell names of benchmarks from options, which may come before, between and behind;
    with its value an option is one word.
    """
    names: list[str] = []
    options: list[str] = []
    for argument in arguments:
        if argument.startswith("-"):
            options.append(argument)
        elif options and options[-1] in _WITH_VALUE and argument not in found:
            options[-1] += f"={argument}"
        else:
            names.append(argument)
    return names, options


def _benchmarks_help(found: Mapping[str, Path]) -> str:
    """Return what `ember bench --help` says: each benchmark by the first line of its head."""
    width = max(map(len, found))
    lines = [
        f"  {name:<{width}}  "
        f"{(ast.get_docstring(ast.parse(path.read_text())) or '').splitlines()[0]}"
        for name, path in found.items()
    ]
    return "\n".join([_BENCH_USAGE, *lines]) + "\n"


def _is_benchmark(path: Path) -> bool:
    """Tell programs that print a table from the modules they share."""
    return path.stem != "command" and "bench_command(" in path.read_text()


def run_sim(arguments: Sequence[str]) -> int:
    """Run the cluster simulator with the given arguments."""
    root = checkout()
    if not (root / "tests/sim/__main__.py").exists():
        raise FsError(Status.NOT_SUPPORTED, "this checkout has no cluster simulator (tests/sim)")
    return run([sys.executable, "-m", "tests.sim", *arguments], root)


def run_torture(arguments: Sequence[str]) -> NoReturn:
    """Become the torture with the given arguments:
    it cleans up by itself when it is interrupted.
    """
    root = checkout()
    if not (root / "tests/torture/__main__.py").exists():
        raise FsError(Status.NOT_SUPPORTED, "this checkout has no torture (tests/torture)")
    os.chdir(root)
    os.execv(sys.executable, [sys.executable, "-m", "tests.torture", *arguments])  # noqa: S606
