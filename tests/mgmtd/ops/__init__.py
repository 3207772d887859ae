"""Tests of the cluster manager's operations."""
