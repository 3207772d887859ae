"""Fixtures: stores of every kind."""

from tests.kv import conftest, fixtures

lab = conftest.lab
open_lab = fixtures.open_lab
