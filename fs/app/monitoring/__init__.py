"""What a cluster, its processes and its mounts are doing: status, metrics, profiles."""
