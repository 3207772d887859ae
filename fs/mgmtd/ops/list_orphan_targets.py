"""ListOrphanTargets: targets that nodes report and no chain holds."""

from ...schema.proto.mgmtd_pb2 import ListOrphanTargetsReq, ListOrphanTargetsRsp
from ...schema.routing import Target, target_to_pb
from ..primary import Primary


async def list_orphan_targets(
    primary: Primary, _request: ListOrphanTargetsReq
) -> ListOrphanTargetsRsp:
    """Return them by id."""
    orphans = sorted((t for t in primary.info.targets.values() if not t.chain_id), key=_target_id)
    return ListOrphanTargetsRsp(targets=map(target_to_pb, orphans))


def _target_id(target: Target) -> int:
    return target.target_id
