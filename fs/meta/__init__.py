"""The metadata service: inodes and dentries as key-value transactions."""
