"""Both that can serve: every test of a kernel runs with the compiled one and with its twin."""

from importlib import import_module

import pytest


@pytest.fixture(params=["compiled", "twin"])
def kernel(request):
    """Return the functions of a kernel: those of fs/kernels/NAME.py for test_NAME.py."""
    name = request.module.__name__.rpartition(".test_")[2]
    if request.param == "twin":
        return import_module(f"fs.kernels.{name}_twin")
    if not import_module(f"fs.kernels.{name}").IS_COMPILED:
        pytest.skip("not compiled: python setup.py build_ext --inplace")
    return import_module(f"fs.kernels._{name}")
