"""The models of specs/models: no property breaks within the bounds of CI,
and each planted error is found.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.examples import some_of

from .cases import LONG_MUTANTS, MUTANTS, SHORT
from .spin import MODELS, missing, run

ROOT = MODELS.parents[1]

pytestmark = pytest.mark.slow
PLANTED = some_of(MUTANTS, 8)
needs_spin = pytest.mark.skipif(bool(missing()), reason=f"not installed: {missing()}")


@needs_spin
@pytest.mark.parametrize("search", SHORT, ids=lambda search: search.name)
def test_no_property_breaks(search, capsys):
    outcome = run(search)
    with capsys.disabled():
        print(f"\n  {search.model} {search.bounds}: {outcome}")
    assert not outcome.broken, outcome


@needs_spin
@pytest.mark.parametrize(("search", "mutant"), PLANTED, ids=[mutant for _, mutant in PLANTED])
def test_a_planted_error_is_found(search, mutant, capsys):
    outcome = run(search, mutant)
    with capsys.disabled():
        print(f"\n  {mutant}: {outcome.states:,} states, {outcome.broken or 'NOT FOUND'}")
    assert outcome.broken not in {"", "MODEL"}, outcome


def test_every_planted_error_is_searched_for():
    planted = {
        name
        for model in MODELS.glob("*.pml")
        for name in re.findall(r"MUTANT_([A-Z_]+)", model.read_text())
    }
    assert planted == {mutant for _, mutant in MUTANTS + LONG_MUTANTS}


def test_the_functions_behind_the_models_exist():
    """The table of specs/craq.md cannot rot."""
    text = (ROOT / "specs/craq.md").read_text().split("## Models", 1)[1]
    named = re.findall(r"`(fs/[\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", text)
    assert len(named) > 20
    gone = [
        f"{path}: {function}"
        for path, functions in named
        for function in re.findall(r"`([\w.]+)`", functions)
        if function not in _defined(ROOT / path)
    ]
    assert not gone, gone


def _defined(path: Path) -> set[str]:
    """Functions and `Class.method`s of a module."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, kinds)}
    return names
