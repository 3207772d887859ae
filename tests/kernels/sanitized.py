"""Tests and random calls with kernels that AddressSanitizer
and UndefinedBehaviorSanitizer look after.

    python -m tests.kernels.sanitized [--calls 20000] [--seed 1] [TESTS ...]

Makes a copy of this tree in a temporary directory, looks at the C files with gcc's analyzer and its
warnings of conversions, builds them with the sanitizers, and runs TESTS (default: those of kernels,
messages, rings and the chunk engine), the random calls of each kernel, and entries of rings.  Ends
with 1 if anything fails, or a sanitizer says anything: then its process ends at once.

Needs gcc with libasan, and some 15 minutes of a processor.  Does not look for leaks, of which the
interpreter has many of its own: tests/kernels/growth.py does.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from .fuzz import FUZZERS

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("fs", "tests", "benchmarks", "README.md", "pyproject.toml", "setup.py")
TESTS = ("tests/kernels", "tests/rpc", "tests/client/batchio", "tests/chunkengine")
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
WARNINGS = [
    "-fanalyzer",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wno-sign-conversion",
    "-Wshadow",
    "-Werror",
]


def analyze(tree):
    """Return whether the compiler has nothing to say of any C file."""
    include = sysconfig.get_paths()["include"]
    sources = sorted((tree / "fs/kernels").rglob("*.c"))
    command = ["gcc", "-O2", *WARNINGS, f"-isystem{include}", "-DPy_LIMITED_API=0x030b0000"]
    results = [
        subprocess.run([*command, "-c", str(one), "-o", os.devnull], check=False).returncode
        for one in sources
    ]
    return not any(results)


def build(tree):
    """Build all kernels; one that does not build would leave its twin to be tested, twice."""
    flags = {"CFLAGS": f"{SANITIZE} -g", "LDFLAGS": SANITIZE}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tree, env=os.environ | flags, check=True)
    names = {path.stem for path in (tree / "fs/kernels").glob("*.c")}
    missing = {name for name in names if not list((tree / "fs/kernels").glob(f"_{name}.*.so"))}
    assert not missing, missing


def environment(tree):
    """Return that of a process in which the sanitizers watch all memory."""
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    return os.environ | {
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": (
            "detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1"
        ),
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "EMBER_TEST_RANDOM": "1",  # other examples in every run
        "PYTHONPATH": f"{tree}:{tree}/fs/client/user",
    }


def main():
    """Do all of it, and say what failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=20_000, help="of each kernel, at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tests", nargs="*", default=TESTS)
    options = parser.parse_args()
    python, random_calls = sys.executable, ["--seed", str(options.seed)]
    fuzz = [python, "-m", "tests.kernels.fuzz", *random_calls, "--calls", str(options.calls)]
    steps = {f"random calls of {name}": [*fuzz, "--kernel", name] for name in ["batches", *FUZZERS]}
    entries = [python, "-m", "tests.client.batchio.fuzz", *random_calls]
    steps["random entries of rings"] = [*entries, "--entries", str(options.calls)]
    workers = ["-n", "2"] if find_spec("xdist") else []
    steps["tests"] = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not mount",
        *workers,
        *options.tests,
    ]
    failed = []
    with tempfile.TemporaryDirectory(prefix="ember-sanitized-") as made:
        tree = Path(made)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("*.so", "__pycache__")
                shutil.copytree(source, tree / name, ignore=ignored)
            else:
                shutil.copy(source, tree / name)
        if not analyze(tree):
            failed.append("analyzer")
        build(tree)
        for name, command in steps.items():
            began_s = time.monotonic()
            done = subprocess.run(command, cwd=tree, env=environment(tree), check=False)
            took_s = time.monotonic() - began_s
            print(
                f"{name}: {'failed' if done.returncode else 'good'} after {took_s:.0f} s",
                flush=True,
            )
            failed += [name] if done.returncode else []
    print(f"failed: {', '.join(failed)}" if failed else "nothing found")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
