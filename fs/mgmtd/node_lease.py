"""Judging silence: when a node that is not heard counts as failed,
and what lease an answered heartbeat grants.

Pure.  Two clocks never meet: the node counts its lease from when it *sent* the heartbeat, the
primary counts silence from when it *arrived*, later.  So with node_lease_s <=
certain_s(node_failed_after_s) (asserted by `check_relations`) the node has stopped serving before
it is judged, whatever the network did.

A lease must also not reach a node that still acts on a picture in which it serves though it has
been judged: it is granted only to a node that knows the routing version in which it was last
demoted.  Nor one in which another store of the managers has it serve: that store's versions may be
beyond all of ours, and it takes none of these then until it is started anew.
"""

from ..schema.config import MgmtdSection

STALL_S = 0.5
"""A scan this much later than planned means that the primary itself was stopped,
and so could not hear.
"""


def is_silent(heard_s: float, now_s: float, section: MgmtdSection) -> bool:
    """Tell whether a node last heard at `heard_s` (or first listened for) must have
    stopped serving.
    """
    return now_s - heard_s > section.node_failed_after_s


def granted_s(
    known_version: int, demoted_version: int, published_version: int, section: MgmtdSection
) -> float:
    """Return the lease an answer grants, in seconds from when the heartbeat was sent; 0 for none.

    Args:
        known_version: the routing version that the node acts on.
        demoted_version: that in which it was last demoted.
        published_version: the newest that there is, durably: a node that knows a later
            one has it from another store.
        section: the manager's.
    """
    return section.node_lease_s if demoted_version <= known_version <= published_version else 0.0


def excused_s(planned_s: float, now_s: float) -> float:
    """Return by how much nodes are to be excused because the primary's own scan came late."""
    late_s = now_s - planned_s
    return late_s if late_s > STALL_S else 0.0
