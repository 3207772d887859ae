"""What users chose as names reaches a terminal as it is written, and says nothing to it."""

import pytest

from fs.app.admin.listing import confirm, print_facts, print_rows

NAMES = [
    ("end[/b]", "end[/b]"),  # which ended the whole listing
    ("[red]tape", "[red]tape"),
    ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
    ("a\x1b[2Jb\r", r"a\x1b[2Jb\x0d"),
]


@pytest.mark.parametrize(("name", "shown"), NAMES)
def test_tables_show_names_as_they_are(name, shown, capsys):
    print_rows([{"name": name}], {"name": None}, as_json=False)
    print_facts({"name": name}, as_json=False)
    confirm([name], dry_run=False, yes=True)
    text = capsys.readouterr().out
    assert text.count(shown) == 3
    assert "\x1b" not in text
