"""3FS's C interface: programs that use it are compiled, with sanitizers, and run on a mount;
`hf3fs_calls.c` says what they do.
"""

import os
import random
import shutil
import subprocess
import uuid
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
from hf3fs_fuse.io import find_iovec, make_ioring

from tests.client.user.serving import NEEDS_MOUNT, ROOT_FOLDER, Server, eventually

FOLDER = ROOT_FOLDER / "fs/client/user/c"
SOURCES = sorted(set(FOLDER.glob("*.c")) - {FOLDER / "copy_blocks.c"})
CALLS = Path(__file__).with_name("hf3fs_calls.c")
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow"]
NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("make") is None, reason="no C compiler, or no make"
)
PAGE = 4096
NAMED = os.environ | {"EMBER_NAMED_IOVS": "1"}

pytestmark = [pytest.mark.slow, NEEDS_COMPILER]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """The test program with all of the library in it, looked at for bad accesses and leaks."""
    program = tmp_path_factory.mktemp("sanitized") / "calls"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread"]
    run("cc", *WARNINGS, "-Wno-conversion", *flags, f"-I{FOLDER}", "-o", program, CALLS, *SOURCES)
    return program


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What `make install` puts below a folder."""
    place = tmp_path_factory.mktemp("installed")
    build = tmp_path_factory.mktemp("build")
    warnings = " ".join(WARNINGS)
    run(
        "make", "-C", FOLDER, f"BUILD={build}", f"PREFIX={place}", f"WARNINGS={warnings}", "install"
    )
    return place


def test_it_is_installed_where_programs_look(installed, tmp_path):
    library = installed / "lib/libhf3fs_api_shared.so"
    dynamic = run("readelf", "-d", library)
    assert "SONAME" in dynamic and "[libhf3fs_api_shared.so]" in dynamic
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
    assert all("libc.so" in line for line in needed), "it needs a library"
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    exported = {line.split()[-1] for line in lines}
    assert all(name.startswith("hf3fs_") for name in exported), exported
    header = (FOLDER / "hf3fs_usrbio.h").read_text()
    declared = {
        word.split("(")[0].lstrip("*")
        for word in header.split()
        if word.startswith("hf3fs_") and "(" in word
    }
    assert exported == {name for name in declared if name}
    described = (installed / "lib/pkgconfig/hf3fs_api_shared.pc").read_text()
    assert f"libdir={installed}/lib" in described
    for header in ("hf3fs_usrbio.h", "hf3fs/hf3fs_usrbio.h", "emberfs/ember_batch.h"):
        assert (installed / "include" / header).exists()
    source = tmp_path / "program.cpp"
    source.write_text("#include <hf3fs_usrbio.h>\nint main() { return hf3fs_gdr_available(); }\n")
    program = tmp_path / "program"
    run(
        "c++",
        "-Wall",
        "-Werror",
        f"-I{installed}/include",
        "-o",
        program,
        source,
        f"-L{installed}/lib",
        "-lhf3fs_api_shared",
    )
    run(program, env={"LD_LIBRARY_PATH": f"{installed}/lib"})


class Calls:
    """A test of `hf3fs_calls.c` that pauses for this one."""

    def __init__(self, program, test, mount, env=None):
        self.process = subprocess.Popen(
            [program, test, mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def hear(self):
        line = self.process.stdout.readline().strip()
        if not line:
            pytest.fail(self.process.communicate()[1])
        return line

    def say(self, line="go on"):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self):
        output, errors = self.process.communicate(timeout=60)
        assert (output, self.process.returncode) == ("done\n", 0), errors


@pytest.fixture(scope="module")
def tree_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("tree") / "mnt", "hf3fs_tree=true")
    yield server
    try:
        assert server.stop()["sessions"] == 0
    finally:
        server.close()


TESTS = [
    "batches",
    "order",
    "depths",
    "timeouts",
    "refused",
    "holes",
    "threads",
    "rings",
    "fork",
    "forks",
]


@pytest.mark.mount
@NEEDS_MOUNT[1]
@pytest.mark.parametrize("test", TESTS)
def test_calls(server, sanitized, test):
    before = len(server.held())
    assert run(sanitized, test, server.mount_point, timeout=300) == "done\n"
    # The model of a cluster keeps in mind what was read, with the memory that it was read into.
    eventually(lambda: len(server.held()) < before + 130, "memory of a program that has ended")


@pytest.mark.mount
@NEEDS_MOUNT[1]
@pytest.mark.parametrize("test", ["batches", "threads", "fork", "wrapped"])
def test_calls_where_memory_has_names(tree_server, sanitized, test):
    done = run(sanitized, test, tree_server.mount_point, env=NAMED, timeout=300)
    assert done == "done\n"
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("hf3fs-")]
    assert os.listdir(tree_server.mount_point / "3fs-virt/iovs") == []


@pytest.mark.mount
@NEEDS_MOUNT[1]
def test_a_program_that_was_linked_with_the_library(server, installed, tmp_path):
    program = tmp_path / "calls"
    run(
        "cc",
        "-std=c11",
        "-O2",
        f"-I{installed}/include",
        "-o",
        program,
        CALLS,
        f"-L{installed}/lib",
        "-lhf3fs_api_shared",
        "-pthread",
    )
    done = run(program, "batches", server.mount_point, env={"LD_LIBRARY_PATH": f"{installed}/lib"})
    assert done == "done\n"


@pytest.mark.mount
@NEEDS_MOUNT[1]
@pytest.mark.parametrize("end", [Server.stop, Server.close], ids=["unmounted", "killed"])
def test_rings_and_memory_go_on_once_the_mount_is_served_again(sanitized, tmp_path, end):
    mount = tmp_path / "mnt"
    server = Server(mount)
    try:
        with Calls(sanitized, "restart", mount) as calls:
            assert calls.hear() == "end it"
            end(server)
            calls.say()
            assert calls.hear() == "serve it again"
            server = Server(mount)
            calls.say()
            assert calls.hear() == "end it and serve it again"
            end(server)
            server = Server(mount)
            calls.say()
            calls.end()
    finally:
        server.close()


@pytest.mark.mount
@NEEDS_MOUNT[1]
def test_memory_is_found_by_its_id_from_c_and_from_python(tree_server, sanitized):
    mount, number = tree_server.mount_point, uuid.UUID(int=random.Random(3).getrandbits(128))
    shm = SharedMemory(size=2 * PAGE, create=True)
    link = mount / f"3fs-virt/iovs/{number}"
    link.symlink_to(f"/dev/shm/{shm.name}")
    try:
        with Calls(sanitized, "by-id", mount, NAMED) as calls:
            found = find_iovec(calls.hear(), mount)
            assert bytes(found.iov[:PAGE]) == b"i" * PAGE
            found.iov[1] = ord("P")
            calls.say()
            assert calls.hear() == "other"
            shm.buf[0] = ord("P")
            calls.say(number.hex)
            assert calls.hear() == "read"
            assert shm.buf[PAGE - 1] == ord("j")
            assert shm.buf[PAGE] == 0
            calls.say()
            calls.end()
        del found
    finally:
        link.unlink()
        shm.close()
        shm.unlink()
    make_ioring(mount, 1).close()
