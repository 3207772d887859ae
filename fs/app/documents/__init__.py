"""The documents in specs/ that are derived from the code."""
