"""How errors leave the program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fs.app.terminal.errors import error_line, first_error, named, unwrapped
from fs.schema.status import FsError, Status
from tests.examples import first_quick

PROGRAM = """
import sys
from fs.app import main
from fs.schema.status import FsError, Status

def fail():
    raise {error}

main.app = fail
main.main()
"""
OPERATING = 'FsError(Status.NOT_FOUND, "here")'


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OPERATING, 1, "ember: NOT_FOUND: no such object (here)"),
        (
            f'ExceptionGroup("", [ExceptionGroup("", [{OPERATING}])])',
            1,
            "ember: NOT_FOUND: no such object (here)",
        ),
        ("KeyboardInterrupt", 130, "ember: interrupted"),
        (
            f'BaseExceptionGroup("", [{OPERATING}, BaseExceptionGroup("", [KeyboardInterrupt()])])',
            130,
            "ember: interrupted",
        ),
        ('FileNotFoundError(2, "No such file or directory", "/a")', 1, "ember: /a: No such file"),
        ('ExceptionGroup("", [PermissionError(13, "Denied", "/a")])', 1, "ember: /a: Denied"),
    ],
)
def test_an_error_is_one_line(error, code, line):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(error=error)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert done.stderr.startswith(line)


@pytest.mark.parametrize(
    "ended",
    first_quick(
        [
            ("raise KeyboardInterrupt", 130, "ember: interrupted\n"),
            ("raise typer.Exit(130)", 130, ""),  # it has said what there is to be said
            ("sys.exit(3)", 3, ""),
        ]
    ),
)
def test_an_interrupted_command_says_so(ended):
    """What runs commands had made an exit without a word of it."""
    end, code, said = ended
    lines = ["import sys", "import typer", "from fs.app import main", "main.app = typer.Typer()"]
    lines += ["@main.app.command()", "def one():", f"    {end}", "main.main()"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        ("KeyboardInterrupt", -signal.SIGINT, "ember: interrupted\n"),
        ("AttributeError('no')", 1, "AttributeError: no\n"),
    ],
)
def test_an_interruption_while_it_loads_is_one_line(tmp_path, raised, code, said):
    (tmp_path / "typer.py").write_text(f"raise {raised}")
    path = f"{tmp_path}:{Path(__file__).parents[3]}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "fs.app.main", "version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert ("Traceback" in done.stderr) is (code == 1)


def test_a_bug_keeps_its_traceback():
    bug = 'ExceptionGroup("", [AssertionError("no")])'
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(error=bug)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "AssertionError: no" in done.stderr


def test_an_interruption_is_why_others_failed():
    error = FsError(Status.RPC_CANCELLED)
    group = BaseExceptionGroup("", [error, BaseExceptionGroup("", [KeyboardInterrupt()])])
    assert isinstance(first_error(group), KeyboardInterrupt)
    assert first_error(ExceptionGroup("", [error])) is error


@pytest.mark.parametrize(
    ("kind", "is_unwrapped"),
    [
        (FsError(Status.NOT_FOUND), True),
        (OSError(2, "x"), True),
        (KeyboardInterrupt(), True),
        (AssertionError(), False),
    ],
)
def test_what_nurseries_wrap_is_unwrapped_but_for_bugs(kind, is_unwrapped):
    with pytest.raises(BaseException) as caught, unwrapped():  # noqa: PT011 - compared below
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [kind])])
    assert (caught.value is kind) == is_unwrapped


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_name_can_be_printed_in_every_character_set(encoding):
    program = """
import sys
from fs.app.terminal.errors import make_streams_usable
make_streams_usable()
print("\\u65e5\\udcff")
print("\\u65e5\\udcff", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    shown = b"\xe6\x97\xa5\xff\n" if encoding == "utf-8" else b"\\u65e5\\udcff\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, shown)


@pytest.mark.parametrize("closed", first_quick(["<&- >&- 2>&-", "<&-", ">&-", "2>&-"]))
def test_a_closed_stream_is_no_fault(closed):
    program = (
        "from fs.app import main; from fs.app.terminal.cells import console, table\n"
        "main.app = lambda: console().print(table('a')); main.main()"
    )
    words = f'exec "{sys.executable}" -c "{program}" {closed}'
    done = subprocess.run(["sh", "-c", words], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("status", "detail", "told"),
    [
        (Status.NOT_FOUND, "'b' in directory 0x1", "(/a/b)"),
        (Status.ACCESS_DENIED, "directory 0x1", "(/a/b: directory 0x1)"),
        (Status.IS_DIRECTORY, "/a/b: say -r", "(/a/b: say -r)"),
    ],
)
def test_an_error_is_about_a_path_and_keeps_its_trace(status, detail, told):
    error = FsError(status, detail)
    error.add_note("trace 17")
    with pytest.raises(FsError) as caught, named("/a/b"):
        raise error
    assert error_line(caught.value).endswith(f" {told} (trace 17)")


def test_a_path_within_the_file_system_is_none_of_this_machine(tmp_path):
    """`ember admin file stat /mnt/ember/run` said that the path is on no mount."""
    with pytest.raises(FsError) as caught, named(str(tmp_path), is_inside=True):
        raise FsError(Status.NOT_FOUND, "'f' in directory 0x1")
    assert caught.value.detail.startswith(f"{tmp_path}: this is no path of this machine")


@pytest.mark.parametrize("is_there", [True, False])
def test_what_this_machine_has_but_no_mount_is_told(tmp_path, is_there):
    """`ember warmup data/set` from a folder of the machine's own said only that there is none."""
    path = tmp_path / "f"
    if is_there:
        path.touch()
    with pytest.raises(FsError) as caught, named(str(path)):
        raise FsError(Status.NOT_FOUND, "'f' in directory 0x1")
    more = ": what this machine has by this path is on no mount of EmberFS" if is_there else ""
    assert caught.value.detail == f"{path}{more}"
