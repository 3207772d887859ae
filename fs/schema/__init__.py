"""The shared vocabulary: ids, statuses, records, configuration.

Imports nothing of ours, does no I/O.
"""
