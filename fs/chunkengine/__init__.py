"""The copy-on-write chunk store of one disk.  Knows nothing of chains or remote calls."""
