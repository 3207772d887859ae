"""The list of commands in `ember --help`, by what a reader wants to do.

Says where each command stands, and nothing else of it.  A command that stands nowhere comes last,
below "Other"; tests refuse that.
"""

from typing import Any, Final

from typer.core import TyperGroup

SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "A cluster on this machine": ("up", "down", "status", "mount", "umount", "mount-helper"),
    "Files and directories": ("rm", "trash", "quota", "dirlock", "path", "warmup"),
    "What it is doing": ("top", "stat", "profile", "metrics", "probe"),
    "Operating a cluster": ("admin", "cluster", "placement", "user", "key"),
    "Safety of data": ("backup", "restore", "fsck", "fsck-disk"),
    "Processes of a cluster": ("control", "mgmtd", "meta", "kv", "storage", "mountd"),
    "Working on EmberFS": (
        "check",
        "test",
        "fix",
        "bench",
        "sim",
        "torture",
        "generate",
        "lock",
        "version",
    ),
}


class SectionedGroup(TyperGroup):
    """A group of commands whose help lists them in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each section."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: one for name, one in found.items() if one is not None and not one.hidden}
        width = max(map(len, shown))
        for title, names in (SECTIONS | {"Other": _left_over(shown)}).items():
            rows = [(name.ljust(width), shown[name]) for name in names if name in shown]
            if rows:
                room = formatter.width - 6 - width
                with formatter.section(title):
                    formatter.write_dl([(name, one.get_short_help_str(room)) for name, one in rows])


def _left_over(names: dict[str, Any]) -> tuple[str, ...]:
    placed = {name for section in SECTIONS.values() for name in section}
    return tuple(name for name in names if name not in placed)
