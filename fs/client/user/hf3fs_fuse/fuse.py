"""What programs written for 3FS import from its module of this name."""

from emberfs.mount_points import get_mount_point

__all__ = ["get_mount_point"]
