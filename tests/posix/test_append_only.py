"""Append-only files and directories on a mount: as on ext4, call by call.

What ext4 does was seen there, with `python -m tests.posix.append_only DIRECTORY`.
"""

import os
import subprocess

import pytest

from .append_only import APPEND_ONLY, FILE_CALLS, SET_ID, clear, outcomes, set_flags

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users, which only root may"),
]

ALLOWED = (
    "open read", "open append", "open read and append", "open create append", "open create read",
    "open only the path", "open read noatime", "set O_NONBLOCK", "map shared for reading",
    "map private", "chown of nothing", "times to now", "lock", "create in it",
    "create exclusively in it", "make a directory in it", "make a link in it", "make a pipe in it",
    "link into it", "make without a name in it", "rename into it",
    "rename without replacing into it", "make in a directory below", "remove in a directory below",
    "its times to now",
)  # fmt: skip
"""To everybody who may write."""
REFUSED = (
    "open write", "open read and write", "open append and truncate", "open read and truncate",
    "open create", "open create truncate append", "append to a set-id program",
    "take O_APPEND away", "ftruncate to 0", "ftruncate to the same", "ftruncate longer",
    "truncate to 0", "truncate to the same", "truncate longer", "fallocate punch", "fallocate zero",
    "chmod", "chmod to the same", "fchmod", "chown", "times to a time", "set attribute",
    "remove attribute", "set list", "unlink", "rename", "rename over", "rename without replacing",
    "exchange", "exchange the other way", "link", "take the flag away", "set both flags",
    "set the flag of another", "rename in it", "rename over in it", "rename out of it",
    "exchange with what is in it", "unlink in it", "rmdir in it", "rmdir", "rename it",
    "rename a directory over it", "chmod it", "chown it", "its times to a time", "its attribute",
    "its default list", "remove all of it",
)  # fmt: skip
"""With EPERM; some not to root."""
TOLD = {
    "append": "text+more",
    "append at an offset": "text+more",
    "read": "text",
    "fallocate": 9,
    "fallocate inside": 4,
    "fallocate keep size": 4,
    "copy_file_range": "EBADF",
    "map shared for writing": "EACCES",
    "map shared for reading, opened to append": "EACCES",
    "change by a map": "EACCES",
    "read attribute": "it",
    "access for writing": True,
    "show the flag": "0x20",
    "write a file in it": 3,
    "list it": ["old", "sub"],
    "flags of what is made in it": "0x0",
}
OF_ROOT = {
    "take the flag away": None,
    "set both flags": None,
    "set the flag of another": None,
    SET_ID: "0o4777",
}
ON_EXT4 = {**dict.fromkeys(ALLOWED), **dict.fromkeys(REFUSED, "EPERM"), **TOLD}
DIFFERENT = {
    "map shared for writing": None,
    "map shared for reading, opened to append": None,
    "change by a map": "EPERM",
}
"""Linux asks no FUSE whether a file may be mapped: what is changed by a map is refused then."""
DIFFERENT_TO_USERS = {**DIFFERENT, SET_ID: "0o777"}
"""ext4 refuses what would take the bit away; here it goes, as it does by any write."""


@pytest.fixture
def place(posix_place):
    posix_place.chmod(0o755)
    yield posix_place
    clear(posix_place)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("root", {**ON_EXT4, **OF_ROOT, **DIFFERENT}),
        ("owner", {**ON_EXT4, **DIFFERENT_TO_USERS}),
        ("stranger", {**ON_EXT4, **DIFFERENT_TO_USERS}),
    ],
)
def test_each_call_does_what_it_does_on_ext4(place, user, expected):
    found = outcomes(place, user)
    assert found == {name: repr(expected[name]) for name in found}
    for name in FILE_CALLS.keys() & found.keys():
        left = place / user / name / "f"
        assert left.read_bytes()[:4] == b"text", name


def test_lsattr_shows_it(place):
    (place / "f").touch()
    subprocess.run(["chattr", "+a", place / "f"], check=True)
    shown = subprocess.run(["lsattr", place / "f"], check=True, capture_output=True, text=True)
    assert shown.stdout.split()[0].replace("-", "") == "a"


def test_who_had_it_open_writes_on_as_on_ext4(place):
    """O_APPEND stays where a descriptor has it."""
    with (place / "f").open("wb", buffering=0) as before, (place / "f").open("ab", 0) as appends:
        before.write(b"text")
        set_flags(place / "f", APPEND_ONLY)
        os.pwrite(before.fileno(), b"T", 0)
        appends.write(b"+1")
        with pytest.raises(PermissionError):
            os.ftruncate(before.fileno(), 0)
    assert (place / "f").read_bytes() == b"Text+1"
    set_flags(place / "f", 0)
    (place / "f").write_bytes(b"new")
    assert (place / "f").read_bytes() == b"new"
