"""One training of a study: a `fit` of its own process, and the figures that it ends with."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.report.charts import points
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.trusted import trusting
from boltbox.detector.weights.trained import read_trained

ROOT = Path(__file__).parents[2]
METRIC = "coco/AP"
Curve = tuple[tuple[int, float, float], ...]


@dataclass(frozen=True)
class Figures:
    """score: COCO's AP of the best epoch, on the split named in `split` · curve: (epochs trained,
    seconds of training and validation so far, COCO's AP on val) after each epoch · parameters: of
    the network."""

    score: float
    split: str
    curve: Curve
    parameters: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Figures:
        """From plain types."""
        curve = tuple(
            (int(epoch), float(seconds), float(score)) for epoch, seconds, score in record["curve"]
        )
        return cls(record["score"], record["split"], curve, record["parameters"])


@dataclass(frozen=True)
class Training:
    """dataset: as for data.dataset · name: of the data set in tables · recipe: its name · words:
    options of fit that make up the recipe · common: those that all trainings of the study share ·
    seed · folder: of the run."""

    dataset: str
    name: str
    recipe: str
    words: tuple[str, ...]
    common: tuple[str, ...]
    seed: int
    folder: Path

    def __str__(self) -> str:
        return f"{self.recipe} on {self.name}, seed {self.seed}"

    @property
    def figures_file(self) -> Path:
        return self.folder / "figures.json"

    def is_done(self) -> bool:
        return self.figures_file.is_file()

    def run(self, environment: Mapping[str, str]) -> None:
        """Train, or go on where the last call was interrupted, then evaluate on the test split if
        there is one.

        Raises:
            InputError: the command failed; it names the log.
        """
        claim(self.folder, "fit")
        given = [
            *self.words,
            *self.common,
            "--data.dataset",
            self.dataset,
            "--seed_everything",
            str(self.seed),
        ]
        quiet = ["--trainer.enable_progress_bar", "false"]
        self._call(
            "fit", [*given, *quiet, "--run", str(self.folder), "--ckpt_path", "auto"], environment
        )
        has_test = "test" in DatasetFile.read(self.dataset).splits
        best = self.folder / "checkpoints/best.ckpt"
        if has_test:
            words = [
                "--ckpt_path",
                str(best),
                "--data.dataset",
                self.dataset,
                "--run",
                str(self.folder / "test"),
                *quiet,
                "--trust_parts",
                "true",
            ]
            self._call("test", words, environment)
        evaluated = RunFiles.read(self.folder / "test" if has_test else self.folder).metrics
        with trusting(everything=True):  # recipes may name code, and who wrote them runs this
            parameters = sum(p.numel() for p in read_trained(best).network.parameters())
        self.keep(Figures(evaluated[METRIC], evaluated["split"], self._curve(), parameters))

    def keep(self, figures: Figures) -> None:
        """From now on the training is done, with these figures."""
        text = json.dumps(asdict(figures)).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.figures_file, lambda file: file.write(text))

    def _call(self, command: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        log = self.folder / f"{command}.log"
        with log.open("ab") as file:
            line = [sys.executable, str(ROOT / "cli.py"), command, *words]
            code = subprocess.run(
                line, env={**os.environ, **environment}, stdout=file, stderr=file, check=False
            ).returncode
        if code:
            last = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[
                -1
            ]
            raise InputError(f"{self}: {command} ended with code {code} ({last}); {log}")

    def figures(self) -> Figures:
        """Of a training that is done."""
        return Figures.of(json.loads(self.figures_file.read_text()))

    def _curve(self) -> Curve:
        rows = RunFiles.read(self.folder).epochs
        scores = points(rows, f"val/{METRIC}")
        times = points(rows, "seconds")
        passed = accumulate(spent for _, spent in times)
        until = {epoch: seconds for (epoch, _), seconds in zip(times, passed, strict=True)}
        return tuple((int(epoch), until[epoch], score) for epoch, score in scores)

    def row(self) -> dict[str, Any]:
        """The training and its figures as a row of a table; seconds and AP are per epoch."""
        figures = self.figures()
        return {
            "recipe": self.recipe,
            "data": self.name,
            "seed": self.seed,
            "options": shlex.join(self.words + self.common),
            "score": figures.score,
            "split": figures.split,
            "parameters": figures.parameters,
            "seconds": " ".join(f"{seconds:.0f}" for _, seconds, _ in figures.curve),
            "AP": " ".join(f"{score:.4f}" for _, _, score in figures.curve),
        }
