"""Names of cookies: all of them, however they came, in a few bytes each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.client.vfs.cookie_names import CookieNames

NAMES = st.binary(min_size=1, max_size=255).map(lambda b: b.translate(None, b"/\0") or b"x")


@pytest.mark.thorough
@given(st.lists(st.lists(NAMES, max_size=20), max_size=8))
def test_every_cookie_keeps_its_name(pages):
    kept = CookieNames()
    added = []
    for page in pages:
        kept.add_page(page)
        added += page
        assert len(kept) == len(added)
        assert [kept.name_of(i) for i in range(1, len(added) + 1)] == added
    kept.clear()
    assert len(kept) == 0
    kept.add_page([b"again"])
    assert kept.name_of(1) == b"again"


def test_a_long_listing_takes_a_few_bytes_an_entry():
    kept, count = CookieNames(), 50_000
    for first in range(0, count, 500):
        kept.add_page([b"sample-%08d.jpg" % i for i in range(first, first + 500)])
    assert kept.packed_bytes < 6 * count
    assert kept.name_of(12_346) == b"sample-00012345.jpg"
