"""What is shipped: the code of a wheel or of a checkout,
as one archive with a version and a digest.

In the archive: the packages at its top, the metadata that says which release it is,
`requirements.lock`, and perhaps `wheels/`.  The same files give the same digest, whatever their
dates; one version never means two different digests on a host.
"""

import gzip
import hashlib
import io
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...schema.status import FsError, Status
from .inventory import Inventory

PACKAGES: Final = {
    "fs": "fs",
    "placement": "placement",
    "emberfs": "fs/client/user/emberfs",
    "hf3fs_fuse": "fs/client/user/hf3fs_fuse",
    "hf3fs_py_usrbio": "fs/client/user/hf3fs_py_usrbio",
}
"""Of a checkout: import name and folder."""
LEFT_OUT: Final = {"__pycache__"}
BESIDE: Final = re.compile(r"[^/]+\.(dist-info|data)/")
"""Of a wheel: what is no package."""
VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Release:
    """Code that can be installed."""

    version: str
    digest: str
    """Of the files, and of how their dependencies are had."""
    archive: bytes
    """tar.gz."""


def make_release(inventory: Inventory) -> Release:
    """Pack what the inventory names.

    Raises:
        FsError: BAD_CONFIG when it is no wheel and no checkout.
    """
    code = inventory.code
    source = inventory.local(code.source)
    if not source.exists():
        raise _bad(f"code.source {source}: it is not there: a wheel, or a checkout of EmberFS")
    if source.suffix == ".whl" and source.is_file():
        found, files = _of_wheel(source)
        lock = inventory.local(code.lock) if code.lock else source.parent / "requirements.lock"
    elif (source / "pyproject.toml").is_file():
        found, files = _of_checkout(source)
        lock = inventory.local(code.lock) if code.lock else source / "requirements.lock"
    else:
        raise _bad(f"code.source {source}: neither a wheel nor a checkout of EmberFS")
    version = code.version or found
    if not VERSION.fullmatch(version):
        raise _bad(f"code.version {version}: letters, digits, and . + _ -")
    files = {**files, **_dependencies(inventory, lock), **_metadata(version)}
    digest = hashlib.sha256(code.dependencies.encode())
    for name in sorted(files):
        digest.update(f"\n{name}\n{len(files[name])}\n".encode() + files[name])
    return Release(version, digest.hexdigest(), _pack(files))


def _of_wheel(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return version and files of a wheel; raises FsError(BAD_CONFIG)."""
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if not name.endswith("/")]
            files = {name: wheel.read(name) for name in names if not BESIDE.match(name)}
    except (OSError, zipfile.BadZipFile) as error:
        raise _bad(f"code.source {path}: {error}") from error
    if "fs/app/main.py" not in files:
        raise _bad(f"code.source {path}: is no wheel of EmberFS")
    return path.name.split("-")[1], files


def _of_checkout(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return version and packages of a checkout."""
    version = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    files = {}
    for name, folder in PACKAGES.items():
        for file in _files_below(path / folder):
            files[f"{name}/{file.relative_to(path / folder)}"] = file.read_bytes()
    return str(version), files


def _files_below(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.is_file() and not LEFT_OUT & set(file.parts):
            yield file


def _dependencies(inventory: Inventory, lock: Path) -> dict[str, bytes]:
    """Return what says or holds the packages that the code needs."""
    kind, _, place = inventory.code.dependencies.partition(":")
    if kind not in {"lock", "wheels", "present"} or (kind == "lock") == bool(place):
        raise _bad(
            f"code.dependencies {inventory.code.dependencies}: lock, wheels:FOLDER or "
            "present:FOLDER"
        )
    if kind == "present":
        return {}
    try:
        locked = without(lock.read_text(encoding="utf-8"), left_out(inventory))
        files = {"requirements.lock": locked.encode()}
        if kind == "wheels":
            folder = inventory.local(place)
            files |= {f"wheels/{file.name}": file.read_bytes() for file in folder.glob("*.whl")}
    except OSError as error:
        raise _bad(f"{error.filename}: {error.strerror}") from error
    return files


def left_out(inventory: Inventory) -> set[str]:
    """Return which locked packages hosts do without:
    those that would have to be compiled there, and are not used.
    """
    return {"pyfuse3"} | ({"foundationdb"} if inventory.cluster.metadata == "kv" else set())


def without(lock: str, names: set[str]) -> str:
    """Return a lock file without some packages.  Pure."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return "".join(block for block in blocks if block.partition("==")[0].lower() not in names)


def _metadata(version: str) -> dict[str, bytes]:
    """Return what makes `importlib.metadata` know the version:
    the name of the host's folder is the release.
    """
    text = f"Metadata-Version: 2.1\nName: emberfs\nVersion: {version}\n"
    return {f"emberfs-{version.replace('-', '_')}.dist-info/METADATA": text.encode()}


def _pack(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))
    return packed.getvalue()


def _bad(detail: str) -> FsError:
    return FsError(Status.BAD_CONFIG, detail)
