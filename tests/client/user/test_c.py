"""The header for C says what Python says, and the example that uses it copies a file."""

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from emberfs import protocol

from tests.client.user.serving import NEEDS_MOUNT, ROOT_FOLDER, Server

FOLDER = ROOT_FOLDER / "fs/client/user/c"
NEEDS_COMPILERS = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("c++") is None, reason="no C or no C++ compiler"
)
USES = """\
uint64_t f(void *ring);
uint64_t f(void *ring) {
    return ember_ring_bytes(4) + ember_entry_at(ring, 4, 5)->length
           + ember_completion_at(ring, 4, 5)->user_data;
}
"""


def numbers(pattern):
    text = (FOLDER / "ember_batch.h").read_text()
    return {name: int(value, 0) for name, value in re.findall(pattern, text)}


def test_the_numbers_are_the_same():
    listed = numbers(r"EMBER_([A-Z_]+) = (\d+)")
    known = {
        member.name: int(member)
        for kind in (protocol.Call, protocol.Op, protocol.EntryFlag, protocol.Priority)
        for member in kind
    }
    assert listed == known
    defined = numbers(r"#define EMBER_BATCH_([A-Z_]+) (0x[0-9a-f]+|\d+)u")
    assert defined == {"VERSION": protocol.VERSION, "IOCTL_TICKET": protocol.IOCTL_TICKET}


@pytest.mark.parametrize("standard", ["c99", "c17", "c++17"])
@pytest.mark.parametrize("header", ["ember_batch.h", "hf3fs_usrbio.h"])
@NEEDS_COMPILERS
def test_the_headers_are_good_for_every_c_and_for_cpp(tmp_path, header, standard):
    compiler, suffix = ("c++", "cpp") if "+" in standard else ("cc", "c")
    source = tmp_path / f"bound.{suffix}"
    uses = USES if header == "ember_batch.h" else ""
    source.write_text(f'#include "{FOLDER / header}"\n{uses}')
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = [compiler, f"-std={standard}", *warnings, "-fsyntax-only", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@NEEDS_MOUNT[1]
def test_the_example_copies_a_file(tmp_path):
    program = tmp_path / "copy_blocks"
    subprocess.run(
        [
            "cc",
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            program,
            FOLDER / "copy_blocks.c",
        ],
        check=True,
    )
    content = random.Random(6).randbytes(2_000_001)
    server = Server(tmp_path / "mnt")
    try:
        source, target = server.mount_point / "source", server.mount_point / "target"
        Path(source).write_bytes(content)
        done = subprocess.run([program, source, target], capture_output=True, text=True, check=True)
        assert done.stdout == f"{len(content)} bytes, sum {sum(content)}\n"
        assert target.read_bytes() == content
        for given, said in (
            ((tmp_path, target), f"{tmp_path}: on no mount that serves batches"),
            ((source, tmp_path / "here"), f"{tmp_path / 'here'}: on no mount that serves batches"),
            ((tmp_path / "none", target), f"{tmp_path / 'none'}: No such file or directory"),
        ):
            wrong = subprocess.run([program, *given], capture_output=True, text=True, check=False)
            assert (wrong.returncode, wrong.stderr) == (1, f"copy_blocks: {said}\n")
        assert server.stop()["sessions"] == 0
    finally:
        server.close()
