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
        assert kept.place(len(kept), page) == len(added)
        added += page
        assert len(kept) == len(added)
        assert [kept.name_of(i) for i in range(1, len(added) + 1)] == added
    kept.clear()
    assert len(kept) == 0
    kept.place(0, [b"again"])
    assert kept.name_of(1) == b"again"


def test_a_long_listing_takes_a_few_bytes_an_entry():
    kept, count = CookieNames(), 50_000
    for first in range(0, count, 500):
        kept.place(first, [b"sample-%08d.jpg" % i for i in range(first, first + 500)])
    assert kept.packed_bytes < 6 * count
    assert kept.name_of(12_346) == b"sample-00012345.jpg"


@pytest.mark.thorough
@given(st.data(), st.lists(NAMES, max_size=60, unique=True).map(sorted))
def test_what_is_read_again_keeps_its_cookies(data, names):
    kept, known = CookieNames(), 0
    for _ in range(12):
        cookie = data.draw(st.integers(0, known))
        page = names[cookie : cookie + data.draw(st.integers(0, 25))]
        assert kept.place(cookie, page) == cookie
        known = max(known, cookie + len(page))
        assert len(kept) == known
        assert [kept.name_of(i) for i in range(1, known + 1)] == names[:known]


def test_what_has_changed_has_new_cookies():
    kept = CookieNames()
    for name in (b"a", b"b", b"c"):
        kept.place(len(kept), [name])
    assert kept.place(0, [b"a", b"bb", b"c"]) == 3
    assert kept.place(1, [b"b", b"d"]) == 6
    assert kept.place(4, [b"bb", b"c"]) == 4
    assert [kept.name_of(i) for i in range(1, len(kept) + 1)] == [
        *(b"a", b"b", b"c"),
        *(b"a", b"bb", b"c"),
        *(b"b", b"d"),
    ]
