"""The chains of a running cluster as a table of placement:
to be simulated, drawn, or grown on paper.  Pure.

Chains are shown in their preferred order, which is what a table was made for;
members that are away count as there.

Does not know disks without any target: the routing info names none.
"""

from placement.model import Disk, Site
from placement.table_file import TableFile

from ..schema.ids import TargetId
from ..schema.routing import RoutingInfo
from .cluster import domains_of


def table_of(info: RoutingInfo, table_id: int) -> TableFile:
    """Return the newest version of a chain table.

    Raises:
        FsError: the cluster has no such table.
    """
    chains = [info.chain(chain_id) for chain_id in info.chain_table(table_id).chain_ids]
    orders = [chain.preferred_order or [t.target_id for t in chain.targets] for chain in chains]
    table = [tuple(_site(info, target_id) for target_id in order) for order in orders]
    sites = sorted({_site(info, target_id) for target_id in info.targets})
    nodes = {site.node_id for site in sites}
    domains = domains_of({n: info.nodes[n].tags for n in info.nodes if n in nodes})
    return TableFile([Disk(site, domains=domains[site.node_id]) for site in sites], table)


def _site(info: RoutingInfo, target_id: TargetId) -> Site:
    target = info.target(target_id)
    return Site(target.node_id, target.disk_index)
