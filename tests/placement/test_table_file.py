"""Tables and disks as JSON: written and read again; what is none is refused in words."""

import pytest

from placement.model import Disk, PlacementError, Site
from placement.table_file import from_json, to_json


def test_what_is_written_is_read():
    disks = [
        Disk(Site(1, 0), 1.5, ("zone-a", "rack-3")),
        Disk(Site(2, 1), 0.0, ("zone-b", "rack-1")),
    ]
    table = [(Site(2, 1), Site(1, 0)), (Site(1, 0),)]
    found = from_json(to_json(disks, table), "x")
    assert (found.disks, found.table) == (disks, table)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"format": 2, "disks": [{"node": 1}]}',
        '{"format": 1, "disks": []}',
        '{"format": 1, "disks": {"node": 1}}',
        '{"format": 1, "disks": [{"disk": 1}]}',
        '{"format": 1, "disks": [{"node": "one"}]}',
        '{"format": 1, "disks": [{"node": 1e400}]}',
        '{"format": 1, "disks": [{"node": 1, "weight": 1e400}]}',
        '{"format": 1, "disks": [{"node": 1, "weight": -1}]}',
        '{"format": 1, "disks": [{"node": 1}], "chains": [[1, 0]]}',
        '{"format": 1, "disks": [{"node": 1}], "chains": [[[1, Infinity]]]}',
    ],
)
def test_what_is_no_table_is_refused_in_words(text):
    with pytest.raises(PlacementError):
        from_json(text, "x")
