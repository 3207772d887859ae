"""Clusters of this machine: their directories, and which processes of theirs run."""
