"""Settings that are laid over others: TOML with a part of the sections and keys
of a configuration file.  Pure.

Every refusal is one line that names where the text is from, the line
of it, the key, and the reason.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

from ..schema.config import ProcessConfig
from ..schema.routing import Role
from ..schema.status import FsError, Status
from ..schema.stored_settings import LIVE, TEXT_BYTES_MAX, refusal
from .config_file import convert_config, format_value, parse_toml

Overlay = Mapping[str, Mapping[str, Any]]
"""Values by section and key."""

_SECTION: Final = re.compile(r"\s*\[\s*(?P<section>[\w.-]+)\s*\]")
_KEY: Final = re.compile(r"\s*(?P<key>[\w.\s-]+?)\s*=")


def text_digest(text: str) -> int:
    """Return what tells two texts of one version apart."""
    return xxh3_64_intdigest(text.encode())


def parse_stored(text: str, role: Role, source: str) -> Overlay:
    """Check what is to be kept for a role: names, types, bounds, and that it may be.

    How the settings relate to the rest of a process's own is for the process to say.

    Args:
        text: TOML; may be empty.
        role: whose it is.
        source: for messages.

    Raises:
        FsError: BAD_CONFIG, with line, key and reason.
    """
    return _parse(text, source, lambda section, key: refusal(role, section, key))


def parse_change(text: str, source: str) -> Overlay:
    """Check what one running process is to take over;
    raises FsError(BAD_CONFIG) with line, key and reason.
    """
    return _parse(text, source, _refusal_of_change)


def _refusal_of_change(section: str, key: str) -> str:
    if f"{section}.{key}" in LIVE or key not in _keys(section):
        return ""
    return (
        "a running process does not take it over: change the file or the stored settings, and "
        "restart it"
    )


def _keys(section: str) -> tuple[str, ...]:
    found = getattr(ProcessConfig(), section, None)
    return found.__struct_fields__ if isinstance(found, msgspec.Struct) else ()


def _parse(text: str, source: str, refuse: Callable[[str, str], str]) -> Overlay:
    path = Path(source)
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise FsError(Status.BAD_CONFIG, f"{source}: longer than {TEXT_BYTES_MAX} bytes")
    values = parse_toml(text, path)
    for section, keys in values.items():
        if not isinstance(keys, dict):
            detail = f"{section}: a setting stands in a section, [{section}]"
            raise FsError(Status.BAD_CONFIG, f"{_place(text, source, section)}: {detail}")
        for key in keys:
            if reason := refuse(section, key):
                where = _place(text, source, section, key)
                raise FsError(Status.BAD_CONFIG, f"{where}: {section}.{key}: {reason}")
    for section, key, value in _each(values):  # one by one, to know which line it is
        convert_config({section: {key: value}}, Path(_place(text, source, section, key)))
    convert_config(values, path)  # unknown sections without a key
    return values


def _each(values: Overlay) -> Iterator[tuple[str, str, Any]]:
    for section, keys in values.items():
        for key, value in keys.items():
            yield section, key, value


def _place(text: str, source: str, *name: str) -> str:
    """Return `source, line N` of a section or of a key in it;
    the source alone where it is written in a way not looked for.
    """
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _SECTION.match(line):
            section = found["section"]
            names: tuple[str, ...] = (section,)
        elif found := _KEY.match(line):
            written = f"{section}.{found['key']}" if section else found["key"]
            names = tuple(part.strip() for part in written.split("."))
        else:
            continue
        if names == name:
            return f"{source}, line {number}"
    return source


def laid_over(config: ProcessConfig, *overlays: Overlay) -> ProcessConfig:
    """Return a configuration with other values, those of the last overlay the strongest;
    relations are not checked.
    """
    values: dict[str, dict[str, Any]] = msgspec.to_builtins(config)
    for overlay in overlays:
        for section, key, value in _each(overlay):
            values[section][key] = value
    return msgspec.convert(values, ProcessConfig)


def differing_keys(before: ProcessConfig, after: ProcessConfig) -> list[str]:
    """Return the settings, `section.key`, that are not the same."""
    return [
        f"{section}.{key}"
        for section in before.__struct_fields__
        for key in getattr(before, section).__struct_fields__
        if getattr(getattr(before, section), key) != getattr(getattr(after, section), key)
    ]


def only_keys(keys: list[str], config: ProcessConfig) -> Overlay:
    """Return some of the settings of a configuration as an overlay."""
    values: dict[str, dict[str, Any]] = {}
    for name in keys:
        section, _, key = name.partition(".")
        values.setdefault(section, {})[key] = msgspec.to_builtins(
            getattr(getattr(config, section), key)
        )
    return values


def format_overlay(values: Overlay) -> str:
    """Return the text of an overlay, as TOML."""
    lines: list[str] = []
    for section, keys in values.items():
        lines += [
            f"[{section}]",
            *(f"{key} = {format_value(value)}" for key, value in keys.items()),
        ]
    return "".join(f"{line}\n" for line in lines)
