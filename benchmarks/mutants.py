"""Do the tests notice a change of the code? Mutants of the product, drawn at random, against its tests.

    python -m benchmarks.mutants --count 300 --seed 0 --jobs 2 --out mutants.csv

A mutant is one small change: a comparison, an operator, a number, a condition, or a call left out.
Each is tried in a copy of the working tree: first the quick tests of its room, then all tests of the
room, then, with --all, the other tests too. mutants.csv has a row per mutant: killed or survived,
and the first test that failed. A repeated command continues the table.
"""

import argparse
import ast
import csv
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = {  # tests of a room that do not lie in the folder of its name
    "callbacks": ["callbacks", "training", "checkpoint"],
    "checkpoint": ["checkpoint"],
    "commands": ["commands", "report"],
    "data": ["data", "golden"],
    "distributed": ["training"],
    "evaluation": ["evaluation", "golden"],
    "inference": ["inference", "commands"],
    "loggers": ["callbacks"],
    "model": ["model", "golden"],
    "report": ["report", "commands"],
    "system": ["checkpoint", "commands", "weights"],
    "training": ["training", "golden", "checkpoint"],
    "weights": ["weights", "model"],
}
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Mutant(NamedTuple):
    """A change of one place: lines and columns as in ast, and the new text."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    new: str

    def apply(self, text: str) -> str:
        lines = text.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        after = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (before + self.new.encode() + after).decode()


def mutants(file: str, text: str) -> Iterator[Mutant]:
    """All mutants of a file."""
    tree = ast.parse(text)
    annotations = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            annotation = getattr(node, field, None)
            if annotation is not None:
                annotations |= set(ast.walk(annotation))
    for node in ast.walk(tree):
        new = None if node in annotations else changed(node)
        if new is not None:
            place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
            yield Mutant(file, *place, new)


def changed(node: ast.AST) -> str | None:
    """The text of the changed node; None for one that stays."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            new: ast.expr = ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
        case ast.BinOp(op=op) if type(op) in SWAPS:
            new = ast.BinOp(node.left, SWAPS[type(op)](), node.right)
        case ast.BoolOp(op=op):
            new = ast.BoolOp(SWAPS[type(op)](), node.values)
        case ast.UnaryOp(op=ast.Not()):
            new = node.operand
        case ast.Constant(value=bool(value)):
            new = ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            new = ast.Constant(value + 1)
        case ast.IfExp() | ast.If():
            return None
        case ast.Expr(value=ast.Call()):
            return "pass"
        case _:
            return None
    return f"({ast.unparse(new)})"


def drawn(count: int, seed: int) -> list[Mutant]:
    """That many mutants of the product, each with the same chance."""
    names = subprocess.check_output(
        ["git", "ls-files", "detector", "callbacks"], cwd=ROOT, text=True
    )
    every = []
    for name in sorted(names.split()):
        if name.endswith(".py"):
            every += list(mutants(name, (ROOT / name).read_text()))
    return random.Random(seed).sample(every, count)


def trial(mutant: Mutant, tree: Path, everything: bool) -> str:
    """The first test that fails with the mutant in this copy of the tree; "" if none does."""
    path = tree / mutant.file
    text = path.read_text()
    path.write_text(mutant.apply(text))
    parts = mutant.file.split("/")
    room = parts[1] if parts[0] == "detector" else parts[0]
    folders = [f"tests/{name}" for name in FOLDERS[room]]
    stages = [["-m", "quick", *folders], folders]
    if everything:
        stages.append(["tests"])
    try:
        for stage in stages:
            failure = failed(stage, tree)
            if failure:
                return failure
        return ""
    finally:
        path.write_text(text)
        shutil.rmtree(tree / "tmp")
        (tree / "tmp").mkdir()


def failed(stage: list[str], tree: Path) -> str:
    """The first failing test of a stage."""
    words = ["-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", *stage]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tree / "tmp")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=tree,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return "time-out"
    if process.returncode == 0:
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return named[1] if named else output[-200:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="survivors of their room meet all tests")
    parser.add_argument("--out", type=Path, default=Path("mutants.csv"))
    arguments = parser.parse_args()
    columns = [*Mutant._fields, "test"]
    known = set()
    if arguments.out.is_file():
        with arguments.out.open(newline="") as file:
            known = {tuple(row[name] for name in Mutant._fields) for row in csv.DictReader(file)}
    else:
        arguments.out.write_text(",".join(columns) + "\n")
    waiting = [m for m in drawn(arguments.count, arguments.seed) if tuple(map(str, m)) not in known]

    def work(own: list[Mutant]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
            for name in names:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
            (tree / "tmp").mkdir()
            for mutant in own:
                test = trial(mutant, tree, arguments.all)
                print(
                    f"{mutant.file}:{mutant.line} {mutant.new[:60]}: {test or 'SURVIVED'}",
                    flush=True,
                )
                with arguments.out.open("a", newline="") as file:
                    csv.writer(file).writerow([*mutant, test])

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(work, [waiting[k :: arguments.jobs] for k in range(arguments.jobs)]))


if __name__ == "__main__":
    main()
