"""SetSettings: a new version of what is kept for a role;
processes hear of it with their next heartbeat or extension.
"""

from ...schema.proto.mgmtd_pb2 import SetSettingsReq, SetSettingsRsp
from ..primary import Primary
from ..settings_book import known_role, with_settings


async def set_settings(primary: Primary, request: SetSettingsReq) -> SetSettingsRsp:
    """Keep a text; raises FsError(RPC_BAD_REQUEST, BAD_CONFIG, CONFLICTING_CHANGE, NOT_PRIMARY)."""
    role = known_role(request.role)
    await primary.change_settings(
        lambda book, now_ns: with_settings(
            book,
            role,
            request.text,
            note=request.note,
            based_on_version=request.based_on_version,
            now_ns=now_ns,
        )
    )
    return SetSettingsRsp(version=primary.settings.newest(role).version)
