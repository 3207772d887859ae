"""Benchmarks: every figure beside the machine's own limit in the same run."""
