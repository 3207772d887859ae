"""Who owns the import name `fs`, what is packaged, and the interpreter's own conditions."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import fs

ROOT = Path(__file__).resolve().parent.parent
LOCKS = [
    "requirements-build.lock",
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-torch.lock",
    "requirements-otel.lock",
]


USER = "fs/client/user"
PACKED = ["README.md", "deploy", "fs", "placement", "pyproject.toml", "setup.py"]
"""All that a wheel is built from."""


def test_fs_is_ours():
    """PyFilesystem2 installs a package of the same name;
    both in one environment break each other.
    """
    assert fs.__file__ is not None
    folder = Path(fs.__file__).parent
    assert (folder / "schema").is_dir(), f"{folder} is not EmberFS: uninstall PyFilesystem2 ('fs')"
    owners = set(importlib.metadata.packages_distributions().get("fs", []))
    assert owners <= {"emberfs"}, f"{owners} all install 'fs': uninstall the others"


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_by_hash_and_name_no_registry(lock):
    text = (ROOT / lock).read_text()
    assert not re.search(r"https?:|file:/|--index|--find-links|--trusted|/home/|/tmp/", text)
    pins = re.findall(r"^([a-z0-9_.-]+)==", text, re.MULTILINE | re.IGNORECASE)
    assert pins
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            assert re.match(r"^[A-Za-z0-9_.\-\[\]]+==\S+ .*\\$", line), line
    assert text.count("--hash=sha256:") >= len(pins)


def test_development_runs_on_the_very_packages_that_users_get():
    def pins(lock):
        return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))

    run_time, dev = pins("requirements.lock"), pins("requirements-dev.lock")
    assert {name: dev.get(name) for name in run_time} == run_time


def test_assertions_are_never_switched_off():
    done = subprocess.run(
        [sys.executable, "-O", "-m", "fs.app.main", "version"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("ember: BAD_CONFIG")
    assert len(done.stderr.splitlines()) == 1


def test_the_command_starts_quickly():
    """Heavy imports belong into the commands that need them."""
    code = (
        "import sys, fs.app.main; print([m for m in ('trio', 'grpc', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def project(folder):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


def test_both_wheels_are_of_one_release():
    whole, user = project("."), project(USER)
    assert user["version"] == whole["version"]
    assert user["requires-python"] == whole["requires-python"]
    assert user["dependencies"] == []
    for name, wanted in user["optional-dependencies"].items():
        known = [*whole["dependencies"], *whole["optional-dependencies"].get(name, ())]
        assert not set(wanted) - set(known), name


def run(*command, **settings):
    """Run a program without what this one was started with; return what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [str(part) for part in command],
        env=environment, capture_output=True, text=True, check=False, **settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder, into):
    """Build the wheel of a copy of the sources with what is installed here; return the wheel."""
    copy = into / "sources"
    for name in PACKED:
        path = ROOT / name
        if path.is_file():
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        else:
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "*.so")
            shutil.copytree(path, copy / name, ignore=ignored)
    offline = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir"]
    run(sys.executable, "-m", "pip", "wheel", *offline, "-w", into, copy / folder)
    (wheel,) = into.glob("*.whl")
    return wheel


def installed(wheel, venv, *, shows=None):
    """Install a wheel into a fresh environment, which sees nothing else but the folder `shows`;
    return its Python.
    """
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    offline = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel)
    if shows is not None:
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "seen-last.pth").write_text(f"{shows}\n")
    return python


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_of_the_whole_system(tmp_path):
    wheel = build(".", tmp_path)
    names = names_in(wheel)
    prefix = f"{'-'.join(wheel.name.split('-')[:2])}.data/data/"
    assert "-cp311-abi3-linux_" in wheel.name
    tops = {name.split("/")[0] for name in names if not name.startswith("emberfs-")}
    assert tops == {"emberfs", "fs", "hf3fs_fuse", "hf3fs_py_usrbio", "placement"}
    assert not [name for name in names if "test" in Path(name).name]
    for top in ("fs", "placement"):
        sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / top).rglob("*.py")}
        assert {name for name in sources if not name.startswith(USER)} <= names
    protos = {p.relative_to(ROOT).as_posix() for p in (ROOT / "fs/schema/proto").glob("*.proto")}
    assert protos | {"emberfs/py.typed", "hf3fs_fuse/py.typed"} <= names
    samples = {*(ROOT / "deploy").glob("*.toml"), *(ROOT / "deploy").glob("*.service")}
    assert {f"{prefix}share/emberfs/{p.name}" for p in samples} <= names
    assert f"{prefix}include/emberfs/ember_batch.h" in names
    sources = [path.stem for path in (ROOT / "fs/kernels").glob("*.c")]
    assert {f"fs/kernels/_{name}.abi3.so" for name in sources} <= names

    dependencies = sysconfig.get_paths()["purelib"]
    python = installed(wheel, tmp_path / "venv", shows=dependencies)
    ember = python.parent / "ember"
    assert "Start a cluster on this machine" in run(ember, "--help", cwd=tmp_path)
    shown = run(ember, "version", cwd=tmp_path)
    assert shown == f"{project('.')['version']}\nkernels: compiled\n"
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, emberfs.fsspec, fs.app.main\n"
        "from pathlib import Path\n"
        "from fs.app.deploy.inventory import read_inventory\n"
        "from fs.runtime.config_file import read_config\n"
        "for path in Path(sys.prefix, 'share/emberfs').glob('*.toml'):\n"
        "    (read_inventory if path.stem == 'inventory' else read_config)(path)\n"
        "print(emberfs.__file__, fs.__file__, path)\n"
    )
    found = run(python, program, cwd=tmp_path).split()
    assert all(path.startswith(str(tmp_path / "venv")) for path in found), found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_of_the_user_library(tmp_path):
    """Alone it serves a program on a mount, or on any file system;
    it says what it lacks for the rest.
    """
    wheel = build(USER, tmp_path)
    names = names_in(wheel)
    tops = {name.split("/")[0] for name in names if not name.startswith("emberfs_user-")}
    assert tops == {"emberfs", "hf3fs_fuse", "hf3fs_py_usrbio"}
    assert not [name for name in names if "entry_points" in name]
    assert any(name.endswith("data/include/emberfs/ember_batch.h") for name in names)
    python = installed(wheel, tmp_path / "venv")
    program = tmp_path / "program.py"
    program.write_text(
        "import hf3fs_fuse.io, hf3fs_py_usrbio, emberfs.ring\n"
        "from emberfs.batch import Transfer\n"
        "from emberfs.ffrecord import RecordReader\n"
        "from emberfs.opening import open_client\n"
        "buffer = bytearray(6)\n"
        "with open_client(__file__) as client, client.open(__file__) as file:\n"
        "    client.read([Transfer(file, 0, memoryview(buffer))])\n"
        "print(bytes(buffer).decode())\n"
        "try:\n    open_client('ember://c@h:1/')\n"
        "except ImportError as error:\n    print(error)\n"
        "try:\n    import emberfs.native\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    first, *refusals = run(python, program, cwd=tmp_path).splitlines()
    assert first == "import"
    assert len(refusals) == 2
    assert all("needs the package emberfs, not emberfs-user alone" in said for said in refusals)
