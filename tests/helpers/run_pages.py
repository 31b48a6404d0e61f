"""`python -m tests.helpers.run_pages [PAGE...]` runs every command and block of code of README.md and
docs/ (or of these pages) from the top of a page to its end, in a folder of its own, as a reader
pastes them. run_pages.yaml makes the files that pages name and makes trainings short; it lists what
is not run, with the reason."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

import torch
import yaml

import boltbox.detector.commands.lightning_cli  # noqa: F401 - forks need not import it
from tests.helpers.forked import forks

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
COMMAND = re.compile(r"((?:\w+=\S* )*)python (cli\.py [^;&|<>$]*)")
VARIABLE = re.compile(r"(?:export )?(\w+)=(\S+|\$\(.*\))")


def blocks_of(text):
    """Line, language and lines of each block, fenced or indented."""
    found = []
    language = None
    was_block = False
    for number, line in enumerate(text.split("\n"), 1):
        fence = re.match(r" *```(\w*)", line)
        if fence:
            language = fence[1] if language is None else None
        is_block = not fence and (language is not None or line.startswith("    "))
        if is_block and not was_block:
            found.append((number, language, []))
        if is_block:
            found[-1][2].append(line)
        was_block = is_block
    return found


def first(rules, text):
    """The value of the first pattern that is in the text."""
    for pattern, value in rules.items():
        if re.search(pattern, text):
            return value
    return None


def replaced(rules, text):
    for pattern, replacement in rules.items():
        text = re.sub(pattern, replacement, text)
    return text


def shortened(line):
    """The command with options that make it short."""
    for pattern, options in RULES["added"].items():
        for name, value in options.items():
            if re.search(pattern, line) and f"--{name} " not in line:
                line += f" --{name} {value}"
    return replaced(RULES["replaced"], line)


class Page:
    """A page that is run in the current folder."""

    def __init__(self, name):
        self.name = name
        self.text = (ROOT / name).read_text()
        self.variables = {"__name__": "__main__"}
        self.failed = 0

    def run(self):
        """The number of failures."""
        exec(RULES["known"].get(self.name, ""), self.variables)
        blocks = blocks_of(self.text)
        for _, language, lines in blocks:
            if language == "python":
                self.save("\n".join(lines))
        for number, language, lines in blocks:
            text = "\n".join(lines)
            rule = first(RULES["blocks"], text)
            if language == "python":
                self.report(number, text, self.python)
            elif isinstance(rule, str):
                print(f"{self.name}:{number}: {rule}")
            elif rule is not None:
                Path(rule["name"]).write_text(text)
                self.report(number, rule["command"], self.shell)
            else:
                joined = re.sub(r" *\\\n *", " ", text)
                for line in filter(None, map(str.strip, joined.split("\n"))):
                    self.report(number, re.sub("  +#.*", "", line), self.shell)
        return self.failed

    def report(self, number, text, run):
        reason = first(RULES["not_run"], text)
        problem = None if reason else run(text)
        title = text.strip().partition("\n")[0]
        print(f"{self.name}:{number}: {title}: {reason or problem or 'ok'}", flush=True)
        if problem:
            self.failed += 1

    def save(self, text):
        """Code with a class that the page names as one of a file of the reader's is that file."""
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            module = re.search(rf"\b(my_\w+)\.{name}\b", self.text)
            if module:
                Path(f"{module[1]}.py").write_text(text)

    def python(self, text):
        code = replaced(RULES["python"], text)
        try:
            exec(compile(code, self.name, "exec"), self.variables)
        except Exception:
            return f"FAILED\n{traceback.format_exc()}"
        return None

    def shell(self, line):
        line = shortened(line)
        command = COMMAND.fullmatch(line)
        variable = VARIABLE.fullmatch(line)
        environment = dict(os.environ)
        words = ["bash", "-c", line]
        if command:  # a fork
            words = [sys.executable] + shlex.split(command[2])
            environment.update(word.split("=", 1) for word in shlex.split(command[1]))
        elif variable:
            words[2] += f'; printf %s "${variable[1]}"'
        with tempfile.TemporaryFile() as log:
            status = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            ).returncode
            log.seek(0)
            output = log.read().decode(errors="replace")
        if variable:
            os.environ[variable[1]] = output
        return f"FAILED ({status})\n$ {line}\n{output[-1500:]}" if status else None


def run_here(name, folder):
    """Whether a page, run in a process of its own, has failures."""
    child = os.fork()
    if child == 0:
        status = 1
        os.setsid()
        try:
            os.chdir(folder)
            status = Page(name).run()
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    with suppress(ProcessLookupError):  # servers that the page has started
        os.killpg(child, signal.SIGKILL)
    return status != 0


def main(names):
    found = sorted(map(str, Path("docs").glob("*.md")))
    failed = []
    torch.set_num_threads(1)  # after code of a page, a fork would wait for threads it does not have
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ |= {"ROOT": str(ROOT), "WANDB_MODE": "offline"}
    with tempfile.TemporaryDirectory() as scratch, forks():
        os.environ["BOLTBOX_CACHE"] = f"{scratch}/cache"
        folder = Path(scratch, "page")
        folder.mkdir()
        subprocess.run(["bash", "-ec", RULES["made"]], cwd=folder, check=True)
        made = folder.rename(f"{scratch}/made")
        for name in names or ["README.md"] + found:
            shutil.copytree(made, folder, symlinks=True)
            if run_here(name, folder):
                failed.append(name)
            shutil.rmtree(folder)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
