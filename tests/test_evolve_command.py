"""The command `evolve`: a small evolution from start to end, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked import forks

import cli
from detector.commands.evolve.settings import planned
from detector.commands.evolve.space import EVOLVED
from detector.commands.evolve.study import Study
from detector.commands.evolve.worker_pool import environments
from detector.training.optimizer import RATES

TINY = ["--model.width_multiple", "0.125", "--data.image_size", "64", "--data.batch_size", "6", "--data.workers", "0",
        "--trainer.accelerator", "cpu", "--trainer.precision", "32-true"]  # fmt: skip
SHORT = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--trainer.limit_val_batches", "1",
         "--autoanchor.enabled", "false"]  # fmt: skip
ROOT = Path(cli.__file__).parent


def test_three_generations_of_three(small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two workers train seven individuals: three, and twice two new ones, as the best one lives on. The same command then has
    nothing left to do, and with other options it is refused."""
    line = ["evolve", "--config", str(ROOT / "configs/tensorboard.yaml"), "--data.dataset", str(small_data), *TINY, *SHORT]
    line += ["--evolve.generations", "3", "--evolve.population", "3", "--evolve.workers", "2", "--evolve.study", "found"]
    with forks():
        cli.main(line)
    printed = capsys.readouterr()
    assert "3 generations of 3: 7 individuals, 1 epochs a training, 2 at a time" in printed.out
    assert "that are left take about" in printed.out
    assert "7/7" in printed.err
    individuals = Study(Path("found")).individuals()
    assert [(i.generation, i.index) for i in individuals] == [
        *((0, k) for k in range(3)), *((g, k) for g in (1, 2) for k in range(2))
    ]  # fmt: skip
    assert {i.state for i in individuals} == {"done"}
    assert [i.values["scale"] for i in individuals[:3]] == [0.5, 0.9, 0.9], "as it stands; med, high.yaml"
    for individual in individuals:
        run = Path(f"found/trials/{individual.number:04d}")
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert {name: config["data"]["augment"][name] for name in EVOLVED} == individual.values
        assert config["trainer"]["limit_train_batches"] == 2
        assert config["data"]["cache"] == "none", "two at a time would each take a quarter of the same memory"
        assert individual.fitness == json.loads((run / "metrics.json").read_text())["fitness"]
        assert individual.metrics["val/box_loss"] > 0
        assert not (run / "plots").exists()
    best = max(individuals, key=lambda i: (i.fitness or 0, -i.number))
    assert [p.parent.parent.name for p in Path("found").glob("trials/*/checkpoints/best.ckpt")] == [f"{best.number:04d}"]
    assert len(Path("found/evolve.csv").read_text().splitlines()) == 1 + 7
    evolved = yaml.safe_load(Path("found/hyp_evolved.yaml").read_text())["data"]["augment"]
    assert evolved == {name: pytest.approx(value, rel=1e-4) for name, value in best.values.items()}
    for picture in ("evolve.png", "fitness.png", "importances.png"):
        assert Path("found", picture).stat().st_size > 10_000
    assert json.loads(Path("found/importances.json").read_text())["importances"].keys() == set(EVOLVED)
    assert told_to_tensorboard(Path("found")) == [(i.number, pytest.approx(i.fitness)) for i in individuals]

    begun = Path("found/journal.log").read_bytes()
    cli.main(line)
    assert "7 individuals, 7 of them done" in capsys.readouterr().out
    assert Path("found/journal.log").read_bytes() == begun
    with pytest.raises(SystemExit) as e:
        cli.main([*line, "--model.lr0", "0.02"])
    assert e.value.code == 2
    rate = RATES["Muon"].lr0
    assert f"found was begun with other options: model.lr0 is {rate} in it and 0.02 here" in capsys.readouterr().err
    assert [p.name for p in here.iterdir()] == ["found"]


def test_modules_of_the_current_folder_are_not_imported(small_data: Path, here: Path) -> None:
    """Neither by a worker nor by the training that it starts: here both are interpreters of their own."""
    of_the_user = ["callbacks.py", "cli.py", "detector.py"]
    for name in of_the_user:
        Path(name).write_text("raise RuntimeError('this is not for the workers')\n")
    line = ["evolve", "--data.dataset", str(small_data), *TINY, *SHORT, "--evolve.generations", "1", "--evolve.population", "2"]
    cli.main([*line, "--evolve.trials", "1", "--evolve.study", "found"])
    assert [i.state for i in Study(Path("found")).individuals()] == ["done"]
    assert sorted(p.name for p in here.iterdir()) == [*of_the_user, "found"]


def told_to_tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = folder.rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events)).Reload()
    return sorted((e.step, e.value) for e in accumulator.Scalars("evolve/fitness"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--evolve.population", "1"], "evolve.population is 1; it must be at least 2"),
        (["--evolve.hours", "0"], "evolve.hours is 0; it must be more than 0"),
        (["--evolve.literal", "true", "--evolve.sampler", "tpe"], "leave it out with tpe"),
        (["--evolve.storage", "sqlite:///x.db"], "evolve.storage needs --evolve.study"),
        (["--evolve.space", "space.yaml"], "mosiac: no such option; did you mean 'mosaic'?"),
        (["--evolve.study", "broken"], "broken/journal.log cannot be read"),
        (["--evolve.generation", "3"], "did you mean 'evolve.generations'?"),
        (["--trainer.num_nodes", "2"], "run it on each machine"),
    ],
)
def test_refused(options: list[str], told: str, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("space.yaml").write_text("mosiac: {low: 0, high: 1}\n")
    Path("broken").mkdir()
    Path("broken/journal.log").write_text("Monday: rain\nTuesday: sun\n")
    with pytest.raises(SystemExit) as e:
        cli.main(["evolve", "--data.dataset", str(small_data), *TINY, *options])
    assert e.value.code == 2
    assert told in capsys.readouterr().err
    assert Path("broken/journal.log").read_text() == "Monday: rain\nTuesday: sun\n"
    assert not Path("runs").exists()


def test_what_a_study_is_about(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Literally YOLOv5's way, with a space of one's own: what the trainings have in common is a configuration of `fit`."""
    Path("space.yaml").write_text("lr0: {low: 1e-3, high: 0.1}\nmosaic: 0.5\nearly_stop.patience: {low: 5, high: 50}\n")

    def printed(*line: str) -> dict[str, Any]:
        with pytest.raises(SystemExit):
            cli.main([*line, "--print_config"])
        return yaml.safe_load(capsys.readouterr().out)

    options = [
        "--data.dataset",
        "demo",
        "--trainer.max_epochs",
        "40",
        "--evolve.space",
        "space.yaml",
        "--evolve.generations",
        "2",
    ]
    plan, settings, config = planned(printed("evolve", *options, "--evolve.literal", "true", "--seed_everything", "7"))
    assert [(g.name, g.low, g.high, g.whole) for g in plan.genes] == [
        ("lr0", 0.001, 0.1, False), ("early_stop.patience", 5, 50, True)
    ]  # fmt: skip
    assert (plan.literal, plan.seed, plan.sizes, plan.prune) == (True, 7, [50, 50], 0)
    assert [s["lr0"] for s in plan.start] == [0.01, 0.01, 0.01, 0.01, 0.00334, 0.00258]
    assert settings["data.augment.mosaic"] == 0.5
    assert plan.fixed == {"data.augment.mosaic": 0.5, "model.anchors": 3}, "hyp_evolved.yaml needs them too"
    Path("common.yaml").write_text(yaml.safe_dump(config))
    fit = printed("fit", "--config", "common.yaml")
    assert (fit["data"]["augment"]["mosaic"], fit["model"]["anchors"], fit["trainer"]["check_val_every_n_epoch"]) == (
        0.5,
        3,
        40,
    )

    plan, others, config = planned(printed("evolve", *options, "--evolve.prune", "halving", "--evolve.workers", "3"))
    assert (plan.literal, plan.sizes, plan.prune) == (False, [50, 48], 2)
    assert [s["lr0"] for s in plan.start] == [RATES["Muon"].lr0, 0.01, 0.00334, 0.00258], "no set twice"
    assert config["model"]["anchors"] is None
    differing = {k for k in settings | others if settings.get(k) != others.get(k)}
    assert {k for k in differing if k.startswith("evolve")} == {"evolve.literal", "evolve.prune"}, "workers may differ"

    trained = ["--model.backbone", "timm/resnet18", "--model.backbone_weights", "pretrained"]
    plan, settings, _ = planned(printed("evolve", *options, *trained))
    assert (plan.start[0]["lr0"], settings["model.backbone_lr"]) == (0.016, 0.001), "as a fit would"


def test_gpus_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7,8")
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments(None, 2)] == ["2,3", "5,7"]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments(3, 1)] == ["2", "3", "5"]
    assert [list(e) for e in environments(3, 0)] == [["OMP_NUM_THREADS"]] * 3
