"""The names by which programs drive the batch interface of 3FS, on an EmberFS mount;
see specs/batch.md.
"""
