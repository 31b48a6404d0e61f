"""The command `evolve`: what it prints, logs, and leaves in its folder."""

import io
import statistics
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import optuna
import yaml
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial

from boltbox.detector.commands.evolve.import_hyp import overlay_text
from boltbox.detector.commands.evolve.plan import Evolution, Plan, planned
from boltbox.detector.commands.evolve.sampler import best, ended, number, seconds
from boltbox.detector.commands.evolve.space import Gene
from boltbox.detector.commands.evolve.study import FILE, Study
from boltbox.detector.commands.evolve.training import environments, train_all
from boltbox.detector.commands.training_process import FitCommand, prepare
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.report.table import number as metric
from boltbox.detector.system.atomic_file import not_fatal, write_atomically
from boltbox.detector.system.csv_table import write_table
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.system.signals import exit_on_signals
from boltbox.detector.training.module import Detector

METRICS = {  # YOLOv5's columns, in its order, and what they are called here
    "metrics/precision": "val/P",
    "metrics/recall": "val/R",
    "metrics/mAP_0.5": "val/mAP50",
    "metrics/mAP_0.5:0.95": "val/mAP50-95",
    "val/box_loss": "val/box_loss",
    "val/obj_loss": "val/obj_loss",
    "val/cls_loss": "val/cls_loss",
}
DEFAULT = Evolution()


def run_evolution(
    trainer: L.Trainer,
    model: Detector,
    datamodule: DetectionData,
    fit_command: FitCommand,
    evolve: Evolution = DEFAULT,
) -> None:
    """Search for better hyper-parameters: a training for each set of them, generation by
    generation.

    The same command with the study's folder as --run continues it, and started a second time on the
    same machine takes part in it. Leaves the best in hyp_evolved.yaml, for `fit --config
    config.yaml --config hyp_evolved.yaml --trainer.max_epochs N`, both files of the study's folder.
    """
    plan, settings, config = planned(fit_command.configuration)
    prepare(trainer, datamodule, "evolve")
    folder = Path(trainer.default_root_dir)
    study = Study(folder)
    shared = folder / "config.yaml"
    config["trainer"]["devices"] = trainer.num_devices  # of those that a worker gets
    with study.alone():
        study.begin(settings)
        write_atomically(shared, yaml.safe_dump(config, sort_keys=False))
    devices = trainer.num_devices if trainer.strategy.root_device.type == "cuda" else 0
    variables = environments(plan.evolve.workers, devices, fit_command.named_gpus(trainer))
    fit = [*fit_command.words, "--config", str(shared)]
    if len(variables) > 1 and datamodule.cache == "auto":
        fit += ["--data.cache", "none"]  # each would take its quarter of the same memory

    def on_end(trial: FrozenTrial) -> None:
        found = ended(study.individuals())
        winner, left = best(found), plan.evolve.size - len(found)
        if not winner and len(found) >= plan.evolve.population:
            raise InputError(
                f"none of {len(found)} trainings came to its end; the first:"
                f" {found[0].user_attrs.get('reason')}"
            )
        values = {**trial.params, "fitness": trial.value, "best": winner and winner.value}
        metrics = {f"evolve/{k}": v for k, v in values.items() if v is not None}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=number(trial))
            logger.save()
        eta = statistics.fmean(map(seconds, found)) * left / len(variables)
        rank_zero_print(
            f"trial {number(trial)}: fitness {metric(trial.value)} {trial.user_attrs['reason']};"
            f" best {metric(values['best'])}; {left} left, ETA {timedelta(seconds=round(eta))}"
        )
        with study.alone():
            write_outputs(study, plan)

    done, hours = len(ended(study.individuals())), plan.evolve.hours
    limit = f"the last one starts within {hours:g} hours (evolve.hours)" if hours else "no limit"
    rank_zero_print(
        f"trainings: {plan.evolve.size}, in {plan.evolve.generations} generations of"
        f" {plan.evolve.population}; {done} done\n"
        f"each: {trainer.max_epochs} epochs, {len(variables)} at a time\n"
        f"time: {limit}; an estimate follows the first training\n"
        f"to continue after an interruption: --run {folder}"
    )
    try:
        with exit_on_signals():
            train_all(study, plan, fit, variables, on_end)
        with study.alone():
            write_outputs(study, plan)
    except StorageInternalError as e:
        raise InputError(f"{folder / FILE}: {e}; --run {folder} continues it") from None
    print_fact("study", folder)


def write_outputs(study: Study, plan: Plan) -> None:
    """Write all files again; one that cannot be written is reported, and evolution continues.

    evolve.csv: a row for each individual that has ended. YOLOv5's columns come first: its seven
    metrics, then the genes by its names; what reads its file reads this one.
    hyp_evolved.yaml: the best individual's values, an overlay for `fit`; not there while none is
    done. evolve.png, fitness.png, importances.png: see `_pictures`; not there while none is done.
    """
    found = ended(study.individuals())
    write_table(study.folder / "evolve.csv", [_row(plan.genes, trial) for trial in found])
    files: dict[str, str | bytes] = {}
    if winner := best(found):
        files["hyp_evolved.yaml"] = _evolved(plan, found, winner)
        files |= _pictures(study.optuna)
    for name, content in files.items():
        with not_fatal(study.folder / name):
            write_atomically(study.folder / name, content)


def _row(genes: Sequence[Gene], trial: FrozenTrial) -> dict[str, Any]:
    about = trial.user_attrs
    return {
        **{column: about.get("metrics", {}).get(name) for column, name in METRICS.items()},
        **{gene.name: trial.params[gene.name] for gene in genes},
        "generation": about["generation"],
        "trial": number(trial),
        "state": "failed" if trial.value is None else "done",
        "fitness": trial.value,
        "seconds": round(seconds(trial), 1),
        "reason": about.get("reason"),
    }


def _evolved(plan: Plan, found: Sequence[FrozenTrial], winner: FrozenTrial) -> str:
    """The best individual as an overlay."""
    comments = [
        f"The best of {len(found)} individuals: trial {number(winner)}, fitness {winner.value:.5g}",
        "fit --config config.yaml --config hyp_evolved.yaml --trainer.max_epochs N"
        "  (both files are in this folder)",
    ]
    options = {g.option: g.used(float(f"{winner.params[g.name]:.5g}")) for g in plan.genes}
    kept = {k: v for k, v in plan.fixed.items() if not k.startswith("trainer.")}
    return overlay_text({**options, **kept}, comments)


def _pictures(study: optuna.Study) -> dict[str, bytes]:
    """The pictures as PNG.

    evolve.png: fitness over the value of each gene, later trials darker. fitness.png: fitness by
    trial, and the best so far. importances.png: how much each gene decides whether an individual is
    in the better half (PED-ANOVA, Watanabe, Bansal and Hutter 2023, arXiv 2304.10255).
    """
    import numpy as np
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.5)
    files = {}
    pyplot.switch_backend("agg")
    with pyplot.rc_context():  # Optuna sets pyplot's style for good
        axes = {
            "evolve.png": plots.plot_slice(study, target_name="fitness"),
            "fitness.png": plots.plot_optimization_history(study, target_name="fitness"),
            "importances.png": plots.plot_param_importances(study, evaluator=evaluator),
        }
        for name, axis in axes.items():
            figure, file = np.ravel(axis)[0].figure, io.BytesIO()
            figure.savefig(file, dpi=110, format="png", bbox_inches="tight")
            pyplot.close(figure)
            files[name] = file.getvalue()
    return files
