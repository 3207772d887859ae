"""The settings that the managers keep for roles, version by version.  Pure.

Invariants:
    - The versions of a role count on, and one names one text for ever; the newest is what counts.
    - What is kept obeys names, types and bounds, and is nothing that a process has
      to say itself (`parse_stored`).
    - Repeating what was asked for changes nothing and succeeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ..runtime.settings_text import parse_stored, text_digest
from ..schema.proto import record_pb2
from ..schema.proto.common_pb2 import (
    NodeRole,
    SettingsReportPb,
    SettingsVersionPb,
    StoredSettingsPb,
)
from ..schema.routing import Role
from ..schema.status import FsError, Status
from ..schema.stored_settings import NOTE_LENGTH_MAX, ROLE_NAMES

SETTINGS_KEPT: Final = 20
"""Versions of each role."""

SETTINGS_PREFIX: Final = b"MGCF"


def settings_key(role: int, version: int) -> bytes:
    """Return the key of a version of a role's settings."""
    return SETTINGS_PREFIX + role.to_bytes(1, "big") + version.to_bytes(8, "big")


def settings_parts(key: bytes) -> tuple[int, int]:
    """Return the role and the version in a key."""
    parts = key[len(SETTINGS_PREFIX) :]
    return int.from_bytes(parts[:1], "big"), int.from_bytes(parts[1:], "big")


def unpack_settings(value: bytes) -> StoredSettingsPb:
    """Inverse of `pack_settings`."""
    return record_pb2.SettingsRecordPb.FromString(value).settings


def pack_settings(settings: StoredSettingsPb) -> bytes:
    """Return the persisted form."""
    return record_pb2.SettingsRecordPb(settings=settings).SerializeToString(deterministic=True)


def known_role(number: int) -> Role:
    """Return a role that settings may be kept for; raises FsError(RPC_BAD_REQUEST)."""
    if number not in ROLE_NAMES:
        raise FsError(Status.RPC_BAD_REQUEST, f"settings of role {number}")
    return Role(number)


@dataclass(frozen=True)
class SettingsBook:
    """By role, the newest version first; neither the mapping nor what it holds
    is changed in place.
    """

    versions: Mapping[int, Sequence[StoredSettingsPb]] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)
    """By role, the newest version that is kept and cannot be read, if there is one."""

    @classmethod
    def of(cls, readable: Iterable[StoredSettingsPb], keys: Iterable[bytes]) -> "SettingsBook":
        """Return the book of what can be read; `keys` are those of all that is kept."""
        found: dict[int, list[StoredSettingsPb]] = {}
        for settings in readable:
            found.setdefault(settings.role, []).append(settings)
        read = {settings_key(role, one.version) for role, each in found.items() for one in each}
        lost: dict[int, int] = {}
        for key in keys:
            if key not in read:
                role, version = settings_parts(key)
                lost[role] = max(lost.get(role, 0), version)
        versions = {
            role: sorted(each, key=lambda s: s.version, reverse=True)
            for role, each in found.items()
        }
        return cls(versions, lost)

    def knows_newest(self, role: int) -> bool:
        """False while nobody can say what counts for a role: processes keep what they have."""
        return self.lost.get(role, 0) <= self.newest(role).version

    def newest(self, role: int) -> StoredSettingsPb:
        """Return what counts for a role, as far as it can be read;
        version 0 when nothing was ever kept.
        """
        kept = self.versions.get(role)
        return kept[0] if kept else StoredSettingsPb(role=NodeRole.ValueType(role))

    def find(self, role: Role, version: int) -> StoredSettingsPb:
        """Return a version; raises FsError(RPC_BAD_REQUEST) for one that is not kept."""
        for settings in self.versions.get(role, ()):
            if settings.version == version:
                return settings
        detail = f"settings of {ROLE_NAMES[role]} have no version {version}, or no more"
        raise FsError(Status.RPC_BAD_REQUEST, detail)

    def unheard(self, roles: Iterable[int], told: SettingsReportPb) -> list[StoredSettingsPb]:
        """Return what to tell a process: the newest of each of its roles
        that it neither has nor has refused.
        """
        seen = {one.role: one for one in told.versions}
        return [
            newest
            for newest in map(self.newest, roles)
            if newest.role in seen
            and self.knows_newest(newest.role)
            and not _is_heard(newest, seen[newest.role])
        ]

    def records(self, after: "SettingsBook") -> list[tuple[bytes, bytes | None]]:
        """Return what to write to have `after` in the store; None: the key is cleared."""
        old, new = _keyed(self), _keyed(after)
        return [
            *((key, None) for key in old if key not in new),
            *((key, pack_settings(one)) for key, one in new.items() if key not in old),
        ]


def _keyed(book: SettingsBook) -> dict[bytes, StoredSettingsPb]:
    return {
        settings_key(role, one.version): one for role, each in book.versions.items() for one in each
    }


def _is_heard(newest: StoredSettingsPb, told: SettingsVersionPb) -> bool:
    is_version = newest.version == (told.refused_version or told.version)
    return is_version and text_digest(newest.text) == told.heard_digest


def with_settings(
    book: SettingsBook, role: Role, text: str, *, note: str, based_on_version: int, now_ns: int
) -> SettingsBook:
    """Return the book with a new version of a role's settings;
    the same one if the newest has this text.

    Raises:
        FsError: BAD_CONFIG, with line and reason; CONFLICTING_CHANGE when another version than that
            it is based on is the newest.
    """
    newest = book.newest(role)
    if newest.version and newest.text == text and book.knows_newest(role):
        return book
    name = ROLE_NAMES[role]
    if based_on_version and based_on_version != newest.version:
        detail = (
            f"the newest settings of {name} are version {newest.version}, not {based_on_version}: "
            "look again"
        )
        raise FsError(Status.CONFLICTING_CHANGE, detail)
    parse_stored(text, role, f"settings of {name}")
    made = StoredSettingsPb(
        role=NodeRole.ValueType(role),
        version=max(newest.version, book.lost.get(role, 0)) + 1,
        text=text,
        note=note[:NOTE_LENGTH_MAX],
        created_ns=now_ns,
    )
    kept = [made, *book.versions.get(role, ())][:SETTINGS_KEPT]
    return replace(book, versions={**book.versions, role: kept})
