"""The checker of accepted chain versions sees updates of each way in, alone and in groups."""

from types import SimpleNamespace

import pytest

from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import Status

from .cluster import watch_updates

CHAIN = 7
ALONE = ("write", "update", "write_ranges", "update_ranges")
GROUPS = ("write_group", "update_group", "replace_group")


def service_at(chain_version, statuses):
    """Return a service that knows one chain, and answers any group with these statuses."""
    chains = {CHAIN: SimpleNamespace(chain_version=chain_version)}
    routing = SimpleNamespace(info=SimpleNamespace(chains=chains))
    service = SimpleNamespace(_context=SimpleNamespace(routing=routing))

    async def alone(_call, _request):
        return pb.UpdateRsp()

    async def group(_call, _request):
        return pb.UpdateGroupRsp(outcomes=[pb.UpdateOutcomePb(status=s) for s in statuses])

    for name in ALONE:
        setattr(service, name, alone)
    for name in GROUPS:
        setattr(service, name, group)
    return service


def update_at(chain_version):
    return pb.UpdateReq(chain_id=CHAIN, chain_version=chain_version)


@pytest.mark.parametrize("name", [*ALONE, *GROUPS])
@pytest.mark.parametrize("sent_at", [3, 4, 5])
async def test_what_was_accepted_under_another_version_is_told(name, sent_at):
    service, bugs = service_at(4, [0, 0]), []
    watch_updates(service, bugs)
    updates = [update_at(4), update_at(sent_at)]
    request = updates[1] if name in ALONE else pb.UpdateGroupReq(updates=updates)
    await getattr(service, name)(None, request)
    assert len(bugs) == (sent_at != 4)


@pytest.mark.parametrize("name", GROUPS)
async def test_what_was_refused_is_not_told(name):
    service, bugs = service_at(4, [0, Status.ROUTING_MISMATCH]), []
    watch_updates(service, bugs)
    await getattr(service, name)(None, pb.UpdateGroupReq(updates=[update_at(4), update_at(3)]))
    assert not bugs
