"""Writes the documents that are derived from the code: `python -m fs.app.documents.generate`.

specs/status.md from fs/schema/status.py, specs/config.md from fs/schema/config.py, the
table of specs/metrics.md from fs/schema/metrics.py, specs/commands.md from the commands;
and deploy/ember@.service, which the installer writes, too. tests/test_documents.py compares
them, so that they never drift.
"""

import errno
import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from ...schema import config, metric, metrics, status, stored_settings
from ..deploy.layout import unit_text
from .command_page import commands_page

SPECS = Path(__file__).resolve().parents[3] / "specs"


UNIT = SPECS.parent / "deploy" / "ember@.service"


def status_page() -> str:
    """Return specs/status.md."""
    lines = [
        "# Status codes",
        "",
        "Generated from `fs/schema/status.py` by `ember generate`; do not edit.",
        "",
        "*Definite*: the operation certainly had no effect.",
        "*Retry*: what a client may do without asking its user.",
        "",
        "| number | name | meaning | errno | definite | retry |",
        "|---|---|---|---|---|---|",
    ]
    for number, spec in status.SPECS.items():
        name = errno.errorcode.get(spec.errno, "-")
        definite = "yes" if spec.definite else "no"
        lines.append(
            f"| {int(number)} | {number.name} | {spec.meaning} | {name} | {definite}"
            f" | {spec.retry.value} |"
        )
    return "\n".join(lines) + "\n"


def _bounds(meta: msgspec.Meta) -> str:
    parts = []
    if meta.ge is not None:
        parts.append(f">= {meta.ge:g}" if isinstance(meta.ge, float) else f">= {meta.ge}")
    if meta.le is not None:
        parts.append(f"<= {meta.le:g}" if isinstance(meta.le, float) else f"<= {meta.le}")
    if meta.pattern is not None:
        parts.append(f"`{meta.pattern}`".replace("|", "\\|"))
    if meta.min_length is not None or meta.max_length is not None:
        parts.append(f"length {meta.min_length or 0} to {meta.max_length}")
    return ", ".join(parts)


def _type_and_bounds(annotation: Any) -> tuple[str, str]:
    if hasattr(annotation, "__metadata__"):
        base, *extra = get_args(annotation)
        found = [_bounds(m) for m in extra if isinstance(m, msgspec.Meta)]
        return _type_and_bounds(base)[0], ", ".join(found)
    if get_origin(annotation) is list:
        return f"list of {_type_and_bounds(get_args(annotation)[0])[0]}", ""
    return annotation.__name__, ""


def field_texts(section: type[msgspec.Struct]) -> dict[str, str]:
    """Return the sentence below each field, as written in the source."""
    source = inspect.getsource(section)
    found = re.findall(
        r'^    (\w+): [^\n]*(?:\n(?!    \w)[^\n"]*)*?\n    """(.+?)"""',
        source,
        re.MULTILINE | re.DOTALL,
    )
    return {name: " ".join(text.split()) for name, text in found}


def _takes_effect(section: str, key: str) -> str:
    """Return when a change of a setting counts, and whether the managers may keep it."""
    if f"{section}.{key}" in stored_settings.LIVE:
        return "live"
    is_kept = any(not stored_settings.refusal(r, section, key) for r in stored_settings.SECTIONS)
    return "restart" if is_kept else "file"


def _section_table(name: str, title: str, section: type[msgspec.Struct]) -> list[str]:
    head = " ".join((section.__doc__ or "").split())
    lines = [
        f"## {title}",
        "",
        head,
        "",
        "| key | type | default | allowed | change | meaning |",
        "|---|---|---|---|---|---|",
    ]
    texts = field_texts(section)
    for field in msgspec.structs.fields(section):
        kind, bounds = _type_and_bounds(field.type)
        is_set = field.default is not msgspec.NODEFAULT
        default = (
            repr(field.default) if is_set else "[]" if field.default_factory is list else "required"
        )
        meaning = texts.get(field.name, "").replace("|", "\\|")
        change = _takes_effect(name, field.name)
        lines.append(f"| {field.name} | {kind} | {default} | {bounds} | {change} | {meaning} |")
    return [*lines, ""]


def config_page() -> str:
    """Return specs/config.md."""
    lines = [
        "# Configuration",
        "",
        "Generated from `fs/schema/config.py` by `ember generate`; do not edit.",
        "",
        "A process is configured by one TOML file.",
        "Unknown keys, wrong types and values out of bounds are refused.",
        "Units are in the names: `_s` seconds, `_bytes` bytes.",
        "",
        (
            "The managers keep further settings for each role (`ember admin config set`), which "
            "are laid over the file;"
        ),
        (
            "*change* says when another value counts: *live*: at once in a running process; "
            "*restart*: when the process is"
        ),
        (
            "started anew; *file*: the same, and only the process's own file has it "
            "(specs/settings.md)."
        ),
        "",
    ]
    for field in msgspec.structs.fields(config.ProcessConfig):
        lines += _section_table(field.name, f"[{field.name}]", field.type)
    lines += _section_table("storage.disks", "[[storage.disks]]", config.DiskSection)
    return "\n".join(lines).rstrip() + "\n"


METRICS_MARK = (
    "<!-- What follows is generated from `fs/schema/metrics.py` by `ember generate`; do not edit. "
    "-->"
)


def metrics_page() -> str:
    """Return specs/metrics.md: what is written there by hand, and the tables below the mark."""
    written, mark, _ = (SPECS / "metrics.md").read_text().partition(METRICS_MARK)
    lines = [written.rstrip("\n"), "", mark or METRICS_MARK]
    for shower in metric.Shower:
        found = [m for m in metrics.METRICS if m.shower is shower]
        lines += ["", f"## Of {shower.value}", ""]
        lines += ["| name | kind | labels | meaning | shows |", "|---|---|---|---|---|"]
        lines += [
            f"| `{m.name}` | {m.kind.value} | {', '.join(m.labels)} | {m.help} | "
            f"{m.occasion or 'always'} |"
            for m in found
        ]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return every derived page with its path."""
    return {
        SPECS / "status.md": status_page(),
        SPECS / "config.md": config_page(),
        SPECS / "metrics.md": metrics_page(),
        SPECS / "commands.md": commands_page(),
        UNIT: unit_text("/opt/emberfs/.venv/bin/ember"),
    }


def main() -> None:
    """Write all pages."""
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
