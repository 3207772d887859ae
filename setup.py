"""Builds the compiled kernels (fs/kernels/*.c); all else stands in pyproject.toml.

    python setup.py build_ext --inplace

They are of Python's stable interface, so one file serves every interpreter from 3.11
on.  Where there is no compiler, or no `xxhash.h` (libxxhash-dev), they are left out,
and their twins in Python serve.
"""

from pathlib import Path

from setuptools import Extension, setup

KERNELS = Path("fs/kernels")
HASHING = sorted((KERNELS / "hashing").glob("*.c"))

setup(
    ext_modules=[
        Extension(
            f"fs.kernels._{source.stem}",
            [path.as_posix() for path in (source, *HASHING)],
            depends=[path.as_posix() for path in KERNELS.rglob("*.h")],
            define_macros=[("Py_LIMITED_API", "0x030b0000")],
            # Without debug information the same source gives the same file in
            # whatever folder it is built.
            extra_compile_args=["-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"],
            optional=True,
            py_limited_api=True,
        )
        for source in sorted(KERNELS.glob("*.c"))
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
