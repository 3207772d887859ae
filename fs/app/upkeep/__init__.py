"""Backups of a cluster's metadata, and checks of its names, usage and disks."""
