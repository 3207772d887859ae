"""Tests of chain-table mathematics."""
