"""With this folder in PYTHONPATH every process of Python uses the fake client library
of FoundationDB.
"""

from tests.kv.fake_fdb.library import install

install()
