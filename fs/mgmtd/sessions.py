"""Client sessions: which clients are there, in the primary's memory only.

A new primary has heard of nobody, so its list is complete only once it is older than a session can
last without being extended.  Times are arguments.  Sessions end by being closed or by silence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..schema.proto.mgmtd_pb2 import ClientSessionPb, ExtendClientSessionReq
from ..schema.status import FsError, Status

SESSION_COUNT_MAX: Final = 100_000

TagsOf = Callable[[str], Mapping[str, str]]
"""Returns the tags of a host."""


def _no_tags(_host_name: str) -> Mapping[str, str]:
    return {}


@dataclass(slots=True)
class ClientSession:
    """One client's session."""

    request: ExtendClientSessionReq
    started_s: float
    extended_s: float


class ClientSessions:
    """All of them, by client id."""

    def __init__(self, session_s: float, now_s: float) -> None:
        self._session_s = session_s
        self._started_s = now_s
        self._sessions: dict[str, ClientSession] = {}

    @property
    def count(self) -> int:
        """Clients known."""
        return len(self._sessions)

    def extend(self, request: ExtendClientSessionReq, now_s: float) -> None:
        """Begin or extend a session; raises FsError(RPC_OVERLOADED) beyond SESSION_COUNT_MAX."""
        session = self._sessions.get(request.client_id)
        if session is not None:
            session.request, session.extended_s = request, now_s
            return
        if len(self._sessions) >= SESSION_COUNT_MAX:
            raise FsError(Status.RPC_OVERLOADED, f"{SESSION_COUNT_MAX} client sessions")
        self._sessions[request.client_id] = ClientSession(request, now_s, now_s)

    def close(self, client_id: str) -> None:
        """End a session; nothing happens when there is none."""
        self._sessions.pop(client_id, None)

    def excuse(self, seconds: float, now_s: float) -> None:
        """Forgive every client so much silence, because the primary could not hear;
        at most all of it.
        """
        for session in self._sessions.values():
            session.extended_s = min(session.extended_s + seconds, now_s)

    def expire(self, now_s: float) -> list[str]:
        """Drop the sessions not extended for too long; return their client ids."""
        expired = [
            client_id
            for client_id, session in self._sessions.items()
            if now_s - session.extended_s > self._session_s
        ]
        for client_id in expired:
            del self._sessions[client_id]
        return expired

    def is_complete(self, now_s: float) -> bool:
        """Tell whether a client that is not listed has certainly no session."""
        return now_s - self._started_s > self._session_s

    def listed(self, now_s: float, tags_of: TagsOf = _no_tags) -> list[ClientSessionPb]:
        """Return the sessions, oldest first, with the tags of their hosts."""
        return [
            ClientSessionPb(
                client_id=client_id,
                host_name=session.request.host_name,
                mount_point=session.request.mount_point,
                pid=session.request.pid,
                age_s=now_s - session.started_s,
                idle_s=now_s - session.extended_s,
                settings=session.request.settings if session.request.HasField("settings") else None,
                tags=tags_of(session.request.host_name),
                release=session.request.release,
            )
            for client_id, session in self._sessions.items()
        ]
