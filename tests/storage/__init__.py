"""Tests of the storage service."""
