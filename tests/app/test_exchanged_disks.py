"""A disk that is not in use is not taken for one that was exchanged."""

from types import SimpleNamespace

import pytest

from fs.app.admin.disks import check_used
from fs.app.admin.moves import spread_plan
from fs.schema.ids import NodeId
from fs.schema.routing import Role
from fs.schema.status import FsError, Status
from tests.admin.test_doctor import STORAGE_IDS, node, routing, settings, space

SPACES = {NodeId(n): space(0.5) for n in STORAGE_IDS}


def test_it_is_said_when_rebalancing_can_do_nothing():
    """Was: targets are moved, and then nothing moved: with as few nodes as copies a new disk stays empty."""
    _, why = spread_plan(routing())
    assert why.startswith("only 3 storage nodes are there for chains of 3: nothing can be moved")
    assert len(spread_plan(routing(nodes=[node(14, Role.STORAGE)]))) == 1


def test_only_a_disk_that_is_in_use_is_used_again():
    """Was: whatever stood there, a dead disk too, was said to be used again, and chains were spread over it."""
    configs = {NodeId(13): settings(storage__disks=[{"path": "/d0"}, {"path": "/d1"}])}
    where = SimpleNamespace(run=lambda _use: (routing(), SPACES, configs))
    check_used(where, 13, 0)
    for node_id, index in ((13, 1), (14, 0)):
        with pytest.raises(FsError, match="does not use its disk") as caught:
            check_used(where, node_id, index)
        assert caught.value.status is Status.CONFLICTING_CHANGE
