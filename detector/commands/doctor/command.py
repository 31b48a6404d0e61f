"""The command `doctor`."""

import json
from pathlib import Path

import lightning as L

from boltbox.detector.commands.doctor.examine import diagnose, open_splits
from boltbox.detector.commands.doctor.page import write_diagnosis
from boltbox.detector.commands.doctor.repair import check_folder, repair
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.data.windows import choose_tile_size
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.training.module import Detector


def run_doctor(
    trainer: L.Trainer,
    model: Detector,
    datamodule: DetectionData,
    strict: bool = False,
    fix: Path | None = None,
) -> None:
    """Find faults in a dataset: labels, images, folders, classes, sizes. Trains and changes
    nothing.

    Leaves with exit code 1 if there are faults: objects or images that are lost or wrong in
    training.

    Args:
        strict: Exit code 1 also if there are warnings.
        fix: Write a repaired copy of the dataset into this folder, with a list of the repairs.
    """
    options = datamodule.options
    # without the val split that training would make
    file = DatasetFile.read(options["dataset"], options["split"], options["format"])
    run = Path(trainer.default_root_dir)
    file.prepare()
    size = round_up(datamodule.image_size, model.network.max_stride)
    datasets, unusable = open_splits(file, datamodule.single_class)
    file.names = next(iter(datasets.values())).names
    if fix:
        check_folder(file.root, fix)
    tile_size = datamodule.tile_size
    if options["tile_size"] == "auto" and "train" in datasets:
        tile_size, _ = choose_tile_size(datasets["train"].labels, size)
    diagnosis = diagnose(file, datasets, size, tile_size)
    diagnosis.findings += unusable
    rank_zero_print(diagnosis.verdict())
    for split, dataset in datasets.items():
        print_fact(split, dataset.summary()[0])
    for line in diagnosis.summary():
        rank_zero_print(line)
    write_atomically(run / "doctor.json", json.dumps(diagnosis.content(), indent=1))
    write_diagnosis(run / "doctor.html", diagnosis, datasets)
    print_fact("report", f"{run / 'doctor.html'}, doctor.json")
    if fix:
        repairs = repair(file, datasets, diagnosis, fix)
        print_fact("copy", fix)
        print_fact("repairs", f"{len(repairs)}, listed in {fix / 'repairs.txt'}")
    if diagnosis.count("fault") or (strict and diagnosis.count("warning")):
        raise SystemExit(1)
