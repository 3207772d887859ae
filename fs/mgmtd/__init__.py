"""The cluster manager: leases, chain states, routing info."""
