"""Cut the power of a training at random instants, resume it, and compare it with one that was never
interrupted.

    python -m benchmarks.power_loss --trials 200

Each trial runs `fit` in a forked process that records its file operations (recorded_disk.py). At
one of them the process ends, and the run folder is rebuilt as the disk may hold it then. The same
command goes on with `--ckpt_path auto`. In the end last.ckpt, best.ckpt, metrics.csv, metrics.json
and the names of all files must be those of the undisturbed run, and a checkpoint that was saved
before the power cut must not be lost.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

import boltbox.detector.checkpoint.writer as writer
import cli
from benchmarks.recorded_disk import RecordedDisk
from benchmarks.resume_fuzz import command, epochs, unlike
from boltbox.detector.checkpoint.reader import newest_valid
from boltbox.detector.data.demo import make_demo

CUT = 77  # exit code of a process whose power was cut
# Lightning's x-axis of loggers; a resume within an epoch changes it
NOT_COMPARED = {"seconds", "_batches_that_stepped"}
CONFIGURATIONS = {  # options of fit beside those of resume_fuzz.command
    "SGD": "--model.optim.optimizer SGD",
    "Muon, 2 workers": "--model.optim.optimizer Muon --data.workers 2",
    "save_period": "--checkpoints.every_minutes 0 --checkpoints.save_period 1",
    "val_check_interval": "--trainer.val_check_interval 2",
    "close_mosaic": "--data.augment.close_mosaic 1 --data.augment.copy_paste 0.3",
    "report": "--checkpoints.every_minutes 0 --report.enabled true --pictures.enabled true",
}
QUICK = "--data.batch_size 8 --model.optim.nominal_batch_size 24"  # three batches an epoch
QUICK += " --autoanchor.enabled false --doctor.enabled false"


@dataclass
class Training:
    """A training in a process of its own, below the folder `disk`, which is what a power cut
    changes.

    folder: holds `disk` and the log. line: of the command.
    """

    folder: Path
    line: list[str]

    def start(self, cut: int = -1, seed: str = "") -> tuple[int, int]:
        """Train until the end, or until the power is cut; then the folder is what is left.

        Args:
            cut: the number of the operation before which the power is cut; one past the end cuts it
                after the end; -1: never.
            seed: decides what is lost.

        Returns:
            The exit code, or CUT, and the number of operations or, of a CUT, the batches that the
            last saved checkpoint had seen.
        """
        receiving, sending = os.pipe()
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            os.setsid()
            self._train(cut, random.Random(seed), sending)
        os.close(sending)
        with open(receiving) as pipe:
            number = int(pipe.read() or 0)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if code == CUT:
            shutil.rmtree(self.folder / "disk")
            os.rename(self.folder / "left", self.folder / "disk")
        return code, number

    def _train(self, cut: int, rng: random.Random, sending: int) -> NoReturn:
        saved = [0]
        save = writer._save

        def leave(code: int, number: int) -> NoReturn:
            os.write(sending, str(number).encode())
            os._exit(code)

        def before(number: int, operation: str) -> None:
            if number == cut:
                print(f"power cut before operation {number}: {operation}", flush=True)
                disk.rebuild(self.folder / "left", rng)
                leave(CUT, saved[0])

        def save_and_note(content: dict[str, Any], targets: list[Path]) -> dict[Path, str]:
            problems = save(content, targets)
            saved[0] = batches(content)
            return problems

        try:
            log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self.folder)
            tempfile.tempdir = str(self.folder)
            disk = RecordedDisk(self.folder / "disk", before)
            writer._save = save_and_note
            code = 0
            with disk.recording():
                try:
                    cli.main(self.line)
                except SystemExit as leaving:
                    code = int(leaving.code or 0)
                sys.stdout.flush()
                if code == 0 and cut >= disk.operations:
                    before(cut, "the end")
            leave(code, disk.operations)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)


def batches(content: dict[str, Any]) -> int:
    """How many batches a checkpoint has seen."""
    return content["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"]


@dataclass
class Outcome:
    """Of a trial.

    Attributes:
        cuts: Of the power.
        problem: What differs in the end, or what was lost; empty if nothing.
    """

    cuts: int = 0
    problem: str = ""


def trial(folder: Path, line: list[str], operations: int, seed: str, reference: Path) -> Outcome:
    """Train below folder/disk, with one or two power cuts, each resumed.

    Args:
        line: of the command.
        operations: how many the undisturbed run has.
        seed: decides all.
        reference: run folder of the undisturbed run, which was trained at the same path.
    """
    rng = random.Random(seed)
    outcome = Outcome()
    (folder / "disk").mkdir()
    cuts = [rng.randrange(operations + 1) for _ in range(rng.choice((1, 1, 2)))]
    for cut in cuts + [-1]:
        code, saved = Training(folder, line).start(cut, f"{seed} {cut}")
        if code == 0:
            break
        if code != CUT:
            outcome.problem = f"exit code {code}"
            return outcome
        outcome.cuts += 1
        if "--ckpt_path" not in line:
            line = line + ["--ckpt_path", "auto"]
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            found = newest_valid(folder / "disk/run/checkpoints")
        left = batches(found[1]) if found else 0
        if left < saved:
            outcome.problem = f"a checkpoint of {saved} batches is lost; {left} are left"
            return outcome
    outcome.problem = difference(folder / "disk/run", reference)
    return outcome


def difference(run: Path, reference: Path) -> str:
    """What differs between two finished runs, or an empty string."""
    ours = names(run)
    theirs = names(reference)
    if ours != theirs:
        return f"files {sorted(ours ^ theirs)}"
    for name in ("last.ckpt", "best.ckpt"):
        content = torch.load(run / "checkpoints" / name, weights_only=True)
        expected = torch.load(reference / "checkpoints" / name, weights_only=True)
        place = unlike(compared(content), compared(expected), name)
        if place:
            return place
    metrics = json.loads((run / "metrics.json").read_text())
    if metrics != json.loads((reference / "metrics.json").read_text()):
        return "metrics.json"
    return unlike(epochs(run), epochs(reference), "metrics.csv")


def names(run: Path) -> set[str]:
    """Of its files, without the pictures of the last validation, which the process draws that has
    validated."""
    drawn = set(run.glob("plots/val_*.jpg"))
    return {str(path.relative_to(run)) for path in run.rglob("*") if path not in drawn}


def compared(content: Any) -> Any:
    """Without NOT_COMPARED."""
    if isinstance(content, dict):
        return {k: compared(v) for k, v in content.items() if k not in NOT_COMPARED}
    return [compared(v) for v in content] if isinstance(content, list) else content


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="configurations with this in their name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {name: more for name, more in CONFIGURATIONS.items() if options.only in name}
    failed = 0
    print("| configuration | trials | power cuts | identical at the end |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        data = make_demo(Path(temporary, "demo"), train=24, val=8)
        line = command(data, Path(temporary, "first"), 0, 1, more=QUICK.split())[2:]
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            cli.main(line)  # so that the processes of the trials have imported everything
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which Lightning still holds
        for k, (name, more) in enumerate(chosen.items()):
            folder = Path(temporary, str(k))
            (folder / "disk").mkdir(parents=True)
            line = command(data, folder / "disk/run", 0, 1, more=f"{QUICK} {more}".split())[2:]
            code, operations = Training(folder, line).start()
            assert code == 0, (folder / "log").read_text()
            os.rename(folder / "disk", folder / "reference")
            counts: Counter[str] = Counter()
            for number in range(k, options.trials, len(chosen)):
                (folder / "log").unlink()
                seed = f"{options.seed} {number}"
                outcome = trial(folder, line, operations, seed, folder / "reference/run")
                shutil.rmtree(folder / "disk")
                counts["trials"] += 1
                counts["cuts"] += outcome.cuts
                counts["same"] += not outcome.problem
                if outcome.problem:
                    print(f"{name}, seed {seed}: {outcome.problem}", file=sys.stderr)
            print(
                f"| {name} | {' | '.join(str(counts[c]) for c in ('trials', 'cuts', 'same'))} |",
                flush=True,
            )
            failed += counts["trials"] - counts["same"]
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
