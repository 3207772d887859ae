"""What is changed, what is left alone, and that a change reaches everybody
who uses the function.
"""

import ast
import subprocess
import sys
from textwrap import dedent

import pytest

from .mutants import Mutant, compiled, find_mutants
from .plan import GROUPS, ROOT, Reach

SOURCE = dedent(
    '''
    LIMIT = 5

    class Thing:
        """Says 1."""

        size: int = 4

        @property
        def is_big(self) -> bool:
            """Whether 1 < 2."""
            assert self.size > 3, f"{self.size + 1}"
            log.info("size %d", self.size + 1)
            return self.size > LIMIT and not self.is_new

        def grow(self, by=2):
            self.size += by
            self.told = None
            if self.is_new:
                raise ValueError("new")
            for _ in range(3):
                break
            notify(self)
            return
    '''
)


def shown(source):
    return [f"{m.function}: {m.before} -> {m.after}" for m in find_mutants("x.py", source)]


def test_what_is_changed():
    assert shown(SOURCE) == [
        "Thing.is_big: return self.size > LIMIT and (not self.is_new) -> return None",
        (
            "Thing.is_big: self.size > LIMIT and (not self.is_new) -> self.size > LIMIT or not "
            "self.is_new"
        ),
        "Thing.is_big: self.size > LIMIT -> self.size >= LIMIT",
        "Thing.is_big: not self.is_new -> self.is_new",
        "Thing.grow: self.size += by -> self.size -= by",
        "Thing.grow: self.told = None -> pass",
        "Thing.grow: self.is_new -> not self.is_new",
        "Thing.grow: raise ValueError('new') -> pass",
        "Thing.grow: 3 -> 4",
        "Thing.grow: break -> continue",
        "Thing.grow: notify(self) -> pass",
    ]


@pytest.mark.thorough
def test_each_mutant_of_the_row_compiles_to_other_code():
    for paths in GROUPS.values():
        source = (ROOT / paths[0]).read_text()
        clean = {(c.line, c.before): c for c in find_mutants(paths[0], source)}
        for mutant in list(clean.values())[::10]:
            codes = compiled(mutant, source, paths[0])
            assert any(name[0].startswith(mutant.function) for name in codes), mutant
        ast.parse(source)


@pytest.mark.thorough
def test_a_change_reaches_those_who_imported_the_function_before():
    program = dedent(
        """
        from fs.mgmtd.lease import may_act, Held
        from tests.mutation.mutants import find_mutants
        from tests.mutation.plan import ROOT
        from tests.mutation.trial import exchange
        held = Held(1, 0.0)
        assert may_act(held, now_s=1.0, lease_s=6.0) and not may_act(held, now_s=9.0, lease_s=6.0)
        path = "fs/mgmtd/lease.py"
        (mutant,) = [
            m for m in find_mutants(path, (ROOT / path).read_text())
            if m.before.startswith("held is not None and")
            and m.after.startswith("held is not None or")
        ]
        exchange(mutant)
        assert may_act(held, now_s=9.0, lease_s=6.0)
        """
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_tests_of_the_module_come_first_and_slow_ones_are_left_out():
    mutant = Mutant("fs/a.py", 0, 11, 10, "f", "1", "2")
    tests = {"t/test_b.py::quick": 0.1, "t/test_a.py::own": 5.0, "t/test_b.py::slow": 100.0}
    reach = Reach(tests, {"fs/a.py": {10: list(tests)}})
    assert reach.tests_of(mutant) == ["t/test_a.py::own", "t/test_b.py::quick"]
    assert Reach(tests, {"fs/a.py": {}}).tests_of(mutant) == []
