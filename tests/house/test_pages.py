"""The pages: commands parse, options exist, code compiles, links lead somewhere, quoted lines are the
program's."""

import ast
import re
import shlex
from functools import cache

import pytest
from made_runs import ROOT

from boltbox.detector.commands import command_line
from boltbox.detector.commands.command_line import OPTION_NAMES, CommandLine, is_known
from boltbox.detector.commands.doctor.finding import NOTES, WARNINGS
from boltbox.detector.data.datasets import _KINDS as KINDS

PATHS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PATHS}
LINES = {  # a page has no more
    "docs/troubleshooting.md": 150,
    "docs/doctor.md": 90,
    "docs/comparison.md": 75,
    "docs/remote.md": 110,
}
# not in quotation marks, and none that shows how the program answers YOLOv5's `train`
COMMAND = re.compile(r"^ {4,}[^\"\n]*?\bcli\.py (?!train )(.*?)(?:  +#.*)?$", re.MULTILINE)
# our own words for what the field has a word for: of the pages and of all strings in the code
PRIVATE = (
    "data[- ]sets?|in place of|by way of|of one's own|by heart|by accident|accidents|likeliest"
    r"|charged|put down to|answered with|where it lies|anew|from [\d.]+ on(?! average)"
)
OF_PAGES = (
    "trainings|whatever|there is room|(weights|networks?|detectors?|models?)( that)? (knows?|sees?)"
    "|(images|steps|seconds|objects|boxes|lines|rows) an? (step|batch|second|image|line|class|epoch)"
)
LEAST = 12  # characters of a piece of a message that has several


def page(name):
    return PAGES[f"docs/{name}.md"]


@cache
def words_of_the_program():
    """All strings in the code, one per line; of a formatted one the parts between its values."""
    found = []
    for folder in ("detector", "callbacks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def unknown_part(text):
    """What is left of a text after the pieces at its start that the program has as strings."""
    known = words_of_the_program()
    while (text := text.strip(" .,;:()")) not in known:
        ends = [end for end in range(len(text), LEAST - 1, -1) if text[:end] in known]
        if not ends:
            return text
        text = text[ends[0] :]
    return ""


def test_quoted_lines_are_what_the_program_prints():
    quoted = re.findall(r"^ *> `(?:error: )?(.*)`$", page("troubleshooting"), re.MULTILINE)
    assert len(quoted) > 15
    for line in quoted:
        for part in line.split("..."):
            assert unknown_part(part) == "", line


def test_words_are_those_of_the_field():
    texts = PAGES | {"code": words_of_the_program()}
    assert len(texts) > 40
    found = {}
    for name, text in texts.items():
        words = PRIVATE if name == "code" else f"{PRIVATE}|{OF_PAGES}"
        match = re.search(rf"\b({words})\b", " ".join(text.split()), re.IGNORECASE)
        found |= {name: match.group()} if match else {}
    assert found == {}


@pytest.mark.parametrize("name", PAGES)
def test_commands_options_and_code(name, monkeypatch):
    """The data that they name do not exist."""
    monkeypatch.setattr(command_line, "check_paths", lambda options: None)
    text = re.sub(r"\\\n|--config (?:runs/|my_)\S+", " ", PAGES[name])
    for words in COMMAND.findall(text):
        CommandLine(shlex.split(words)).check()  # InputError for an option that is none
    known = set().union(*OPTION_NAMES.values())
    for option in re.findall(r"--([a-z_]+\.[\w.]*\w)", text):
        assert is_known(option, known), option
    for code in re.findall("```python\n(.*?)```", PAGES[name], re.DOTALL):
        compile(code, name, "exec")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    text = PAGES[name]
    assert text.count("\n") <= LINES.get(name, 400)
    links = re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]*))?", text)
    links += re.findall(r"^\[\d+\]: (?!http)(\S+)()", text, re.MULTILINE)
    links += re.findall(r'src="(.*?)"()', text)
    for file, heading in links:
        path = ROOT / name if file == "" else (ROOT / name).parent / file
        assert path.exists(), file
        if heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            anchors = re.sub(r"[^\w\n -]", "", "\n".join(titles)).lower().replace(" ", "-")
            assert heading in anchors.split("\n")


def test_each_source_is_used():
    text = page("comparison")
    sources = re.findall(r"^\[(\d+)\]: ", text, re.MULTILINE)
    used = set(re.findall(r"\[(\d+)\](?!:)", text))
    assert used == set(sources)


def test_doctor_findings():
    """The page names each kind of finding, and no other."""
    named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", page("doctor")))
    alike = re.compile("(duplicate|similar)_(image|across_splits)")  # put together by the code
    known = words_of_the_program()
    for name in named:
        assert name in known or alike.fullmatch(name), name
    kinds = {*WARNINGS, *NOTES}
    for path in (ROOT / "detector/commands/doctor").glob("*.py"):
        pattern = r'(?:Finding\(|kind = |\n {8})"(\w+_\w+)"[,:\n]'
        kinds.update(re.findall(pattern, path.read_text()))
    assert len(kinds) >= 15
    assert (kinds | set(KINDS.values()) | {"malformed_label"}) - named == set()
    assert len(named) < 25
