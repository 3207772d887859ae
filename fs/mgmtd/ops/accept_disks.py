"""AcceptDisks: takes disks that served under a store that is gone into the chains of this one,
under the birth that they noted.
"""

import logging
from collections.abc import Iterator

from ...schema.ids import TargetId
from ...schema.proto.mgmtd_pb2 import AcceptDisksReq, AcceptDisksRsp, RefusedDiskPb
from ...schema.status import FsError, Status
from ..adoption import adopted, obstacles
from ..primary import Primary
from ..store import Change

logger = logging.getLogger(__name__)


async def accept_disks(primary: Primary, request: AcceptDisksReq) -> AcceptDisksRsp:
    """Accept all disks that are refused for another birth, all or none;
    without `accept` only tell of them.

    Every chain then waits, as after a restore, until those of its members are heard
    who can know its newest data.

    Raises:
        FsError: UNSAFE_CHANGE (there are none, or something speaks against it), NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        found = list(_refused(primary))
        against = obstacles(
            primary.info,
            primary.state.standings,
            {TargetId(t.target_id): t.watermark for t in found},
            request.namespace_birth_ns,
        )
        if request.accept:
            if against:
                raise FsError(Status.UNSAFE_CHANGE, against[0])
            chains = adopted(primary.info, primary.state.standings, primary.wall_ns)
            logger.error(
                "disks of another store are accepted, because an operator asked for it: targets %s",
                [t.target_id for t in found],
            )
            await primary.settle(Change(chains=chains), why="disks of another store were accepted")
        return AcceptDisksRsp(disks=found, obstacles=against)


def _refused(primary: Primary) -> Iterator[RefusedDiskPb]:
    """Yield the members of chains that are refused for another birth than their chains have now:
    what was accepted is refused until it is heard again.
    """
    state, info = primary.state, primary.info
    for target_id, target in sorted(info.targets.items()):
        noted = state.standings.get(target_id)
        if not target.chain_id or noted is None or not state.births.refusal(target_id):
            continue
        if noted.is_of_other_store(info.chain(target.chain_id).birth_ns):
            yield RefusedDiskPb(
                target_id=target_id,
                node_id=target.node_id,
                chain_id=target.chain_id,
                birth_ns=noted.birth_ns,
                chain_version=noted.chain_version,
                watermark=state.watermarks.told.get(target_id, 0),
            )
