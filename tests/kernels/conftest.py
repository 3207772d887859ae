"""Both that can serve: every test of a kernel runs with the compiled one and with its twin."""

import pytest

from fs.kernels import reads, reads_twin

if reads.IS_COMPILED:
    from fs.kernels import _reads as compiled
else:
    compiled = None


@pytest.fixture(params=["compiled", "twin"])
def kernel(request):
    """The functions of fs/kernels/reads.py."""
    if request.param == "twin":
        return reads_twin
    if compiled is None:
        pytest.skip("not compiled: python setup.py build_ext --inplace")
    return compiled
