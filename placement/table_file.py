"""Tables and disks as JSON, for files and pipes.  Pure: text in, text out.

    {"format": 1,
     "disks": [{"node": 1, "disk": 0, "weight": 1.0, "domains": ["zone-a", "rack-3"]}, ...],
     "chains": [[[1, 0], [2, 0], [3, 0]], ...]}

A chain is its members' node and disk, head first.  `weight` and `domains` may be left out; a file
that only names disks has no `chains`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .model import Disk, PlacementError, Site, Table, check_disks

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class TableFile:
    """What such a file says."""

    disks: list[Disk]
    table: Table = field(default_factory=list)


def to_json(disks: Sequence[Disk], table: Sequence[Sequence[Site]]) -> str:
    """Return the text of a file, one line for each disk and each chain."""
    disk_lines = [
        json.dumps(
            {
                "node": disk.site.node_id,
                "disk": disk.site.disk_index,
                "weight": disk.weight,
                "domains": list(disk.domains),
            }
        )
        for disk in disks
    ]
    chain_lines = [json.dumps([list(site) for site in chain]) for chain in table]
    listed = [",\n  ".join(lines) for lines in (disk_lines, chain_lines)]
    return f'{{"format": {FORMAT},\n "disks": [\n  {listed[0]}],\n "chains": [\n  {listed[1]}]}}\n'


def from_json(text: str, name: str) -> TableFile:
    """Return what a text says.

    Raises:
        PlacementError: naming the file and what is wrong with it.
    """
    try:
        found: Any = json.loads(text)
        format_ = found["format"]
        disks = [
            Disk(
                Site(int(d["node"]), int(d.get("disk", 0))),
                float(d.get("weight", 1.0)),
                tuple(map(str, d.get("domains", ()))),
            )
            for d in found["disks"]
        ]
        table = [tuple(Site(int(n), int(d)) for n, d in chain) for chain in found.get("chains", ())]
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise PlacementError(f"{name}: no table of chains: {error!r}") from error
    if format_ != FORMAT:
        raise PlacementError(f"{name}: format {format_}, known is {FORMAT}")
    if not disks:
        raise PlacementError(f"{name}: names no disks")
    check_disks(disks)
    return TableFile(disks, table)
