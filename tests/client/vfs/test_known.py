"""What the mount notes of an inode that the kernel holds."""

import math
from dataclasses import replace

import pytest

from fs.client.vfs.known import Known, Shown
from fs.schema.ids import InodeId

LATEST = 1_000.0


@pytest.mark.parametrize("asked_s", [0.0, LATEST, math.inf])
@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("length", [0, 1, 1 << 40])
def test_the_first_attributes_are_noted_as_any_others(asked_s, is_own, length):
    shown = Shown(InodeId(17), 0o100644, 5, 6, length, 7_000)
    first, other = Known(lookup_count=1), Known(lookup_count=1)
    first.note_first(shown, LATEST, 2.5)
    may_be_overlooked = other.may_overlook(asked_s)
    assert not may_be_overlooked, "nothing was told before"
    other.note_told(length, LATEST, may_be_overlooked=may_be_overlooked)
    other.note_content(shown, LATEST, 2.5, is_own=is_own)
    assert first == other != replace(first, given_until_s=LATEST)
