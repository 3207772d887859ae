"""Chains of nodes by integer programming: the best there is for a small table,
or how good it could be at most.

One integer variable for each possible chain (an ordered choice of nodes): how many times it occurs.
That leaves out the numbering of chains, which would multiply every solution by its permutations.
The cost is that of spread.py, a sum of squares of whole counts; a square is above its secants
between whole numbers, so the program with these lines as constraints has the same minimum, and what
the solver proves is a bound for every method.

Needs `highspy` (the extra `placement`); without it `is_there` is False and nothing else may be
called.  Solver: HiGHS; Q. Huangfu, J. A. J. Hall, Math. Program. Comput. 10 (2018).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate, permutations
from math import floor, inf, perm
from typing import Any, Final

from .descent import Block
from .model import Shape
from .spread import node_keys, scales_of, weights

COLUMN_COUNT_MAX: Final = 6000
"""Possible chains.  With more of them the solver does not get far in minutes."""

SECANT_COUNT: Final = 3
"""On either side of the mean count of a key."""


@dataclass(frozen=True, slots=True)
class Solved:
    """What the solver came to."""

    chains: list[Block] | None
    """Of node ids; None when it found no table at all in the time."""
    bound: float
    """No cost is below it."""


def is_there() -> bool:
    """Tell whether the solver is installed."""
    return find_spec("highspy") is not None


def is_small(shape: Shape) -> bool:
    """Tell whether a table is small enough for it."""
    return perm(len(shape.domains), shape.replica_count) <= COLUMN_COUNT_MAX


def solve(shape: Shape, start: Sequence[Sequence[int]], time_limit_s: float) -> Solved:
    """Look for the table of least cost.

    Args:
        shape: quotas and limits.
        start: a table that keeps them, of node ids; the solver goes on from there.
        time_limit_s: of the solver; afterwards the best table found counts.
    """
    import highspy  # noqa: PLC0415 - an extra; loading it takes a moment

    nodes = sorted(shape.domains)
    chains = permutations(range(len(nodes)), shape.replica_count)
    columns = [column for column in chains if _fits(shape, nodes, column)]
    program = _program(shape, nodes, columns)
    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("time_limit", time_limit_s),
        ("mip_rel_gap", 0.0),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(program.model(highspy))
    place = {column: i for i, column in enumerate(columns)}
    values = [0] * len(columns)
    for chain in start:
        values[place[tuple(nodes.index(node) for node in chain)]] += 1
    solution = highspy.HighsSolution()
    solution.col_value = program.completed(values)
    solver.setSolution(solution)
    solver.run()
    info, found = solver.getInfo(), solver.getSolution().col_value
    times = [round(value) for value in found[: len(columns)]]
    made = [[nodes[i] for i in c] for c, n in zip(columns, times, strict=False) for _ in range(n)]
    return Solved(made if len(made) == shape.chain_count else None, info.mip_dual_bound)


def _fits(shape: Shape, nodes: Sequence[int], column: Sequence[int]) -> bool:
    for level, limit in enumerate(shape.limits):
        names = [shape.domains[nodes[i]][level] for i in column]
        if max(map(names.count, names)) > limit:
            return False
    return True


@dataclass(slots=True)
class _Program:
    """Columns: how often each chain, then for each key its count and its square."""

    keys_of: list[list[int]]
    """Of each chain: ordinals of the keys it adds one to."""
    key_costs: list[float]
    key_means: list[float]
    node_rows: list[list[int]]
    """Of each chain: ordinals of its nodes."""
    quotas: list[int]

    def completed(self, values: Sequence[int]) -> list[float]:
        """Return a value for every column, given how often each chain occurs."""
        counts = [0] * len(self.key_costs)
        for times, keys in zip(values, self.keys_of, strict=True):
            for key in keys:
                counts[key] += times
        return [*map(float, values), *map(float, counts), *(float(n * n) for n in counts)]

    def model(self, highspy: Any) -> Any:
        """Return the program in the solver's form."""
        chain_count, key_count = len(self.keys_of), len(self.key_costs)
        matrix: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        lower = [*map(float, self.quotas), *[0.0] * key_count]
        upper = list(lower)
        first = len(self.quotas)
        for column, (nodes, keys) in enumerate(zip(self.node_rows, self.keys_of, strict=True)):
            matrix[column] = [(n, 1.0) for n in nodes] + [(first + key, 1.0) for key in keys]
        for key, mean in enumerate(self.key_means):
            count, square = chain_count + key, chain_count + key_count + key
            matrix[count].append((first + key, -1.0))
            for at in range(max(0, floor(mean) - SECANT_COUNT), floor(mean) + SECANT_COUNT + 1):
                matrix[count].append((len(lower), -(2.0 * at + 1)))
                matrix[square].append((len(lower), 1.0))
                lower.append(-at * (at + 1.0))
                upper.append(inf)
        return _filled(highspy, self, matrix, lower, upper)


def _filled(
    highspy: Any,
    program: _Program,
    matrix: dict[int, list[tuple[int, float]]],
    lower: list[float],
    upper: list[float],
) -> Any:
    chain_count, key_count = len(program.keys_of), len(program.key_costs)
    column_count = chain_count + 2 * key_count
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = column_count, len(lower)
    model.col_cost_ = [*[0.0] * (chain_count + key_count), *program.key_costs]
    model.col_lower_, model.col_upper_ = [0.0] * column_count, [inf] * column_count
    model.row_lower_, model.row_upper_ = lower, upper
    integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    model.integrality_ = [integer] * chain_count + [real] * (2 * key_count)
    entries = [matrix[column] for column in range(column_count)]
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = [0, *accumulate(map(len, entries))]
    model.a_matrix_.index_ = [row for column in entries for row, _ in column]
    model.a_matrix_.value_ = [value for column in entries for _, value in column]
    return model


def _program(shape: Shape, nodes: Sequence[int], columns: Sequence[Sequence[int]]) -> _Program:
    quotas = [shape.node_quotas[node] for node in nodes]
    keys = node_keys(len(nodes))
    scale = scales_of([shape.sizes[node] for node in nodes], shape.replica_count)
    costs: dict[int, float] = {}
    ordinal: dict[int, int] = {}
    keys_of = []
    for column in columns:
        found = keys(column)
        for key, weight in zip(found, weights(shape.replica_count), strict=True):
            ordinal.setdefault(key, len(ordinal))
            costs[key] = weight * (scale(key) if scale else 1.0)
        keys_of.append([ordinal[key] for key in found])
    share = shape.chain_count / len(columns)  # of a chain, when all are used alike
    used = Counter(key for found in keys_of for key in found)
    means = [share * used[key] for key in range(len(ordinal))]
    return _Program(
        keys_of, [costs[key] for key in ordinal], means, [list(c) for c in columns], quotas
    )
