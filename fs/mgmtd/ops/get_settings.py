"""GetSettings: what is kept for a role."""

from ...schema.proto.mgmtd_pb2 import GetSettingsReq, GetSettingsRsp
from ..primary import Primary
from ..settings_book import known_role


async def get_settings(primary: Primary, request: GetSettingsReq) -> GetSettingsRsp:
    """Return the newest version that can be read, or the one asked for;
    raises FsError(RPC_BAD_REQUEST).
    """
    role = known_role(request.role)
    book = primary.settings
    found = book.find(role, request.version) if request.version else book.newest(role)
    return GetSettingsRsp(settings=found, is_newest_lost=not book.knows_newest(role))
