"""What is done on a host: files, code, services kept alive without systemd."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from fs.app.deploy import keeper, on_host
from fs.app.deploy.reach import BOOT
from fs.app.process import readiness
from fs.runtime import log

pytestmark = pytest.mark.slow

SERVE = """
import os, signal, sys, time
from pathlib import Path
os.write(int(os.environ["EMBERFS_READY_FD"]), b"tcp:nowhere\\n")
Path(sys.argv[1]).open("a").write(f"{os.getpid()}\\n")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True: signal.pause()
"""

HEAR = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGHUP, lambda *_: Path(sys.argv[1]).open("a").write("again\\n"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.write(int(os.environ["EMBERFS_READY_FD"]), b"tcp:nowhere\\n")
while True: signal.pause()
"""


@pytest.fixture
def on(tmp_path):
    """Carry out an operation as the installer does; what was started ends with the test."""
    base = {"root": str(tmp_path), "base": str(tmp_path / "var"), "versions": str(tmp_path / "opt"),
            "run": str(tmp_path / "run"), "python": sys.executable, "timeout_s": 60}  # fmt: skip

    def do(op, payload=b"", *, code=0, **fields):
        source = Path(on_host.__file__).read_bytes()
        request = json.dumps({**base, "op": op, **fields}).encode()
        given = b"%d\n%b%b\n%b" % (len(source), source, request, payload)
        words = [sys.executable, "-I", "-c", BOOT]
        env = {"PATH": os.environ["PATH"]}
        done = subprocess.run(
            words, input=given, capture_output=True, check=False, timeout=120, env=env
        )
        assert done.returncode == code, done.stderr.decode()
        return json.loads(done.stdout) if code == 0 else done.stderr.decode()

    yield do
    do("stop", services=["one", "two"])


def test_a_keeper_stands_alone_and_says_the_same():
    """It has copies of two names, since it runs without this package."""
    assert keeper.READY_VARIABLE == readiness.READY_VARIABLE
    assert keeper.LOG_BYTES_VARIABLE == log.LOG_BYTES_VARIABLE


def look(on, **fields):
    empty = {"disks": [], "files": [], "texts": [], "services": [], "ports": {}, "mounts": []}
    return on("facts", **empty | fields)


def start(on, tmp_path, *names):
    program = tmp_path / "serve.py"
    program.write_text(SERVE)
    commands = [
        (name, [sys.executable, str(program), str(tmp_path / f"{name}.pids")]) for name in names
    ]
    on("start", commands=commands, keeper=keeper.__file__)
    return on("wait", services=names)


def pids(tmp_path, name):
    path = tmp_path / f"{name}.pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_what_a_host_is_not_to_keep_is_removed(on, tmp_path):
    folder = tmp_path / "etc/ember@kv.service.d"
    folder.mkdir(parents=True)
    paths = [tmp_path / "etc/cluster.key", folder / "code.conf", tmp_path / "etc/never"]
    for path in paths[:2]:
        path.write_text("x")
    for _ in range(2):
        on("forget", services=["kv"], files=[str(path) for path in paths])
    assert not paths[0].exists() and not folder.exists() and folder.parent.exists()


def wait_until(what):
    deadline_s = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_kept_process_is_started_again_and_ends_when_asked(on, tmp_path):
    assert start(on, tmp_path, "one") == {"late": {}}
    assert start(on, tmp_path, "one") == {"late": {}}  # not a second one
    (first,) = pids(tmp_path, "one")
    found = look(on, services=["one", "two"])["services"]
    assert found == {
        "one": {"state": "serving", "program": sys.executable},
        "two": {"state": "stopped", "program": ""},
    }
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(pids(tmp_path, "one")) == 2)
    on("stop", services=["one"])
    assert look(on, services=["one"])["services"]["one"]["state"] == "stopped"
    assert not Path(f"/proc/{pids(tmp_path, 'one')[1]}").exists()


def test_a_process_that_runs_is_told_to_read_again(on, tmp_path):
    program, heard = tmp_path / "hear.py", tmp_path / "heard"
    program.write_text(HEAR)
    command = [sys.executable, str(program), str(heard)]
    on("start", commands=[("one", command)], keeper=keeper.__file__)
    assert on("wait", services=["one"]) == {"late": {}}
    on("reload", services=["one", "two"])  # the second does not run
    wait_until(lambda: heard.exists() and heard.read_text() == "again\n")
    assert look(on, services=["one"])["services"]["one"]["state"] == "serving"


def test_a_kept_process_ends_with_its_keeper(on, tmp_path):
    start(on, tmp_path, "two")
    (child,) = pids(tmp_path, "two")
    parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_what_does_not_start_says_why(on):
    words = [sys.executable, "-c", "import sys; sys.exit('no such disk')"]
    on("start", commands=[("one", words)], keeper=keeper.__file__)
    wait_until(lambda: "no such disk" in on("wait", services=["one"], timeout_s=0.1)["late"]["one"])


def test_what_ends_by_itself_without_an_error_was_asked_to(on, tmp_path):
    on("start", commands=[("one", [sys.executable, "-c", "pass"])], keeper=keeper.__file__)
    log = tmp_path / "run/one.log"
    wait_until(log.exists)
    wait_until(lambda: look(on, services=["one"])["services"]["one"]["state"] == "stopped")


def test_facts(on, tmp_path):
    disks = {name: tmp_path / name for name in ("empty", "ours", "photos", "missing")}
    for name in ("empty", "ours/meta", "ours/16K", "photos/cats", "mnt"):
        (tmp_path / name).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = look(
            on,
            disks=[str(d) for d in disks.values()],
            mounts=[str(tmp_path / "mnt"), str(tmp_path)],
            ports={
                "meta": ["127.0.0.1", port],
                "kv": ["192.0.2.1", 7000],
                "mgmtd": ["127.0.0.1", 0],
            },
        )
    assert [found["disks"][str(d)] for d in disks.values()] == [
        "empty",
        "ours",
        "strange: cats",
        "missing",
    ]
    assert found["ports"]["meta"] == "Address already in use" and not found["ports"]["mgmtd"]
    assert "assign" in found["ports"]["kv"]
    assert (
        found["mounts"][str(tmp_path / "mnt")] == ""
        and "not empty" in found["mounts"][str(tmp_path)]
    )
    assert tuple(found["python"]) == sys.version_info[:2]


def test_files_have_their_modes(on, tmp_path):
    path = tmp_path / "etc/key"
    for content in ("b2xk", "bmV3"):
        on(
            "write",
            folders=[str(tmp_path / "var")],
            files=[(str(path), 0o600, content)],
            links=[(str(tmp_path / "current"), "1")],
            reload=False,
        )
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o600
    assert os.readlink(tmp_path / "current") == "1" and (tmp_path / "var").is_dir()
    assert list(path.parent.iterdir()) == [path]


def packed_code():
    """Return an archive of a program that says its version."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (
            ("fs/app/main.py", "def main(): print('version')\nmain()\n"),
            ("fs/__init__.py", ""),
            ("fs/app/__init__.py", ""),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def test_code_is_on_disk_before_it_is_marked_as_installed(tmp_path, monkeypatch):
    """Else a power loss could leave the mark alone, and nobody would install again."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # as on a host
    folder, seen = tmp_path / "opt/1", []
    mark = folder / on_host.MARK
    monkeypatch.setattr(
        on_host.os,
        "sync",
        lambda: seen.append((mark.exists(), (folder / "venv/bin/ember").exists())),
    )
    request = {
        "folder": str(folder),
        "dependencies": f"present:{tmp_path}",
        "python": os.path.realpath(sys.executable),
        "mark": {},
    }
    on_host.do_install(request, packed_code())
    assert seen == [(False, True)]
    assert mark.exists()


def test_an_installation_that_was_cut_off_is_made_anew_and_a_whole_one_kept(on, tmp_path):
    folder = tmp_path / "opt/1"
    (folder / "code/left").mkdir(parents=True)
    fields = {
        "folder": str(folder),
        "dependencies": f"present:{tmp_path}",
        "python": os.path.realpath(sys.executable),
    }
    on("install", packed_code(), mark={"digest": "d"}, **fields)
    assert not (folder / "code/left").exists()
    assert look(on)["installed"] == {"1": {"digest": "d"}}
    told = subprocess.check_output([folder / "venv/bin/ember"], text=True, env={})
    assert told.splitlines() == ["version", "version"]  # imported, and called
    on("install", b"not looked at", mark={"digest": "e"}, **fields)
    assert look(on)["installed"] == {"1": {"digest": "d"}}


def test_a_mistake_is_one_line(on):
    said = on("write", code=1, folders=["/proc/no"], files=[], links=[], reload=False)
    assert said.startswith("write: ") and len(said.splitlines()) == 1
