"""A Detector from options without their groups."""

from dataclasses import fields

from boltbox.detector.model.loss import LossOptions
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.training.module import Detector
from boltbox.detector.training.optimizer import OptimOptions
from boltbox.detector.weights.start import StartOptions

GROUPS = {
    "network": NetworkOptions,
    "loss": LossOptions,
    "optim": OptimOptions,
    "start": StartOptions,
}


def made_detector(
    names,
    image_size=640,
    batch_size=16,
    kind=Detector,
    **options,
):
    """options: of the groups by their own names, like lr0, and of the Detector. image_size,
    batch_size: of data that it will not be given."""
    grouped = {}
    for group, its in GROUPS.items():
        taken = {f.name: options.pop(f.name) for f in fields(its) if f.name in options}
        grouped[group] = its(**taken)
    detector = kind(names, **grouped, **options)
    detector.set_image_size(image_size)
    detector.batch_size = batch_size
    return detector
