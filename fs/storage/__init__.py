"""The storage service: CRAQ chain replication over a chunk engine."""
