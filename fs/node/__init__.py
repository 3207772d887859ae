"""A process as a cluster member: heartbeat lease, routing cache, orderly exit."""
