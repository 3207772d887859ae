"""The parts of `emberfs.fsspec`, each built on the one before: base, listing, names, content;
files: what is open.
"""
