"""Derived documents equal what their sources give:
nothing drifts (tests/rpc/test_generate.py: the code).
"""

import re
from functools import cache
from pathlib import Path

from fs.app.documents import generate as documents

ROOT = Path(__file__).resolve().parent.parent


def test_pages_are_fresh():
    stale = [path.name for path, text in documents.pages().items() if path.read_text() != text]
    assert not stale, "run `ember generate`"


def test_every_argument_and_option_of_every_command_says_what_it_is():
    rows = re.findall(
        r"^\| (`.*) \| *(.*?) *\|$", (ROOT / "specs" / "commands.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 500
    assert not [row for row in rows if not row[1].endswith((".", ".)", "?", "!"))]


def test_every_knob_is_documented_somewhere():
    page = documents.config_page()
    assert "| retry_time_s_max | float |" in page
    assert "An operation that meets only retryable errors fails after this long." in page
    rows = re.findall(r"^\| (\w+) \|.*\| *(.*?) *\|$", page, re.MULTILINE)
    assert len(rows) > 100
    assert not [key for key, meaning in rows if key != "key" and not meaning]


PAGES = sorted(ROOT.glob("*.md")) + [
    page for folder in ("specs", "deploy") for page in sorted((ROOT / folder).rglob("*.md"))
]


@cache
def headings(page):
    """Return what a link may say behind the name of a page:
    its headings, as they are turned into names of places.
    """
    found = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return {place(heading) for heading in found}


def place(heading):
    """Return what a heading is called in a link."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_links_between_documents_lead_somewhere():
    lost = []
    for page in PAGES:
        for target, there in re.findall(
            r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()
        ):
            to = page.parent / target if target else page
            if not to.exists() or (there and there not in headings(to)):
                lost.append(f"{page.relative_to(ROOT)} points to {target}#{there}")
    assert not lost


PRESENT = [p for p in PAGES if p.parent.name not in {"decisions", "measurements"}]
"""Those that say how it is, not how it was."""


def test_files_that_pages_name_are_there():
    lost = []
    for page in PRESENT:
        named = re.findall(r"`((?:fs|tests|benchmarks|specs|deploy)/[\w./-]+)`", page.read_text())
        missing = {path for path in named if "NAME" not in path and not (ROOT / path).exists()}
        lost += [f"{page.relative_to(ROOT)} names {path}" for path in sorted(missing)]
    assert not lost


def test_the_first_page_leads_to_every_page():
    linked = {
        target.split("#")[0]
        for target in re.findall(r"\]\(([^)]+)", (ROOT / "README.md").read_text())
    }
    assert not {f"specs/{page.name}" for page in (ROOT / "specs").glob("*.md")} - linked


def test_every_decision_has_a_number_of_its_own_and_says_it():
    paths = sorted((ROOT / "specs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(path.name[:4]) for path in paths]
    assert numbers == sorted(set(numbers))  # given out ahead, so one may still be missing
    for path in paths:
        number = re.match(r"# 0*(\d+)[:.] ", path.read_text())
        assert number and int(number[1]) == int(path.name[:4]), path.name


def test_the_list_of_decisions_names_each_once():
    folder = ROOT / "specs" / "decisions"
    text = (folder / "README.md").read_text()
    listed = re.findall(r"^- \[(\d{4})\]\(([^)]+)\): \S", text, re.MULTILINE)
    assert sorted(name for _, name in listed) == sorted(p.name for p in folder.glob("[0-9]*.md"))
    assert not [name for number, name in listed if number != name[:4]]
    for subject in text.split("\n## ")[1:]:
        numbers = re.findall(r"^- \[(\d{4})\]", subject, re.MULTILINE)
        assert numbers == sorted(numbers), subject.splitlines()[0]


def test_the_summary_of_what_was_tried_leads_to_every_row():
    """Each row has a line in the table at the top and a section of its own, in one order."""
    summary, _, sections = (ROOT / "specs" / "reliability.md").read_text().partition("\n### ")
    rows = re.findall(r"^\| \[(\w+)\]\(#([\w-]+)\) \|", summary, re.MULTILINE)
    titles = [line for line in ("### " + sections).splitlines() if line.startswith("### ")]
    assert [row for row, _ in rows] == [title[4:].split(":")[0] for title in titles]
    assert [to for _, to in rows] == [place(title[4:]) for title in titles]
    assert len({to for _, to in rows}) == len(rows)
