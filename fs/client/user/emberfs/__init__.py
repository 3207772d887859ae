"""What programs use EmberFS with: batched zero-copy reads and writes, data loaders, checkpoints.

Needs the standard library only; what needs more (`emberfs.torch`, `emberfs.fsspec`) is imported by its own name.
"""
