"""The site's hooks: all pages keep the paths that they have in the repository, so that a link works
in both; the reference is generated from the parsers and the docstrings."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import boltbox
from boltbox.detector.commands.command_line import COMMANDS

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from tests.helpers.option_names import parser_of  # noqa: E402

SHOWN = (
    "*.md",
    "CITATION.cff",
    "docs/**/*",
    "benchmarks/*",
    "examples/**/*",
    "detector/commands/yolov5.yaml",
    "detector/data/*.yaml",
)
SHARED = "fit"  # the command that lists the options of all commands with a Trainer


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the measurements in the navigation."""
    assert config.nav
    pages = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/*.md"))
    config.nav[-1]["Background"][-1]["Measurements"] = pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages of the repository, the files that they link to, and the reference."""
    theme = [file for file in files if not file.src_uri.endswith((".md", ".py"))]
    found = [file for file in theme if file.src_dir != config.docs_dir]
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and path.suffix != ".pyc":
                name = path.relative_to(ROOT).as_posix()
                found.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    for name, text in (("commands", commands()), ("api", api())):
        found.append(File.generated(config, f"reference/{name}.md", content=text))
    return Files(found)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Python-Markdown wants four spaces for what belongs to an item of a list, GitHub as many as
    its marker has."""
    width = 0
    lines = []
    for line in markdown.split("\n"):
        marker = re.match(r"(\d+\.|-) ", line)
        if marker:
            width = marker.end()
        elif line and not line.startswith(" "):
            width = 0
        within = width > 0 and line.startswith(" " * width)
        lines.append(f"    {line[width:]}" if within else line)
    return "\n".join(lines)


def api() -> str:
    """The page of the public names."""
    names = "\n\n".join(f"::: {place(name)}" for name in boltbox.__all__ if name != "callbacks")
    return f"# Python API\n\nThe guide is [docs/python.md](../docs/python.md).\n\n{names}\n"


def place(name: str) -> str:
    """Where a public name is defined."""
    return f"boltbox.{boltbox.PLACES[name]}.{name}"


def commands() -> str:
    """The page of all commands with their options."""
    os.environ["COLUMNS"] = "100"
    text = "# Commands and options\n\n"
    shared = {line.split()[0] for line in options(SHARED)}
    for name, command in COMMANDS.items():
        text += f"## {name}\n\n{command.help}.\n\n"
        own = list(options(name))
        if command.needs_trainer and name != SHARED:
            own = [line for line in own if line.split()[0] not in shared]
            text += f"It has the options of [{SHARED}](#{SHARED}) that apply to it"
            text += ", and:\n\n" if own else ".\n\n"
        text += "\n".join(["```text", *own, "```\n\n"]) if own else ""
    return text


def options(name: str) -> Iterator[str]:
    """Each argument and option of a command, as in its help."""
    for block in re.split(r"\n(?=  \S)", parser_of(name).format_help()):
        word = block.split()[0]
        if re.match("  (--|[A-Z]+ )", block) and not word.endswith("help"):
            yield block.partition("\n\n")[0]
