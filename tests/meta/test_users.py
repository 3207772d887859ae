"""In whose name a user's client may ask."""

import pytest

from fs.meta.users import admit
from fs.rpc.api import Identity
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import CallerPb
from fs.schema.status import FsError, Status
from fs.schema.user import User

PEER = Identity("c", client_id="mine")
ALICE = User(1000, "alice", 100, frozenset({10, 20}))
DAEMON = User(0, "daemon", 0, is_root=True)


def caller(**fields):
    return CallerPb(**{"uid": 1000, "gid": 100, "client_id": "mine", **fields})


def admitted(user, **fields):
    request = meta.GetAttrReq(caller=caller(**fields))
    admit(user, PEER, request)
    return request.caller


@pytest.mark.parametrize(
    "fields", [{"uid": 0}, {"uid": 1001}, {"client_id": "theirs"}, {"client_id": ""}]
)
@pytest.mark.parametrize("wrap", [False, True])
def test_a_user_is_itself(fields, wrap):
    request = meta.GetAttrReq(caller=caller(**fields))
    if wrap:
        request = meta.CloseReq(sync=meta.SyncReq(caller=caller(**fields)))
    with pytest.raises(FsError) as caught:
        admit(ALICE, PEER, request)
    assert caught.value.status is Status.RPC_NOT_ALLOWED


@pytest.mark.parametrize(("said", "taken"), [(100, 100), (10, 10), (0, 100), (999, 100)])
def test_a_user_has_its_own_groups(said, taken):
    found = admitted(ALICE, gid=said, groups=[0, 10, 999])
    assert (found.uid, found.gid, list(found.groups)) == (1000, taken, [10, 20])


def test_the_root_flag_is_for_everybody_but_other_clients():
    found = admitted(DAEMON, uid=4711, gid=5, groups=[6])
    assert (found.uid, found.gid, list(found.groups)) == (4711, 5, [6])
    with pytest.raises(FsError, match="may not speak for 'theirs'"):
        admitted(DAEMON, client_id="theirs")


def test_a_request_without_a_caller_stays_without_one():
    request = meta.GetAttrReq(inode_id=3)
    admit(ALICE, PEER, request)
    assert not request.HasField("caller")
