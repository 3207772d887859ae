"""EmberFS for PyTorch (`pip install emberfs[torch]`):
data sets, a resumable loader, checkpoints.
"""
