"""Clusters whose processes are started one by one (by_hand.py), ended with the test."""

import pytest

from .by_hand import ByHand


@pytest.fixture
def by_hand(tmp_path):
    made = ByHand(tmp_path)
    yield made
    made.end()


@pytest.fixture
def key_on_mount(by_hand):
    """Let the mount have the key of the cluster."""
    by_hand.mount_with_the_key()
