"""House rules that no linter knows: sizes, words, imports, empty package heads, docstrings."""

import ast
import gc
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import pytest

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "_pb2"
SOURCES = sorted(
    path for folder in ("fs", "placement") for path in (ROOT / folder).rglob("*.py")
    if GENERATED not in path.name
)  # fmt: skip

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 12
DATA_PATH_LINES_MAX = 120
DATA_PATHS = {"fs/storage/write_path.py", "fs/storage/read_path.py"}
FILE_LINES_MAX = 800
POSITIONAL_MAX = 7

BANNED_WORDS = {
    "brick": "target", "OSD": "target", "master": "primary", "slave": "successor",
    "fan-out": "stripe size", "cluster map": "routing info", "topology": "routing info",
    "replication group": "chain", "rebuild": "resync", "donor": "feeder",
}  # fmt: skip
BANNED_MODULES = {"utils", "util", "helpers", "helper", "common", "manager", "data", "info", "misc"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text(path: Path) -> str:
    return path.read_text()


@cache
def lowered(path: Path) -> str:
    return text(path).lower()


@cache
def tree(path: Path) -> ast.Module:
    gc.disable()  # its rounds would cost four times what the trees do
    try:
        return ast.parse(text(path))
    finally:
        gc.freeze()  # and those of all later tests would look at the trees again and again
        gc.enable()


@cache
def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return functions and methods, also those within others."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [found for found in statements_below(tree(path)) if isinstance(found, kinds)]


def statements_below(node: ast.AST):
    """Yield statements, also those within others; no expression is looked into,
    of which there are ten times as many.
    """
    for field in ("body", "orelse", "handlers", "cases", "finalbody"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements_below(child)


def code_lines(function) -> int:
    """Lines from `def` to the end, without docstrings: its own, and those of attributes."""
    count = function.end_lineno - function.lineno + 1
    for node in statements_below(function):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                count -= node.end_lineno - node.lineno + 1
    return count


def test_functions_are_short(capsys):
    sizes, too_long = [], []
    for path in SOURCES:
        limit = DATA_PATH_LINES_MAX if name(path) in DATA_PATHS else FUNCTION_LINES_MAX
        for function in functions(path):
            size = code_lines(function)
            sizes.append(size)
            if size > limit:
                too_long.append(f"{name(path)}:{function.lineno} {function.name}: {size} > {limit}")
    cuts = quantiles(sizes, n=100)
    with capsys.disabled():
        print(
            f"\n  {len(sizes)} functions: median {median(sizes):g}, p95 {cuts[94]:g}, max "
            f"{max(sizes)}"
        )
    assert not too_long, "\n".join(too_long)
    assert median(sizes) <= FUNCTION_LINES_MEDIAN_MAX


def test_files_are_short(capsys):
    sizes = {name(path): len(path.read_text().splitlines()) for path in SOURCES}
    with capsys.disabled():
        cuts = quantiles(sizes.values(), n=100)
        print(
            f"\n  {len(sizes)} files, {sum(sizes.values())} lines:"
            f" median {median(sizes.values()):g}, p95 {cuts[94]:g}, max {max(sizes.values())}"
        )
    assert not {k: v for k, v in sizes.items() if v > FILE_LINES_MAX}


def test_functions_take_few_positional_parameters():
    found = []
    for path in SOURCES:
        for function in functions(path):
            count = len([a for a in function.args.args if a.arg not in {"self", "cls"}])
            is_command = any("app.command" in ast.unparse(d) for d in function.decorator_list)
            if count > POSITIONAL_MAX and not is_command:
                found.append(f"{name(path)}:{function.lineno} {function.name}: {count}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("word", BANNED_WORDS)
def test_one_word_for_one_concept(word):
    """specs/glossary.md says what to say instead."""
    pattern = re.compile(rf"\b{re.escape(word)}s?\b", 0 if word.isupper() else re.IGNORECASE)
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in SOURCES
        if word.lower() in lowered(path)  # mostly in none, which this tells soonest
        for number, line in enumerate(text(path).splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"say {BANNED_WORDS[word]!r}:\n" + "\n".join(found)


def test_the_glossary_names_the_banned_words():
    glossary = (ROOT / "specs/glossary.md").read_text().lower()
    assert not [word for word in BANNED_WORDS if word.lower() not in glossary]


def test_modules_have_telling_names():
    assert not [name(path) for path in SOURCES if path.stem in BANNED_MODULES]


def test_own_modules_are_imported_relatively():
    """`fs` is spelled only outside of fs/: the package could be renamed
    by one line of packaging.
    """
    pattern = re.compile(r"^\s*(import fs\b|from fs\b)", re.MULTILINE)
    programs = ROOT / "fs" / "client" / "user"  # packages of their own, which only lie there
    inside = (p for p in SOURCES if (ROOT / "fs") in p.parents and programs not in p.parents)
    assert not [name(path) for path in inside if pattern.search(path.read_text())]


def test_every_folder_is_a_package():
    """The import checker silently skips folders without __init__.py."""
    folders = {path.parent for path in SOURCES}
    assert not [name(f) for f in folders if not (f / "__init__.py").exists()]


ALONE = {"__init__.py", "py.typed"}
"""What a package of one module consists of."""


def test_package_heads_hold_only_a_docstring():
    """Python runs them on every import below, but the import checker does not count them;
    where nothing lies below they may be all that there is.
    """
    heads = [
        path
        for path in SOURCES
        if path.name == "__init__.py"
        and {below.name for below in path.parent.iterdir()} - {"__pycache__"} != ALONE
    ]
    assert not [name(p) for p in heads if len(tree(p).body) > 1]


def test_every_module_says_what_it_is_for():
    assert not [name(p) for p in SOURCES if not ast.get_docstring(tree(p))]


def test_every_string_that_stands_alone_documents_something():
    lost = [
        f"{name(path)}:{here.lineno}"
        for path in SOURCES
        for body in bodies_below(tree(path))
        for before, here in pairwise(body)
        if is_text(here) and not isinstance(before, ast.Assign | ast.AnnAssign)
    ]
    assert not lost


def bodies_below(node: ast.AST):
    """Return the bodies of a module and its classes, where what is assigned has a docstring."""
    yield node.body
    for one in node.body:
        if isinstance(one, ast.ClassDef):
            yield from bodies_below(one)


def is_text(node: ast.stmt) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)


def test_every_todo_names_somebody():
    pattern = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\()")
    assert not [name(p) for p in SOURCES if pattern.search(p.read_text())]


def test_nothing_is_imported_by_a_computed_name():
    """The import contracts cannot see it; what choice.py loads lies beside it, is compiled,
    and imports nothing of ours.
    """
    found = {name(p) for p in SOURCES if "import_module" in text(p)}
    assert found == {"fs/kernels/choice.py"}


def test_no_statement_is_empty_where_an_error_is_swallowed():
    """`except ...: pass` needs a sentence that says why."""
    found = []
    for path in SOURCES:
        if not re.search(r"\bpass\b", text(path)):
            continue
        lines = text(path).splitlines()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler) and isinstance(node.body[0], ast.Pass):
                said = "".join(lines[node.lineno - 1 : node.end_lineno])
                if "#" not in said:
                    found.append(f"{name(path)}:{node.lineno}")
    assert not found, found


def test_no_comment_breaks_a_line_that_would_fit():
    """The formatter breaks a line that its comment makes too long:
    such a comment goes above it, or into the block.
    """
    broken = re.compile(
        r"^( *)(\S.*[\[({])\n((?:\1 {4,}.*\n){1,4})\1([\])}][^#\n]*?)  # (?!noqa|type:|fmt:)",
        re.MULTILINE,
    )
    found = []
    for path in SOURCES:
        for match in broken.finditer(text(path)):
            indent, first, inner, last = match.groups()
            if len(indent + first + last) + sum(map(len, map(str.strip, inner.splitlines()))) < 100:
                number = text(path).count("\n", 0, match.start()) + 1
                found.append(f"{name(path)}:{number}")
    assert not found, found


def test_test_folders_mirror_the_source():
    """tests/<folder> exists for every component that has code;
    admin is tested by its commands, in tests/real.
    """
    folders = {path.parent for path in SOURCES if path.name != "__init__.py"}
    tops = {name(folder).removeprefix("fs/").split("/")[0] for folder in folders} - {"fs", "admin"}
    missing = [top for top in tops if not (ROOT / "tests" / top).is_dir()]
    assert not missing


def test_clocks_are_named_by_the_tests_that_want_them():
    """pytest-trio runs a test in virtual time where the clock is an argument of its own;
    marked, it would run in real time.
    """
    pattern = re.compile(r"usefixtures\([^)]*clock")
    assert not [p for p in sorted((ROOT / "tests").rglob("*.py")) if pattern.search(p.read_text())]
