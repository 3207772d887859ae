"""The administration commands, one file per group."""
