"""Tests of fs/admin."""
