"""Loops over the rows of a batch, compiled where that can be,
each with a twin in Python that does the same.

A kernel is one C file, `NAME.c`, which becomes the module `_NAME`; `NAME.py` offers its functions,
or those of the twin (`NAME_twin.py`) where the module is missing, does not fit, or is not wanted
(`EMBER_KERNELS=python` in the environment).

Lowest layer, beside schema: buffers, descriptors and numbers, nothing of what they mean.
"""
