"""ListRoutingEvents: how the cluster came to be as it is."""

from typing import Final

from ...schema.proto.mgmtd_pb2 import ListRoutingEventsReq, ListRoutingEventsRsp
from ..primary import Primary

PAGE_COUNT_MAX: Final = 100
"""Of one reply: 3 MB if every event is as large as it may be."""


async def list_routing_events(
    primary: Primary, request: ListRoutingEventsReq
) -> ListRoutingEventsRsp:
    """Return a page of events, the newest first; raises FsError as `snapshot_read`."""
    count = min(request.event_count_max or PAGE_COUNT_MAX, PAGE_COUNT_MAX)
    events = await primary.events(request.before_event_id, count + 1)
    return ListRoutingEventsRsp(events=events[:count], has_more=len(events) > count)
