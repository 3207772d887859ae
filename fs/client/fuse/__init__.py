"""The pyfuse3 front end: translates, calls the vfs, maps errors."""
