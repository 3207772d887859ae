"""Which transfers are handed in by columns: those that the other way would ask for as they are."""

import mmap
import os

import pytest
from emberfs.batch import Transfer
from emberfs.memory import Region, Regions
from emberfs.plan import Plan
from emberfs.protocol import LENGTH_MAX, EntryFlag, Op
from emberfs.ring_file import RingFile, checked_buffers
from emberfs.rows import shared_columns


@pytest.fixture
def regions():
    found = Regions()
    found.mappings = [mmap.mmap(-1, 65536), mmap.mmap(-1, 4096)]
    for mapping in found.mappings:
        found.add(mapping, Region(mapping, os.open(os.devnull, os.O_RDONLY), 0))
    return found


FILES = [RingFile(None, name, -1, None) for name in "ab"]


def transfers(regions):
    view = memoryview(regions.mappings[0])
    return [
        Transfer(FILES[n % 2], 1000 * n, view[100 * n : 100 * n + 50 + n]) for n in (5, 0, 3, 1)
    ]


def test_columns_are_what_a_plan_says(regions):
    given = transfers(regions)
    rows, region = shared_columns(given, regions, None)
    buffers = checked_buffers(Op.READ, given, None)
    plan = Plan(Op.READ, given, buffers, map(regions.find, buffers), EntryFlag(0))
    assert {piece.region for piece in plan.pieces} == {region}
    assert list(rows.files) == [one.file for one in given]
    assert list(rows.offsets) == [one.offset for one in given]
    assert list(rows.sizes) == [piece.length for piece in plan.pieces]
    assert list(rows.places) == [piece.region_offset for piece in plan.pieces] == [500, 0, 300, 100]


class Other:
    """A file of another client."""


@pytest.mark.parametrize(
    "change",
    [
        {"file": Other()},
        {"offset": -1},
        {"offset": 2**63},
        {"buffer": memoryview(bytearray(10))},
        {"buffer": memoryview(bytes(10))},
        {"buffer": memoryview(bytearray(0))},
        {"buffer": bytearray(10)},
    ],
)
def test_what_is_not_plain_is_left_to_others(regions, change):
    given = transfers(regions)
    given[2] = given[2]._replace(**change)
    assert shared_columns(given, regions, None) is None


@pytest.mark.parametrize("how", ["read-only", "gaps", "words", "rows", "other memory", "beyond"])
def test_buffers_that_are_no_plain_bytes_of_one_memory(regions, how):
    given, view = transfers(regions), memoryview(regions.mappings[0])
    buffer = {
        "read-only": view[:8].toreadonly(),
        "gaps": view[:8:2],
        "words": view[:8].cast("I"),
        "rows": view[:8].cast("B", (8, 1)),
        "other memory": memoryview(regions.mappings[1]),
        "beyond": memoryview(bytearray(LENGTH_MAX // 1024)),
    }[how]
    given[1] = given[1]._replace(buffer=buffer)
    assert shared_columns(given, regions, None) is None


def test_memory_with_blocks_is_cut_by_others(regions):
    given = transfers(regions)
    regions.find(given[0].buffer)[0].block_size = 128
    assert shared_columns(given, regions, None) is None
