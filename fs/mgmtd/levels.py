"""Storage processes of a release that is too old for what metadata services may ask of them.

Nobody else keeps them out: a metadata service looks at its store's format, a storage process
at that of its disks, and either is served by the other.  Each metadata service says what
every storage process has to know (`Node.storage_level_min`, kept with its record), and each
storage process what it knows.

Invariant: who says less is not heard, so it gets no lease, and serves nobody once
the one that it had has run out.

Pure.  Decision: specs/decisions/0155-who-is-waited-for-at-a-start.md.
"""

from ..schema.proto.common_pb2 import NodePb
from ..schema.routing import Role, RoutingInfo
from ..schema.status import FsError, Status


def too_old(info: RoutingInfo, node: NodePb) -> FsError | None:
    """Return why a process may not take part, for people; None: it may."""
    level_min = max(
        (n.storage_level_min for n in info.nodes.values() if Role.META in n.roles), default=0
    )
    if int(Role.STORAGE) not in node.roles or node.storage_level >= level_min:
        return None
    return FsError(
        Status.NOT_SUPPORTED,
        f"node {node.node_id}: its storage process, of release {node.release or 'unknown'}, is too "
        f"old for the metadata of this cluster (it knows level {node.storage_level}, {level_min} "
        "is needed), and serves nothing: start it from the release of the metadata services",
    )
