"""Several users at random against the model, on a local file system and on the mount."""

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.examples import first_quick
from tests.meta.model import Model
from tests.posix.people import Company

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="becomes other users, which only root may"
)


@pytest.mark.parametrize("seed", first_quick(range(1, 5)))
def test_the_model_is_right(seed):
    directory = Path(tempfile.mkdtemp(prefix="ember-people-"))
    try:
        Company(directory, random.Random(seed)).run(300)
    finally:
        shutil.rmtree(directory)


def test_a_wrong_model_is_noticed():
    """One that lets mkdir set the set-group-id bit, and judges in another order."""
    directory = Path(tempfile.mkdtemp(prefix="ember-people-"))
    try:
        company = Company(directory, random.Random(1))
        company.model.__class__ = Model
        with pytest.raises(AssertionError):
            company.run(300)
    finally:
        shutil.rmtree(directory)


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 3))
def test_the_mount_is_right(seed, posix_place):
    Company(posix_place, random.Random(seed)).run(300)
