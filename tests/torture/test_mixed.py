"""What blocks are made of."""

from .mixed import BLOCK, Part, content, parts_of


def test_a_block_of_one_version_is_one_part():
    data = content(7, 3 * BLOCK)
    assert parts_of(bytes(data[2 * BLOCK :])) == [Part(0, 7, 2)]


def test_a_mixed_block_says_both_versions_and_where_they_begin():
    new, old = (bytes(content(version, BLOCK)) for version in (119, 118))
    assert parts_of(new[:544] + old[544:4080] + new[4080:]) == [
        Part(0, 119, 0),
        Part(544, 118, 0),
        Part(4080, 119, 0),
    ]
