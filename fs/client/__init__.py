"""The native client and the mount daemon."""
