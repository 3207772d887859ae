"""Programs that keep files as applications of training teams do:
parts of `tests.real.suites`, run by an interpreter that has their packages.

Each is run with the path of an empty folder, and that folder's path by
another mount, or the same one again.
"""
