"""The direct frontend: the kernel's FUSE protocol on /dev/fuse, without libfuse."""
