"""SetTags: tags of a node, or of the mounts on a host."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import SetTagsReq, SetTagsRsp
from ...schema.status import FsError, Status
from ..host_tags import HostTags, changed_tags
from ..primary import Primary
from ..store import Change


async def set_tags(primary: Primary, request: SetTagsReq) -> SetTagsRsp:
    """Change tags; what is placed already stays where it is.

    Raises:
        FsError: RPC_BAD_REQUEST, NODE_UNKNOWN, NOT_PRIMARY.
    """
    if bool(request.node_id) == bool(request.host_name):
        raise FsError(Status.RPC_BAD_REQUEST, "tags are of one node, or of one host")
    given = dict(request.tags)
    if request.node_id:
        return SetTagsRsp(tags=await _set_of_node(primary, request, given))

    def change(known: HostTags) -> HostTags:
        tags = changed_tags(known.of(request.host_name), request.change, given)
        return known.with_tags(request.host_name, tags)

    await primary.change_host_tags(change)
    return SetTagsRsp(tags=primary.host_tags.of(request.host_name))


async def _set_of_node(
    primary: Primary, request: SetTagsReq, given: dict[str, str]
) -> dict[str, str]:
    async with primary.lock:
        primary.check_acting()
        node = primary.info.node(request.node_id)
        tags = changed_tags(node.tags, request.change, given)
        if tags != node.tags:
            changed = replace(node, tags=tags)
            await primary.settle(Change(nodes={node.node_id: changed}), why="asked for")
    return tags
