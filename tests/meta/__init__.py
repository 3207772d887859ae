"""Tests of the metadata service."""
