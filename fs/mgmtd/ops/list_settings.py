"""ListSettings: which versions are kept for which role, and how far every node is."""

from ...schema.proto.common_pb2 import StoredSettingsPb
from ...schema.proto.mgmtd_pb2 import ListSettingsReq, ListSettingsRsp, NodeSettingsPb
from ..primary import Primary


async def list_settings(primary: Primary, _request: ListSettingsReq) -> ListSettingsRsp:
    """Return all of it but the texts; a node that this primary has not heard yet is left out."""
    return ListSettingsRsp(
        versions=[
            StoredSettingsPb(role=s.role, version=s.version, note=s.note, created_ns=s.created_ns)
            for _, kept in sorted(primary.settings.versions.items())
            for s in kept
        ],
        nodes=[
            NodeSettingsPb(node_id=node_id, settings=report)
            for node_id, report in sorted(primary.heard_settings.items())
            if node_id in primary.info.nodes
        ],
    )
