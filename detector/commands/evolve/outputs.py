"""What an evolution leaves in its folder."""

import csv
import io
from collections.abc import Sequence
from operator import methodcaller

import optuna
from optuna.trial import FrozenTrial

from boltbox.detector.commands.evolve.import_hyp import overlay_text
from boltbox.detector.commands.evolve.individual import best, ended, number, seconds
from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.commands.evolve.space import Gene
from boltbox.detector.commands.evolve.study import Study
from boltbox.detector.system.atomic_file import not_fatal, write_atomically

METRICS = {  # YOLOv5's columns, in its order, and what they are called here
    "metrics/precision": "P",
    "metrics/recall": "R",
    "metrics/mAP_0.5": "mAP50",
    "metrics/mAP_0.5:0.95": "mAP50-95",
    "val/box_loss": "val/box_loss",
    "val/obj_loss": "val/obj_loss",
    "val/cls_loss": "val/cls_loss",
}
PICTURES = ("evolve.png", "fitness.png", "importances.png")
DPI = 110
OURS = ("generation", "trial", "state", "fitness", "seconds", "reason")


def write_outputs(study: Study, plan: Plan) -> None:
    """Write all files again; one that cannot be written is reported, and evolution continues.

    evolve.csv: a row for each individual that has ended. YOLOv5's columns come first: its seven
    metrics, then the genes by its names; what reads its file reads this one. Then `OURS`.
    hyp_evolved.yaml: the best individual's values, an overlay for `fit`; not there while none is
    done. evolve.png, fitness.png, importances.png: see `_pictures`; not there while none is done.
    """
    found = ended(study.individuals())
    files = {"evolve.csv": _table(plan.genes, found).encode()}
    if winner := best(found):
        files["hyp_evolved.yaml"] = _evolved(plan, found, winner).encode()
        files |= _pictures(study.optuna)
    for name, content in files.items():
        with not_fatal(study.folder / name):
            write_atomically(study.folder / name, methodcaller("write", content))


def _table(genes: Sequence[Gene], found: Sequence[FrozenTrial]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*METRICS, *(g.name for g in genes), *OURS])
    for trial in found:
        about, values = trial.user_attrs, trial.params
        metrics = [about.get("metrics", {}).get(name) for name in METRICS.values()]
        used = [g.used(values[g.name]) if g.name in values else None for g in genes]
        state = "failed" if trial.value is None else "done"
        ours = about.get("generation"), number(trial), state, trial.value, round(seconds(trial), 1)
        writer.writerow([*metrics, *used, *ours, about.get("reason")])
    return text.getvalue()


def _evolved(plan: Plan, found: Sequence[FrozenTrial], winner: FrozenTrial) -> str:
    """The best individual as an overlay."""
    comments = [
        f"The best of {len(found)} individuals: trial {number(winner)}, fitness {winner.value:.5g}",
        "fit --config configs/yolo.yaml --config hyp_evolved.yaml --data.dataset FILE",
    ]
    options = {g.option: g.used(float(f"{winner.params[g.name]:.5g}")) for g in plan.genes}
    kept = {k: v for k, v in plan.fixed.items() if not k.startswith("trainer.")}
    return overlay_text({**options, **kept}, comments)


def _pictures(study: optuna.Study) -> dict[str, bytes]:
    """PICTURES as PNG.

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
        axes = (
            plots.plot_slice(study, target_name="fitness"),
            plots.plot_optimization_history(study, target_name="fitness"),
            plots.plot_param_importances(study, evaluator=evaluator),
        )
        for name, axis in zip(PICTURES, axes, strict=True):
            figure, file = np.ravel(axis)[0].figure, io.BytesIO()
            figure.savefig(file, dpi=DPI, format="png", bbox_inches="tight")
            pyplot.close(figure)
            files[name] = file.getvalue()
    return files
