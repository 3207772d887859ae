"""A cluster on one machine: planned, started, waited for, mounted, stopped."""
