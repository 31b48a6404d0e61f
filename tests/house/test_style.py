"""The house rules: linters, types, spelling, one thought a statement, and a README whose figures
are measured."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest
from made_runs import ROOT

README = (ROOT / "README.md").read_text()
LONGEST = 450  # lines of a file
HOLDERS = (
    *(ast.Assign, ast.AnnAssign, ast.Return, ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Dict),
    *(ast.Subscript, ast.Starred, ast.Attribute, ast.BinOp),
)


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy", "codespell"])
def test_linters_are_content(command):
    module, *options = command.split()
    if module == "codespell":
        module = "codespell_lib"
        pytest.importorskip(module)
    if module == "mypy" and not (ROOT / "boltbox/detector").is_dir():
        pytest.skip("mypy needs the links of boltbox/")
    line = [sys.executable, "-m", module] + options
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def is_pair(node):
    """a, b = x, y"""
    is_tuple = isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
    return is_tuple and ast.Tuple in map(type, node.targets)


def is_starred(node):
    """[*a, ...] or {**a, ...}"""
    if isinstance(node, ast.Dict):
        return None in node.keys
    is_list = isinstance(node, ast.List | ast.Set | ast.Tuple)
    if not is_list or isinstance(getattr(node, "ctx", None), ast.Store):
        return False
    return ast.Starred in map(type, node.elts)


def is_comprehension(node):
    return isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)


def is_nested(node):
    """[... for a in b for c in a]"""
    return is_comprehension(node) and len(node.generators) > 1


def is_valued(node):
    """x = a or b"""
    is_holder = isinstance(node, HOLDERS)
    return is_holder and ast.BoolOp in map(type, ast.iter_child_nodes(node))


# a ratchet: the most per 1,000 statements
PRODUCT = {is_pair: 1.0, is_starred: 4.0, is_comprehension: 32.0, is_nested: 0.5, is_valued: 8.0}
TESTS = {is_pair: 5.0, is_starred: 7.0, is_comprehension: 32.0, is_nested: 0.7, is_valued: 8.0}
# the folders of tests that keep to a limit already
KEPT = {
    is_pair: "callbacks checkpoint commands data evaluation golden house inference model report"
    " training weights",
    is_starred: "callbacks checkpoint commands data golden helpers house inference model training weights",
    is_comprehension: "callbacks checkpoint data evaluation helpers house inference model training"
    " weights",
    is_nested: "callbacks checkpoint commands data evaluation golden helpers inference model report"
    " training weights",
    is_valued: "callbacks checkpoint commands data evaluation inference model report training"
    " weights",
}


@cache
def counts_of(path):
    """How many nodes of a file each of these is true of, and its statements."""
    counts = Counter()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        counts[ast.stmt] += isinstance(node, ast.stmt)
        for is_dense in PRODUCT:
            counts[is_dense] += is_dense(node)
    return counts


def rate(is_dense, *folders):
    """Per 1,000 statements."""
    total = Counter()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            total += counts_of(path)
    return 1000 * total[is_dense] / total[ast.stmt]


def test_one_thought_a_statement():
    for is_dense, most in PRODUCT.items():
        assert rate(is_dense, "detector", "callbacks") <= most, is_dense.__name__
    for is_dense, most in TESTS.items():
        assert rate(is_dense, "tests") <= most, f"{is_dense.__name__} in tests"
    for is_dense, folders in KEPT.items():
        for folder in folders.split():
            found = rate(is_dense, f"tests/{folder}")
            assert found <= TESTS[is_dense], f"{is_dense.__name__} in tests/{folder}"


def test_files_are_short():
    for folder in ("detector", "callbacks"):
        for path in (ROOT / folder).rglob("*.py"):
            assert path.read_text(encoding="utf-8").count("\n") <= LONGEST, path


def test_files_that_the_readme_names_are_there():
    folders = "configs|docs|benchmarks|tests|detector|callbacks"
    named = set(re.findall(rf"(?:{folders})/[\w./-]*|[A-Z]+\.md", README))
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists(), name


def test_figures_of_the_readme_are_measured():
    """The mean AP of each recipe, as benchmarks/recipes.md has it under these headings."""
    sections = (ROOT / "benchmarks/recipes.md").read_text().split("\n## ")
    studies = {
        "from `yolov5n.pt`, 30 epochs": "From yolov5n.pt, 30 epochs, seeds 0, 1, 2\n",
        "the same, 100 training images": "100 training images, from yolov5n.pt, 30 epochs",
        "the same, 50 training images": "50 training images, from yolov5n.pt, 30 epochs",
        "from scratch, 60 epochs": "From scratch, 60 epochs, seeds 0, 1, 2\n",
    }
    for row, heading in studies.items():
        (section,) = [text for text in sections if text.startswith(heading)]
        means = re.findall(r"^\| (?:yolov5|default) \|.*\| ([\d.]+) \| [\d,]+ \|$", section, re.M)
        line = rf"^\| {re.escape(row)} \| ([\d.]+) \| \*\*([\d.]+)\*\* \|$"
        shown = re.search(line, README, re.M)
        assert shown, row
        assert list(map("{:.1f}".format, map(float, means))) == list(shown.groups())
