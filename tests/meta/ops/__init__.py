"""Tests of the metadata operations, one file per operation."""
