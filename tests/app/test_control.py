"""Whom a new file system belongs to."""

import os

import pytest

from fs.app.control import owner_of_the_root


@pytest.mark.parametrize("listen", ["unix:/run/emberfs/c.sock", "tcp:127.0.0.1:7001"])
def test_a_cluster_of_this_machine_belongs_to_who_starts_it(monkeypatch, listen):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 100)
    assert owner_of_the_root(listen) == (1000, 100)


def test_a_cluster_that_others_reach_belongs_to_root_whoever_runs_it(monkeypatch):
    """In a container services run as a user that the machines which mount have never heard of."""
    monkeypatch.setattr(os, "geteuid", lambda: 7000)
    monkeypatch.setattr(os, "getegid", lambda: 7000)
    assert owner_of_the_root("tcp:meta-0.example:7002") == (0, 0)
