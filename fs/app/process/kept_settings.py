"""How each process of a cluster comes to the settings that the managers keep for it;
roots.py says for which roles.

Managers and metadata services read them from the store before they begin; storage processes and
mounts ask the managers, and go on with what they remember when none answers.  Afterwards
heartbeats and extensions of sessions bring what is new.  The kv process has no stored settings:
it is there before all others.
"""

import logging
from typing import TYPE_CHECKING

from ...node.kept_settings import KeptSettings, ask_for_settings, read_remembered
from ...node.mgmtd_link import MgmtdLink
from ...schema.proto.common_pb2 import StoredSettingsPb
from .starting import wait_for_store

if TYPE_CHECKING:
    from ...kv.api import KvEngine
    from .compose import Process

log = logging.getLogger(__name__)


async def begin_from_store(process: "Process", engine: "KvEngine") -> None:
    """Begin with what the store has for the roles of this process,
    waiting for a store that is away; raises FsError.
    """
    # Loaded by managers and metadata services alone: others start a twentieth sooner.
    from ...kv.transact import snapshot_read  # noqa: PLC0415
    from ...mgmtd.store import read_settings  # noqa: PLC0415

    kept = process.kept
    if kept is None:
        return
    book = await wait_for_store(process, lambda: snapshot_read(engine, read_settings))
    known = [role for role in kept.settings.roles if book.knows_newest(role)]
    _begin(process, kept, [book.newest(role) for role in known])


async def begin_by_asking(process: "Process") -> None:
    """Begin with what the managers say; with what is remembered when none answers."""
    kept = process.kept
    if kept is None:
        return
    link = MgmtdLink(process.channels, process.config.process.mgmtd_addresses, process.runtime)
    _begin(process, kept, await ask_for_settings(link, kept.settings))


def _begin(process: "Process", kept: KeptSettings, newest: list[StoredSettingsPb] | None) -> None:
    remembered = read_remembered(process.config.process.directory)
    before = remembered.settings()
    if newest is None and before:
        log.info("no manager says which settings are kept: going on with those remembered")
    # first those of before: a newer text that this process refuses leaves them in
    # force, as it did while it ran
    stored = [*before, *(newest or [])]
    kept.settings.remember(stored, remembered.changes, process.runtime.clock.wall_ns())
    process.config = kept.settings.start()
    known, _ = kept.settings.to_remember()
    if [one for one in known if one.version] != [one for one in before if one.version]:
        kept.remember_soon()
