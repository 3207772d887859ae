"""As whom, and in which directory, the commands of `ember admin fs` work;
and their way to the file system.

Outside of a shell a command stands at the root, as the user of the credentials or of this process.
"""

import os
import posixpath
import re
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import trio

from ...client.connect import connect
from ...client.entries import Identity
from ...client.native import EmberFs
from ...rpc.credential_files import configured_uid
from ...rpc.transport import SocketNetwork
from ...runtime.real import real_runtime
from ...schema.config import AuthSection, ProcessConfig
from ...schema.status import FsError, Status
from ...schema.user import ID_MAX
from ..reach.where import Where, find
from ..terminal.command_trace import begin_command
from ..terminal.errors import named, unwrapped

T = TypeVar("T")

ANSWERS_WITHIN_S: Final = 10.0
"""For a manager to answer for the first time: who mistypes an address is to hear of it.

A change of the primary takes less.
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a shell remembers from one line to the next."""

    directory: str = "/"
    identity: Identity | None = None
    """None: the user of the credentials, else of this process."""


AT_THE_ROOT: Final = Standing()
_STANDING: ContextVar[Standing] = ContextVar("_STANDING")


def standing() -> Standing:
    """Return what counts for the commands that run now."""
    return _STANDING.get(AT_THE_ROOT)


def set_standing(now: Standing) -> None:
    """Have it count from now on, in this process."""
    _STANDING.set(now)


def absolute(path: str) -> str:
    """Return a path from the root; one that does not begin there begins
    at the current directory.
    """
    return posixpath.join(standing().directory, path)


def parse_identity(text: str) -> Identity:
    """Return who UID[:GID[:GROUP,...]] is; the group is by default the number of the user.

    Raises:
        FsError: INVALID_ARGUMENT.
    """
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10})(?::(\d{1,10}(?:,\d{1,10})*))?)?", text)
    words = [match[1], match[2] or match[1], *(match[3] or "").split(",")] if match else []
    numbers = [int(word) for word in words if word]
    if not numbers or max(numbers) > ID_MAX:
        detail = f"{text!r}: say UID, UID:GID or UID:GID:GROUP,GROUP, as numbers"
        raise FsError(Status.INVALID_ARGUMENT, detail)
    return Identity(numbers[0], numbers[1], tuple(numbers[2:]))


def identity_of(auth: AuthSection) -> Identity:
    """Return on whose behalf a command asks."""
    own = Identity.of_process()
    uid = configured_uid(auth)
    return standing().identity or (Identity(uid, uid) if uid is not None else own)


def identity_text(who: Identity) -> str:
    """Return an identity as `parse_identity` takes it."""
    groups = ",".join(map(str, who.groups))
    return f"{who.uid}:{who.gid}" + (f":{groups}" if groups else "")


def run_fs(
    use: Callable[[EmberFs], Awaitable[T]],
    directory: Path | None,
    config: Path | None,
    *,
    path: str = "",
) -> T:
    """Run `use` on the file system of the chosen cluster, as the user that counts now.

    Raises:
        FsError: what `use` raises, of `path`, if that is said; NOT_RUNNING when services are down.
    """
    return run_fs_at(use, find(directory, config), path=path)


def run_fs_at(use: Callable[[EmberFs], Awaitable[T]], where: Where, *, path: str = "") -> T:
    """As `run_fs`, of a cluster that has been found."""
    if where.is_down:
        raise FsError(Status.NOT_RUNNING, "files need the services: ember up, or drop --kv")

    async def run() -> T:
        runtime = real_runtime(SocketNetwork())
        async with connect(
            where.addresses,
            where.cluster_id,
            runtime=runtime,
            config=ProcessConfig(auth=where.auth),
            identity=identity_of(where.auth),
            answers_within_s=ANSWERS_WITHIN_S,
        ) as fs:
            with begin_command(runtime):
                return await use(fs)

    with named(shown(absolute(path)), is_inside=True) if path else nullcontext(), unwrapped():
        return trio.run(run)


def shown(path: str) -> str:
    """Return a path or name as it can be printed: bytes that are no text are escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")
