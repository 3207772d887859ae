"""The file-system semantics of a mount, without FUSE: see vfs.py."""
