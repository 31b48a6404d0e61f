"""Where the relative paths of a run's config.yaml start: the folder that the run was started in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple


class PathOrigin(NamedTuple):
    """run: the run's folder, now · then: its folder and the working folder when it was started, as
    machine.json says; None: an older run, which does not say."""

    run: Path
    then: tuple[Path, Path] | None = None

    @classmethod
    def of(cls, run: Path) -> PathOrigin:
        """Read machine.json of a run folder; what cannot be read is not known."""
        try:
            told = json.loads((run / "machine.json").read_text(encoding="utf-8"))
            return cls(run, (Path(str(told["run"])), Path(str(told["folder"]))))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return cls(run)

    def folders(self) -> list[Path]:
        """Where a relative path may start, likely ones first: the working folder of then, as it
        lies from the run's folder (both may have moved together) and where it was; without these
        the folder of `runs/`; the working folder of now."""
        found = []
        if self.then:
            run, folder = self.then
            found = [Path(os.path.abspath(self.run / os.path.relpath(folder, run))), folder]
        else:
            found = [Path(os.path.abspath(self.run)).parent.parent]
        return [*found, Path.cwd()]

    def find(self, path: str) -> str:
        """The path as it is reached from here; one that is nowhere stays as it is."""
        if Path(path).is_absolute():
            return path
        there = next(
            (folder / path for folder in self.folders() if os.path.exists(folder / path)), None
        )
        return path if there is None or there == Path.cwd() / path else os.path.abspath(there)

    def looked_in(self, path: str) -> str:
        """Of a path that is nowhere: where it was looked for."""
        folders = dict.fromkeys(str(folder) for folder in self.folders())
        return "" if Path(path).is_absolute() else f" (looked in {', '.join(folders)})"
