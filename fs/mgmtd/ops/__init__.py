"""One file per manager operation."""
