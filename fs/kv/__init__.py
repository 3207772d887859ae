"""The transactional key-value layer: one protocol, several engines, one retry loop."""
