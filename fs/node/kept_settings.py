"""What a process does about settings that the managers keep:
takes them over as it hears of them, and remembers them.

Where the newest ones come from before a process begins:
    - managers and metadata services read them from the store, which they need in any
      case (fs/app/process/kept_settings.py);
    - others ask the managers, and go on with what they remember when none answers: they
      must not wait for each other.

What is remembered, in `process.directory`: the stored settings that were taken
over last, and changes to this process alone that are to outlive it.  A process
without a directory remembers nothing.

Concurrency: `hear` never waits; one task, `run`, writes what is to be remembered.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from ..runtime.durable_file import write_durable
from ..runtime.ports import Runtime
from ..runtime.settings import Settings
from ..schema.proto.common_pb2 import (
    NodeRole,
    SettingsChangePb,
    SettingsReportPb,
    StoredSettingsPb,
)
from ..schema.proto.mgmtd_pb2 import GetSettingsReq
from ..schema.services import MGMTD_GET_SETTINGS
from ..schema.status import FsError, Status
from .mgmtd_link import MgmtdLink

log = logging.getLogger(__name__)

FILE_NAME: Final = "settings.json"
FORMAT_VERSION: Final = 1
ASK_TIMEOUT_S: Final = 1.0
RETRY_PAUSE_S: Final = 30.0


class _RememberedText(msgspec.Struct):
    role: int
    version: int
    text: str


class Remembered(msgspec.Struct):
    """The file's content."""

    format_version: int = FORMAT_VERSION
    stored: list[_RememberedText] = []
    changes: str = ""
    """TOML, of changes to this process alone."""

    def settings(self) -> list[StoredSettingsPb]:
        """Return the stored settings in it."""
        return [
            StoredSettingsPb(role=NodeRole.ValueType(s.role), version=s.version, text=s.text)
            for s in self.stored
        ]


def read_remembered(directory: str) -> Remembered:
    """Return what a process remembers; nothing, with a line in the log,
    when the file is not what it should be.
    """
    path = Path(directory) / FILE_NAME
    if not directory or not path.exists():
        return Remembered()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Remembered)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.error("%s: left out: %s", path, error)  # noqa: TRY400 - not a bug
        return Remembered()
    if found.format_version != FORMAT_VERSION:
        log.error("%s: left out: format %d", path, found.format_version)
        return Remembered()
    return found


async def ask_for_settings(link: MgmtdLink, settings: Settings) -> list[StoredSettingsPb] | None:
    """Ask each manager once, and whom they name;
    return what is kept for our roles, None when nobody says.

    Of a role whose newest settings are lost nothing: what is remembered may be newer.
    """
    for _ in range(len(link.addresses) + 1):
        try:
            replies = [
                await link.call_once(
                    MGMTD_GET_SETTINGS,
                    GetSettingsReq(role=NodeRole.ValueType(role)),
                    timeout_s=ASK_TIMEOUT_S,
                )
                for role in settings.roles
            ]
            return [reply.settings for reply in replies if not reply.is_newest_lost]
        except FsError as error:
            log.debug("settings not asked for: %s", error)
    return None


class KeptSettings:
    """A `SettingsPort` of a running process."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        *,
        directory: str = "",
        trigger: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over nothing yet.

        Args:
            settings: of this process.
            runtime: clock, and threads for the file.
            directory: where to remember them; empty: nowhere.
            trigger: makes the process tell the manager soon how far it is.
        """
        self.settings = settings
        self.trigger = trigger
        self._runtime = runtime
        self._path = Path(directory) / FILE_NAME if directory else None
        self._has_news = trio.Event()
        self._writing = trio.Lock()

    def report(self) -> SettingsReportPb:
        """See SettingsPort."""
        return self.settings.report()

    def hear(self, settings: Sequence[StoredSettingsPb]) -> None:
        """See SettingsPort."""
        for one in settings:
            self.settings.take_stored(one, self._runtime.clock.wall_ns())
        if settings:
            self.remember_soon()
            self.trigger()

    def remember_soon(self) -> None:
        """Have `run` write what is to be remembered."""
        self._has_news.set()

    async def change(self, text: str, *, is_live_only: bool, is_reset: bool) -> SettingsChangePb:
        """Change settings of this process alone; see `Settings.change`.

        Raises:
            FsError: BAD_CONFIG (nothing has changed); IO_ERROR: it is in force, but not remembered.
        """
        keeps = bool(text) and not is_live_only
        if keeps and self._path is None:
            detail = "this process has no process.directory to keep a change in: say --live-only"
            raise FsError(Status.BAD_CONFIG, detail)
        change = self.settings.change(
            text,
            is_live_only=is_live_only,
            is_reset=is_reset,
            wall_ns=self._runtime.clock.wall_ns(),
        )
        self.trigger()
        await self.remember()
        return change

    async def remember(self) -> None:
        """Write what is to be remembered; raises FsError(IO_ERROR)."""
        if self._path is None:
            return
        async with self._writing:
            try:
                await self._runtime.run_blocking(write_durable, self._path, self._content())
            except OSError as error:
                detail = (
                    f"settings are in force, but not remembered: {self._path}: {error.strerror}"
                )
                raise FsError(Status.IO_ERROR, detail) from error

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Remember what is heard, until cancelled."""
        task_status.started()
        while True:
            await self._has_news.wait()
            self._has_news = trio.Event()
            try:
                await self.remember()
            except FsError as error:
                log.warning("%s", error)
                await trio.sleep(RETRY_PAUSE_S)
                self._has_news.set()

    def _content(self) -> bytes:
        stored, changes = self.settings.to_remember()
        texts = [_RememberedText(int(s.role), s.version, s.text) for s in stored]
        return msgspec.json.encode(Remembered(stored=texts, changes=changes))
