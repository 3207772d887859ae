"""ListHostTags: the tags of hosts that have any."""

from ...schema.proto.mgmtd_pb2 import HostTagsPb, ListHostTagsReq, ListHostTagsRsp
from ..primary import Primary


async def list_host_tags(primary: Primary, _request: ListHostTagsReq) -> ListHostTagsRsp:
    """Return them by host name."""
    hosts = sorted(primary.host_tags.hosts.items())
    return ListHostTagsRsp(hosts=[HostTagsPb(host_name=name, tags=tags) for name, tags in hosts])
