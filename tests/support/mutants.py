"""Mutants nobody wrote down: small changes drawn from the rules of replication, each run against walk and simulation.

    PYTHONPATH=tests:src python -m support.mutants --draw 14 --count 10

A mutant that survives is a rule that nothing checks, or a change that changes nothing: a person has to say which. So
this is no test: it is run once in a while, and what survives is written down.
"""

from __future__ import annotations

import argparse
import ast
import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from support.planted_bugs import Bug, planted
from support.replication.stories import KINDS
from support.replication.world_bugs import ANEW as WALK_ANEW
from support.replication.world_bugs import WORLD
from support.sim.bugs import ANEW
from support.sim.cluster_bugs import STORY

RULES: Final = Path(__file__).parents[2] / "src" / "penstock" / "domain" / "replication"
PACKAGE: Final = "penstock.domain.replication"
WALK_SEEDS: Final = 300
CLUSTER_SEEDS: Final = 25

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Mutant(msgspec.Struct, frozen=True):
    module: str
    line: int
    # The line that changes, before and after.
    before: str
    after: str
    bug: Bug


def all_mutants() -> list[Mutant]:
    """Of every rule, in the order of their files and lines."""
    found: list[Mutant] = []
    for path in sorted(RULES.glob("*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        found += [mutant for place in range(_place_count(tree)) if (mutant := _mutant(path.stem, source, place))]
    return found


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, Callable[[], None]]]:
    """Every part that can be another, with what makes it so."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Compare) and type(part.ops[0]) in _COMPARISONS:
            yield part, lambda part=part: part.ops.__setitem__(0, _COMPARISONS[type(part.ops[0])]())  # type: ignore[misc]
        elif isinstance(part, ast.BoolOp):
            other = ast.Or if isinstance(part.op, ast.And) else ast.And
            yield part, lambda part=part, other=other: part.__dict__.update(op=other())  # type: ignore[misc]
        elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
            # Twice.
            yield part, lambda part=part: part.__dict__.update(operand=ast.UnaryOp(ast.Not(), part.operand))  # type: ignore[misc]
        elif (
            isinstance(part, ast.Return) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, bool)
        ):
            yield part, lambda part=part: part.__dict__.update(value=ast.Constant(not part.value.value))  # type: ignore[misc]
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add | ast.Sub):
            other_op = ast.Sub if isinstance(part.op, ast.Add) else ast.Add
            yield part, lambda part=part, other=other_op: part.__dict__.update(op=other())  # type: ignore[misc]
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Attribute):
            # Not done at all: its value is looked at and forgotten.
            yield part, lambda part=part: part.targets.__setitem__(0, ast.Name("_forgotten", ast.Store()))  # type: ignore[misc]


def _place_count(tree: ast.AST) -> int:
    return sum(1 for _ in _places(tree))


def _mutant(module: str, source: str, place: int) -> Mutant | None:
    tree = copy.deepcopy(ast.parse(source))
    plain = ast.unparse(tree)
    node, change = list(_places(tree))[place]
    before = ast.unparse(node)
    change()
    after, changed = ast.unparse(node), ast.unparse(ast.fix_missing_locations(tree))
    if changed == plain:
        return None
    line: int = getattr(node, "lineno", 0)
    name = f"{module}:{line}: {before} -> {after}"
    return Mutant(module, line, before, after, Bug(name, f"{PACKAGE}.{module}", source, changed, ""))


def caught_by(mutant: Mutant) -> str | None:
    """What noticed it, and after how many stories; None: nothing did."""
    with planted(mutant.bug, world=WORLD, anew=WALK_ANEW) as walk:
        for seed in range(WALK_SEEDS):
            for kind in KINDS:
                try:
                    walk.run_story(seed, kind)
                except Exception as error:
                    return f"walk ({kind}, seed {seed}): {_named(error)}"
    with planted(mutant.bug, world=STORY, anew=ANEW) as cluster:
        for seed in range(CLUSTER_SEEDS):
            try:
                cluster.tell(seed)
            except Exception as error:
                return f"cluster (seed {seed}): {_named(error)}"
    return None


def _named(error: BaseException) -> str:
    return str(getattr(error, "invariant", type(error).__name__))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m support.mutants")
    parser.add_argument("--draw", type=int, default=14, help="the seed they are drawn by")
    parser.add_argument("--count", type=int, default=10)
    named = parser.parse_args()
    mutants = all_mutants()
    print(f"{len(mutants)} places; {named.count} drawn by {named.draw}")
    for mutant in Random(named.draw).sample(mutants, named.count):
        began = time.process_time()
        found = caught_by(mutant)
        print(f"{found or 'SURVIVED'} | {mutant.bug.name} | {time.process_time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
