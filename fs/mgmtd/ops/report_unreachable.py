"""ReportUnreachable: somebody was refused by a node;
the primary checks for itself before it judges.
"""

from ...schema.proto.mgmtd_pb2 import ReportUnreachableReq, ReportUnreachableRsp
from ..primary import Primary
from ..probe import Proof


async def report_unreachable(
    primary: Primary, request: ReportUnreachableReq
) -> ReportUnreachableRsp:
    """Probe the node; say whether the reported incarnation is judged gone.

    Raises:
        FsError: NODE_UNKNOWN, NOT_PRIMARY.
    """
    node = primary.info.node(request.node_id)
    incarnation = request.incarnation or node.incarnation
    if node.incarnation != incarnation:
        return ReportUnreachableRsp(judged_dead=True)  # replaced: its process is gone
    if not node.incarnation:
        return ReportUnreachableRsp(judged_dead=False)  # registered, never started
    proof = await primary.probe_node(node)
    return ReportUnreachableRsp(judged_dead=proof is Proof.GONE)
