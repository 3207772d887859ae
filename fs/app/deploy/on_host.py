"""What the installer does on a host.

Travels there as text and is run by the host's own Python: standard library alone.

    python3 -c BOOT        then on stdin: length of this file, this file, the request as one
                           line of JSON, a payload

Each operation is a function `do_NAME(request, payload)` whose result is printed as JSON.  All may
be repeated; a file is replaced whole or not at all; a version's folder is complete when its mark is
there, and never changed after that.

Does not know what a cluster is: paths, texts and commands come in the request.
"""

import base64
import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, BinaryIO, Final

MARK: Final = "installed.json"
SYSTEMD: Final = Path("/run/systemd/system")
POLL_S: Final = 0.1
FLOCK: Final = "hhqqi0q"
"""struct flock of Linux on 64 bits."""
Json = dict[str, Any]


# ---- facts ---------------------------------------------------------------------------------------


def do_facts(request: Json, _payload: bytes) -> Json:
    """Look at the machine and at what an installer left there; changes nothing."""
    base = request["base"]
    return {
        "python": list(sys.version_info[:2]),
        "machine": _machine(base),
        "wall_ns": time.time_ns(),
        "has_venv": _has_venv(),
        "has_fuse": os.access("/dev/fuse", os.R_OK | os.W_OK) and bool(shutil.which("fusermount3")),
        "has_systemd": SYSTEMD.exists() and not request["root"],
        "is_root": os.geteuid() == 0,
        "free_bytes": _free_bytes(Path(base)),
        "disks": {path: _disk(Path(path)) for path in request["disks"]},
        "files": {path: _digest(Path(path)) for path in request["files"]},
        "texts": {path: _text(Path(path)) for path in request["texts"]},
        "installed": _installed(Path(request["versions"])),
        "services": {name: service(request, name) for name in request["services"]},
        "ports": {
            name: _port_trouble(*address)
            for name, address in request["ports"].items()
            if service(request, name)["state"] == "stopped"
        },
        "mounts": {path: _mount_trouble(path) for path in request["mounts"]},
    }


def _machine(base: str) -> str:
    """Return what no two hosts have in common:
    two entries for one machine would fight over everything.
    """
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_text().strip()
        return f"{machine} {os.readlink('/proc/self/ns/net')} {base}"  # noqa: PTH115
    return f"{socket.gethostname()} {base}"


def _has_venv() -> bool:
    try:
        import ensurepip  # noqa: F401, PLC0415
        import venv  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def _free_bytes(path: Path) -> int:
    while not path.exists():
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _disk(path: Path) -> str:
    """Return missing, empty, ours (a disk of some EmberFS), or strange: what is in it."""
    try:
        names = {entry.name for entry in path.iterdir()} - {"lost+found"}
    except OSError as error:
        return "missing" if error.errno == errno.ENOENT else f"strange: {error.strerror}"
    if not names:
        return "empty"
    return "ours" if "meta" in names else f"strange: {min(names)}"


def _digest(path: Path) -> str:
    """Return the digest of a file, empty without one."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _installed(versions: Path) -> Json:
    """Return what each complete version says of itself."""
    found = {}
    for mark in versions.glob(f"*/{MARK}"):
        with contextlib.suppress(OSError, ValueError):
            found[mark.parent.name] = json.loads(mark.read_text())
    return found


def _port_trouble(address: str, port: int) -> str:
    """Return why nobody could listen there; empty when one can."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
    except OSError as error:
        return str(error.strerror or error)
    return ""


def _as_listed(path: str) -> bytes:
    """Return a path as the list of mounts has it."""
    return b"".join(
        b"\\%03o" % byte if byte in b" \t\n\\" else bytes([byte]) for byte in os.fsencode(path)
    )


def _mount_trouble(path: str) -> str:
    try:
        names = os.listdir(path)  # noqa: PTH208 - only whether it is empty
    except OSError as error:
        return "" if error.errno in {errno.ENOENT, errno.ENOTCONN} else str(error.strerror)
    lines = Path("/proc/self/mounts").read_bytes().split(b"\n")
    if any(line.split(b" ")[1:2] == [_as_listed(path)] for line in lines):
        return "something is mounted there"
    return f"is not empty: {min(names)}" if names else ""


# ---- files and code ------------------------------------------------------------------------------


def do_write(request: Json, _payload: bytes) -> Json:
    """Write files, make folders and links."""
    for folder in request["folders"]:
        Path(folder).mkdir(parents=True, exist_ok=True)
    for path, mode, content in request["files"]:
        _write(Path(path), mode, base64.b64decode(content))
    for path, goal in request["links"]:
        _link(Path(path), goal)
    if request["reload"]:
        _run("systemctl", "daemon-reload")
    return {}


def _write(path: Path, mode: int, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    _sync(path.parent)


def _link(path: Path, goal: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(goal)
    temporary.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def do_install(request: Json, payload: bytes) -> Json:
    """Unpack code into a folder of its own, with an environment; the mark comes last."""
    folder = Path(request["folder"])
    if (folder / MARK).exists():
        return {}
    if folder.exists():  # an installation that was cut off
        shutil.rmtree(folder)
    code = folder / "code"
    code.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        archive.extractall(code)  # noqa: S202 - we made it, and trust it with more than this
    kind, _, place = request["dependencies"].partition(":")
    _make_environment(folder, request["python"], [str(code)] + [place] * (kind == "present"))
    if kind != "present":
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "--no-input", "install", "--quiet"]
        where = ["--no-index", "--find-links", str(code / "wheels")] if kind == "wheels" else []
        # Of the packages that are used, this one has no wheel anywhere; it has nothing to compile.
        kinds = ["--only-binary", ":all:", "--no-binary", "foundationdb", "--no-build-isolation"]
        _run(*pip, "--require-hashes", *kinds, *where, "-r", str(code / "requirements.lock"))
    _run(str(folder / "venv/bin/python"), "-P", "-m", "fs.app.main", "version")
    os.sync()  # the mark must not outlive a power loss that what it stands for does not
    _write(folder / MARK, 0o644, json.dumps(request["mark"]).encode())
    _sync(folder.parent)
    return {}


def _make_environment(folder: Path, python: str, paths: list[str]) -> None:
    """Make a virtual environment that finds the code where it was unpacked,
    and the command `ember`.
    """
    without_pip = [] if len(paths) == 1 else ["--without-pip"]
    _run(python, "-m", "venv", *without_pip, str(folder / "venv"))
    (packages,) = (folder / "venv/lib").glob("python3*/site-packages")
    (packages / "emberfs.pth").write_text("".join(f"{path}\n" for path in paths))
    command = folder / "venv/bin/ember"
    head = f"#!{folder}/venv/bin/python -P\n"
    command.write_text(f"{head}from fs.app.main import main\n\nmain()\n")
    command.chmod(0o755)


def _run(*words: str) -> str:
    """Run a tool that must succeed; raises RuntimeError with its last word."""
    done = subprocess.run(  # noqa: S603
        words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise RuntimeError(f"{' '.join(words[:4])}: {said[-1] if said else done.returncode}")
    return done.stdout


# ---- services ------------------------------------------------------------------------------------


def service(request: Json, name: str) -> Json:
    """Return state (stopped, starting, serving) and program of a service."""
    if SYSTEMD.exists() and not request["root"]:
        return _unit(name)
    pid = _keeper(request, name)
    if not pid:
        return {"state": "stopped", "program": ""}
    is_serving = Path(request["run"], f"{name}.ready").exists()
    words = _words_of(pid)
    program = words[words.index(name) + 1] if name in words else ""
    return {"state": "serving" if is_serving else "starting", "program": program}


def _unit(name: str) -> Json:
    words = ["systemctl", "show", f"ember@{name}", "-p", "MainPID,ActiveState"]
    found = dict(line.split("=", 1) for line in _run(*words).splitlines() if "=" in line)
    states = {"active": "serving", "activating": "starting", "reloading": "serving"}
    words = _words_of(int(found.get("MainPID", 0)))
    state = states.get(found.get("ActiveState", ""), "stopped")
    return {"state": state, "program": words[0] if words else ""}


def _words_of(pid: int) -> list[str]:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return []


def _keeper(request: Json, name: str) -> int:
    """Return the pid of the keeper of a service; 0 when none lives."""
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with Path(request["run"], f"{name}.lock").open("rb") as file:
            kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except FileNotFoundError:
        return 0
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def do_start(request: Json, _payload: bytes) -> Json:
    """Start services that do not run; does not wait for them."""
    if SYSTEMD.exists() and not request["root"]:
        for name, _command in request["commands"]:
            _run("systemctl", "enable", "--quiet", f"ember@{name}")
            _run("systemctl", "start", "--no-block", f"ember@{name}")
        return {}
    Path(request["run"]).mkdir(parents=True, exist_ok=True)
    for name, command in request["commands"]:
        keeper = [request["python"], "-I", "-S", request["keeper"]]
        subprocess.Popen(  # noqa: S603 - what was just installed
            [*keeper, request["run"], name, *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/",
        )  # fmt: skip
    return {}


def do_reload(request: Json, _payload: bytes) -> Json:
    """Have services that run read again what they can while they run: SIGHUP."""
    for name in request["services"]:
        if SYSTEMD.exists() and not request["root"]:
            _run("systemctl", "reload", f"ember@{name}")
        elif pid := _keeper(request, name):
            os.kill(pid, signal.SIGHUP)
    return {}


def do_stop(request: Json, _payload: bytes) -> Json:
    """Stop services one after the other, and wait for each."""
    for name in request["services"]:
        if SYSTEMD.exists() and not request["root"]:
            _run("systemctl", "stop", f"ember@{name}")
            continue
        pid = _keeper(request, name)
        if pid:
            os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + request["timeout_s"]
        while _keeper(request, name):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{name} does not stop")
            time.sleep(POLL_S)
    return {}


def do_forget(request: Json, _payload: bytes) -> Json:
    """Remove files, and what would start services again after a restart of the machine."""
    has_systemd = SYSTEMD.exists() and not request["root"]
    if has_systemd:
        for name in request["services"]:
            _run("systemctl", "disable", "--quiet", f"ember@{name}")
    for path in map(Path, request["files"]):
        path.unlink(missing_ok=True)
        if path.parent.suffix == ".d":
            with contextlib.suppress(OSError):  # somebody has put something of his own beside it
                path.parent.rmdir()
    if has_systemd:
        _run("systemctl", "daemon-reload")
    return {}


def do_wait(request: Json, _payload: bytes) -> Json:
    """Wait until services serve; returns those that do not, with the last line of their log."""
    deadline_s = time.monotonic() + request["timeout_s"]
    while True:
        states = {name: service(request, name)["state"] for name in request["services"]}
        late = [name for name, state in states.items() if state != "serving"]
        if not late or time.monotonic() > deadline_s:
            return {"late": {name: f"{states[name]}: {_last_line(request, name)}" for name in late}}
        time.sleep(POLL_S)


def _last_line(request: Json, name: str) -> str:
    if SYSTEMD.exists() and not request["root"]:
        text = _run("journalctl", "-q", "-n", "1", "-o", "cat", "-u", f"ember@{name}")
    else:
        text = _text(Path(request["run"], f"{name}.log"))[-4096:]
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was logged"


def serve(reader: BinaryIO) -> None:
    """Carry out the one request on stdin."""
    request = json.loads(reader.readline())
    try:
        result = globals()[f"do_{request['op']}"](request, reader.read())
    except (OSError, RuntimeError, tarfile.TarError) as error:
        sys.exit(f"{request['op']}: {error}")
    sys.stdout.write(json.dumps(result))
