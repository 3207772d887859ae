"""Configuration files: TOML to `ProcessConfig` and back.

Every refusal is one line that names file, key, problem and what is allowed.

What earlier releases allowed and cannot work is read as what can, with a warning: an upgrade
keeps no process from starting.

Invariant: `read_config(path)` after `write_config(path, config)` returns an equal config,
if it obeys `check_relations`.

Does not do: defaults and bounds, which stand in fs/schema/config.py.
"""

import json
import logging
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, inspect

from ..schema.config import MESSAGE_BYTES_USED_MIN, ProcessConfig, check_relations
from ..schema.layout import CHUNK_SIZE_BYTES_MAX
from ..schema.status import FsError, Status
from .durable_file import write_durable

_log = logging.getLogger(__name__)

_FORMER_PAYLOAD_BYTES_MIN: Final = 1024 * 1024
"""Of rpc.payload_bytes_max, as releases had it that let a chunk be larger than a frame."""

_AT: Final = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"unknown field `(?P<key>.*?)`", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def read_config(path: Path) -> ProcessConfig:
    """Read and check a configuration file.

    Raises:
        FsError: BAD_CONFIG, one line: file, key, problem, what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _bad(path, f"is not UTF-8 text: byte {error.start}") from error
    return parse_config(text, path)


def readable_config(path: Path) -> ProcessConfig | None:
    """Return what a file says; None for one that is gone or has a mistake:
    not of interest to whoever looks for another one.
    """
    try:
        return read_config(path)
    except FsError:
        return None


def parse_config(text: str, path: Path) -> ProcessConfig:
    """Check the text of a configuration file; `path` is for messages.

    Raises:
        FsError: BAD_CONFIG, as `read_config`.
    """
    config = _raised(convert_config(_with_room(parse_toml(text, path), path), path), path)
    try:
        check_relations(config)
    except FsError as error:
        raise _bad(path, error.detail) from error
    return config


def _with_room(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what a file says, with frames that hold any chunk where it was written
    when they need not.
    """
    rpc = values.get("rpc")
    if not isinstance(rpc, dict):
        return values
    found = rpc.get("payload_bytes_max")
    if type(found) is not int or not _FORMER_PAYLOAD_BYTES_MIN <= found < CHUNK_SIZE_BYTES_MAX:
        return values
    _warn_raised(path, found, CHUNK_SIZE_BYTES_MAX, "the largest chunk")
    return {**values, "rpc": {**rpc, "payload_bytes_max": CHUNK_SIZE_BYTES_MAX}}


def _raised(config: ProcessConfig, path: Path) -> ProcessConfig:
    """Return a config whose frames hold its batches, and the bytes of small files,
    as releases did not demand.
    """
    rpc = config.rpc
    found, wanted = rpc.payload_bytes_max, config.client.batch_bytes_max
    if found < wanted:
        _warn_raised(path, found, wanted, "client.batch_bytes_max")
        rpc = msgspec.structs.replace(rpc, payload_bytes_max=wanted)
    found, wanted = rpc.message_bytes_max, MESSAGE_BYTES_USED_MIN
    if found < wanted:
        _warn_raised(path, found, wanted, "the bytes of many small files", "message_bytes_max")
        rpc = msgspec.structs.replace(rpc, message_bytes_max=wanted)
    return config if rpc is config.rpc else msgspec.structs.replace(config, rpc=rpc)


def _warn_raised(
    path: Path, found: int, wanted: int, why: str, name: str = "payload_bytes_max"
) -> None:
    _log.warning("%s: rpc.%s (%d) is less than %s: %d is used", path, name, found, why, wanted)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return what a text says, unchecked; `path` is for messages.

    Raises FsError(BAD_CONFIG), with the line.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _bad(path, f"is not valid TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, brackets without end.
        raise _bad(path, f"is no TOML for a configuration: {error}") from error


def convert_config(values: Mapping[str, Any], path: Path) -> ProcessConfig:
    """Check names, types and bounds, not how settings relate; `path` is for messages.

    Raises FsError(BAD_CONFIG).
    """
    try:
        return msgspec.convert(values, ProcessConfig)
    except msgspec.ValidationError as error:
        raise _bad(path, _explain(str(error))) from error


def write_config(path: Path, config: ProcessConfig) -> None:
    """Write a configuration file, whole or not at all; replaces an old one.

    Raises:
        FsError: BAD_CONFIG when the file cannot be written.
    """
    try:
        write_durable(path, format_config(config))
    except OSError as error:
        raise _bad(path, f"cannot be written: {error.strerror}") from error


def format_config(config: ProcessConfig, *, only_changed: bool = False) -> str:
    """Return the TOML text of a config: every key of every section,
    or those that are not as by default.
    """
    lines: list[str] = []
    for section in config.__struct_fields__:
        found = _section_lines(section, getattr(config, section), only_changed=only_changed)
        if found or not only_changed:
            lines += [f"[{section}]", *found, ""]
    return "\n".join(lines)


def _section_lines(name: str, section: Struct, *, only_changed: bool = False) -> list[str]:
    usual = {
        field.name: field.default_factory()
        if field.default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT
        else field.default
        for field in msgspec.structs.fields(type(section))
    }
    values = {
        key: getattr(section, key)
        for key in section.__struct_fields__
        if not only_changed or getattr(section, key) != usual[key]
    }
    tables = {key: value for key, value in values.items() if _is_tables(value)}
    lines = [f"{key} = {format_value(value)}" for key, value in values.items() if key not in tables]
    for key, entries in tables.items():
        for entry in entries:
            lines += ["", f"[[{name}.{key}]]", *_section_lines(f"{name}.{key}", entry)]
    return lines


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Struct)


def format_value(value: object) -> str:
    """Return one TOML value."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return "[" + ", ".join(format_value(item) for item in value) + "]"
        case _:
            raise AssertionError(value)


def _bad(path: Path, problem: str) -> FsError:
    return FsError(Status.BAD_CONFIG, f"{path}: " + " ".join(problem.split()))


def _explain(message: str) -> str:
    """Turn the checker's message into `KEY: problem; allowed: ...`."""
    found = _AT.match(message)
    assert found is not None
    problem, place = found["problem"], (found["path"] or "$").removeprefix("$")
    kind = _type_at(place)
    unknown = _UNKNOWN.search(problem)
    if unknown is not None and isinstance(kind, inspect.StructType):
        key = f"{place}.{unknown['key']}".lstrip(".")
        from difflib import get_close_matches  # noqa: PLC0415 - not for those that are right

        allowed = [field.name for field in kind.fields]
        meant = get_close_matches(unknown["key"], allowed, n=1)
        is_meant = f" is {meant[0]} meant?" if meant else ""
        return f"{key}: unknown key;{is_meant} allowed: {', '.join(allowed)}"
    return f"{place.lstrip('.')}: {problem}; allowed: {_describe(kind)}"


def _type_at(place: str) -> inspect.Type:
    """Return the declared type at a path such as `.storage.disks[0].path`."""
    kind = inspect.type_info(ProcessConfig)
    for name, _ in _STEP.findall(place):
        if name and isinstance(kind, inspect.StructType):
            kind = next(field.type for field in kind.fields if field.name == name)
        elif isinstance(kind, inspect.ListType):
            kind = kind.item_type
    return kind


def _describe(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType() | inspect.FloatType():
            word = "whole number" if isinstance(kind, inspect.IntType) else "number"
            return word + _bounds(kind.ge, kind.le)
        case inspect.StrType():
            text = f"text that matches {kind.pattern}" if kind.pattern else "text"
            return text + _bounds(kind.min_length, kind.max_length, " of length")
        case inspect.BoolType():
            return "true or false"
        case inspect.ListType():
            return f"list of {_describe(kind.item_type)}"
        case inspect.StructType():
            return "section with keys " + ", ".join(field.name for field in kind.fields)
        case _:
            raise AssertionError(kind)


def _bounds(low: Any, high: Any, unit: str = "") -> str:
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f"{unit} at least {low}" if high is None else f"{unit} at most {high}"
    return f"{unit} {low} to {high}"
