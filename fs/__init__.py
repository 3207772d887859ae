"""EmberFS: a userspace distributed file system for machine-learning clusters."""
