"""The settings of a running process: which are in force, and how they change while it runs.

Three layers, the later one stronger, key by key:

    1. its own file;
    2. what the managers keep for its roles; a process with several takes them in the order of
       mgmtd, meta, storage, mount;
    3. changes made to this process alone.

Invariants:
    - A text is taken over whole or not at all: all its settings are in force or
      wait for a restart, or none is.
    - What is in force is one `ProcessConfig`, replaced as a whole and never changed; those who
      asked to be told get the new one before anything else runs.  Settings that are not in LIVE
      keep the values of the start.
    - Both what is in force and what would be after a restart obey `check_relations`.

Concurrency: event loop only; nothing here waits.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..schema.config import ProcessConfig, check_relations
from ..schema.proto.common_pb2 import (
    NodeRole,
    SettingsChangePb,
    SettingsReportPb,
    SettingsStatePb,
    SettingsVersionPb,
    StoredSettingsPb,
)
from ..schema.routing import Role
from ..schema.status import FsError
from ..schema.stored_settings import LIVE, ROLE_NAMES
from .settings_text import (
    Overlay,
    differing_keys,
    format_overlay,
    laid_over,
    only_keys,
    parse_change,
    parse_stored,
    text_digest,
)

log = logging.getLogger(__name__)

KEYS_TOLD_MAX: Final = 100
PROBLEM_LENGTH_MAX: Final = 500

Watcher = Callable[[ProcessConfig], None]


@dataclass(frozen=True, slots=True)
class Stored:
    """What is kept for a role."""

    version: int = 0
    text: str = ""
    values: Overlay = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Refused:
    """What was kept for a role, and could not be taken over."""

    version: int
    text: str
    problem: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """What would be."""

    wanted: ProcessConfig
    """After a restart."""
    in_force: ProcessConfig
    """Without one."""


class Settings:
    """See the module head."""

    def __init__(self, base: ProcessConfig, roles: Iterable[Role] = ()) -> None:
        """Begin with the file's.

        Args:
            base: what the file says.
            roles: whose stored settings count here; none: nobody's.
        """
        self._base = base
        self._stored: dict[Role, Stored] = {role: Stored() for role in sorted(roles)}
        self._refused: dict[Role, _Refused] = {}
        self._kept: Overlay = {}
        self._live_only: Overlay = {}
        self._started = self._wanted = self._config = base
        self._has_started = False
        self._watchers: list[Watcher] = []
        self._last_change = SettingsChangePb()
        self._report: SettingsReportPb | None = None

    @property
    def config(self) -> ProcessConfig:
        """What is in force now."""
        return self._config

    @property
    def roles(self) -> tuple[Role, ...]:
        """Whose stored settings count here."""
        return tuple(self._stored)

    def start(self) -> ProcessConfig:
        """Say that the process begins with what is in force now;
        from now on only LIVE settings change.
        """
        self._has_started = True
        self._started = self._config
        return self._config

    def watch(self, act: Watcher) -> None:
        """Have `act` called with the new settings whenever others are in force;
        it must neither wait nor fail.
        """
        self._watchers.append(act)

    # ---- what the managers keep ------------------------------------------------------------------

    def version(self, role: Role) -> int:
        """Return the version of the stored settings of a role that was heard last,
        also if it was refused.
        """
        return self._heard(role).version

    def _heard(self, role: Role) -> _Refused | Stored:
        return self._refused.get(role) or self._stored[role]

    def take_stored(self, settings: StoredSettingsPb, wall_ns: int = 0) -> None:
        """Take over what the managers keep for a role;
        a text that cannot be is noted, and changes nothing.
        """
        role = next((r for r in self._stored if int(r) == settings.role), None)
        if role is None:
            return
        heard = self._heard(role)
        if (heard.version, heard.text) == (settings.version, settings.text):
            return
        source = f"stored settings of {ROLE_NAMES[role]}, version {settings.version}"
        change = SettingsChangePb(wall_ns=wall_ns, what=source)
        try:
            values = parse_stored(settings.text, role, source)
            stored = {**self._stored, role: Stored(settings.version, settings.text, values)}
            plan = self._plan(stored, self._local)
        except FsError as error:
            self._refused[role] = _Refused(settings.version, settings.text, error.detail)
            change.problem = error.detail[:PROBLEM_LENGTH_MAX]
            log.error("%s: refused: %s", source, error.detail)  # noqa: TRY400 - a mistake in a text
        else:
            self._stored = stored
            self._refused.pop(role, None)
            self._take(plan, change)
        self._note(change)
        if not change.problem:
            self._try_refused(wall_ns)

    def _try_refused(self, wall_ns: int) -> None:
        """Take over what was refused before and is fine beside what there is now."""
        for role, refused in list(self._refused.items()):
            if not self.try_stored(role, refused.text).problem:
                del self._refused[role]
                pb_role = NodeRole.ValueType(role)
                again = StoredSettingsPb(role=pb_role, version=refused.version, text=refused.text)
                self.take_stored(again, wall_ns)
                return  # which has tried the others

    def try_stored(self, role: Role, text: str) -> SettingsChangePb:
        """Return what would happen if this were kept for a role; nothing changes."""
        change = SettingsChangePb(what=f"settings of {ROLE_NAMES.get(role, role)}")
        try:
            stored = {**self._stored, role: Stored(0, text, parse_stored(text, role, "the text"))}
            plan = self._plan({r: stored[r] for r in self._stored}, self._local)
        except FsError as error:
            change.problem = error.detail
        else:
            self._describe(plan, change)
        return change

    # ---- changes of this process alone -----------------------------------------------------------

    def change(
        self, text: str, *, is_live_only: bool, is_reset: bool = False, wall_ns: int = 0
    ) -> SettingsChangePb:
        """Change settings of this process, over what the managers keep.

        Args:
            text: TOML, of LIVE settings.
            is_live_only: for the life of the process; else part of `kept_text`.
            is_reset: take all earlier changes back, too.
            wall_ns: now.

        Raises:
            FsError: BAD_CONFIG; nothing has changed.
        """
        change = SettingsChangePb(wall_ns=wall_ns, what="a change of this process alone")
        try:
            values = parse_change(text, "the change")
            kept = {} if is_reset else self._kept
            live_only = {} if is_reset else self._live_only
            if is_live_only:
                live_only = _joined(live_only, values)
            else:
                kept, live_only = _joined(kept, values), _without(live_only, values)
            plan = self._plan(self._stored, _joined(kept, live_only))
        except FsError as error:
            change.problem = error.detail[:PROBLEM_LENGTH_MAX]
            self._note(change)
            raise
        self._kept, self._live_only = kept, live_only
        self._take(plan, change)
        self._note(change)
        self._try_refused(wall_ns)
        return change

    # ---- what outlives the process ---------------------------------------------------------------

    def to_remember(self) -> tuple[list[StoredSettingsPb], str]:
        """Return what to remember for the next start:
        the stored settings, and the text of the changes to be kept.
        """
        stored = [
            StoredSettingsPb(role=NodeRole.ValueType(role), version=one.version, text=one.text)
            for role, one in self._stored.items()
        ]
        return stored, format_overlay(self._kept)

    def remember(
        self, stored: Iterable[StoredSettingsPb], kept_text: str, wall_ns: int = 0
    ) -> None:
        """Take over, before the start, what was remembered;
        what cannot be is logged and left out.
        """
        assert not self._has_started
        for settings in stored:
            self.take_stored(settings, wall_ns)
        try:
            kept = parse_change(kept_text, "changes of this process alone")
            plan = self._plan(self._stored, kept)
        except FsError as error:
            log.error("left out: %s", error.detail)  # noqa: TRY400 - a mistake in a text
            return
        self._kept = kept
        self._take(plan, SettingsChangePb())
        self._report = None
        self._try_refused(wall_ns)

    # ---- what is told ----------------------------------------------------------------------------

    def report(self) -> SettingsReportPb:
        """Return how far this process is; made once per change, not to be changed."""
        if self._report is None:
            self._report = self._made_report()
        return self._report

    @property
    def state(self) -> SettingsStatePb.ValueType:
        """FAILED: the newest stored settings were refused;
        DIRTY: this process has others of its own; STALE: some wait for a restart.
        """
        if self._refused:
            return SettingsStatePb.SETTINGS_FAILED
        if self._local:
            return SettingsStatePb.SETTINGS_DIRTY
        if self._wanted != self._config:
            return SettingsStatePb.SETTINGS_STALE
        return SettingsStatePb.SETTINGS_NORMAL

    def _made_report(self) -> SettingsReportPb:
        versions = [
            SettingsVersionPb(
                role=NodeRole.ValueType(role),
                version=stored.version,
                refused_version=self._refused[role].version if role in self._refused else 0,
                heard_digest=text_digest(self._heard(role).text),
            )
            for role, stored in self._stored.items()
        ]
        changed = [f"{section}.{key}" for section, keys in self._local.items() for key in keys]
        return SettingsReportPb(
            versions=versions,
            state=self.state,
            waiting_keys=differing_keys(self._config, self._wanted)[:KEYS_TOLD_MAX],
            changed_keys=changed[:KEYS_TOLD_MAX],
            problem="; ".join(one.problem for one in self._refused.values())[:PROBLEM_LENGTH_MAX],
            last_change=self._last_change,
        )  # fmt: skip

    # ---- inside ----------------------------------------------------------------------------------

    @property
    def _local(self) -> Overlay:
        return _joined(self._kept, self._live_only)

    def _plan(self, stored: Mapping[Role, Stored], local: Overlay) -> _Plan:
        """Raises FsError when the layers contradict each other."""
        wanted = laid_over(self._base, *(one.values for one in stored.values()), local)
        check_relations(wanted)
        if not self._has_started:
            return _Plan(wanted, wanted)
        live = [key for key in differing_keys(self._started, wanted) if key in LIVE]
        in_force = laid_over(self._started, only_keys(live, wanted))
        check_relations(in_force)
        return _Plan(wanted, in_force)

    def _describe(self, plan: _Plan, change: SettingsChangePb) -> None:
        """Say what a plan changes."""
        changed = set(differing_keys(self._wanted, plan.wanted))
        waiting = [key for key in differing_keys(plan.in_force, plan.wanted) if key in changed]
        change.live_keys.extend(differing_keys(self._config, plan.in_force)[:KEYS_TOLD_MAX])
        change.waiting_keys.extend(waiting[:KEYS_TOLD_MAX])

    def _take(self, plan: _Plan, change: SettingsChangePb) -> None:
        self._describe(plan, change)
        is_other = plan.in_force != self._config
        self._wanted, self._config = plan.wanted, plan.in_force
        if is_other:
            for act in self._watchers:
                act(self._config)

    def _note(self, change: SettingsChangePb) -> None:
        self._last_change = change
        self._report = None
        if not change.problem:
            live, waiting = " ".join(change.live_keys), " ".join(change.waiting_keys)
            log.info(
                "%s: in force: %s; wait for a restart: %s", change.what, live or "-", waiting or "-"
            )


def _joined(under: Overlay, over: Overlay) -> Overlay:
    return {
        section: {**under.get(section, {}), **over.get(section, {})}
        for section in [*under, *(s for s in over if s not in under)]
    }


def _without(overlay: Overlay, taken: Overlay) -> Overlay:
    left = {
        section: {k: v for k, v in keys.items() if k not in taken.get(section, {})}
        for section, keys in overlay.items()
    }
    return {section: keys for section, keys in left.items() if keys}
