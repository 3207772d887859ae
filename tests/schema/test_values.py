"""Values that are made plainly: like frozen dataclasses of the same fields,
but for the check at run time.
"""

import copy
import pickle
from dataclasses import dataclass, fields, replace

import pytest

from fs.client.vfs.creating import Opened
from fs.client.vfs.shared import Seen
from fs.meta.usage_sum import Usage
from fs.schema.inode import DirectoryPart, FilePart, Inode
from fs.schema.layout import Extent, FileRef, Layout
from fs.schema.values import value

KINDS = [Layout, FileRef, Extent, Inode, FilePart, DirectoryPart, Opened, Seen, Usage]


@value(frozen=True, slots=True)
class Pair:
    first: int
    second: bytes = b""


@dataclass(frozen=True, slots=True)
class FrozenPair:
    first: int
    second: bytes = b""


def test_a_value_is_what_a_frozen_dataclass_is():
    pair, frozen = Pair(1, second=b"x"), FrozenPair(1, second=b"x")
    assert pair == Pair(1, b"x") and pair != Pair(2, b"x") and pair != (1, b"x")
    assert hash(pair) == hash(frozen)
    assert repr(pair) == repr(frozen).removeprefix("Frozen")
    assert replace(pair, first=3) == Pair(3, b"x") and pair.first == 1
    assert pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair) == pair
    with pytest.raises(TypeError):
        Pair()
    with pytest.raises(AttributeError):  # a name that is no field's
        pair.third = 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_reply_makes_is_made_plainly(kind):
    """A frozen dataclass makes a call of a function for each of its fields."""
    assert "__setattr__" not in kind.__init__.__code__.co_names
    values = tuple(range(len(fields(kind))))
    assert kind(*values) == kind(*values) and hash(kind(*values)) == hash(kind(*values))
