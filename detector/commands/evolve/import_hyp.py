"""`python cli.py import-hyp`: YOLOv5's flat hyp*.yaml becomes an overlay."""

from pathlib import Path

from boltbox.detector.commands.evolve.overlay import overlay_text
from boltbox.detector.commands.evolve.space import YOLOV5_GENES, as_number, read_map
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.rank_zero import rank_zero_print

OPTIONS = {
    **{gene.name: gene.option for gene in YOLOV5_GENES.values()},
    "label_smoothing": "model.loss.label_smoothing",
}
UNUSED = "iou_t"  # nothing reads it, in YOLOv5 neither
MOST_ANCHORS = 20  # a level


def import_hyp(file: str, out: str | None = None) -> None:
    """Make an overlay for `fit --config` of a YOLOv5 file of hyper-parameters, hyp*.yaml.

    Every key becomes the option that has its meaning here, or is reported. The file stays as it is,
    and no file is overwritten.

    Args:
        file: YOLOv5's flat file: lr0, lrf, momentum, ...
        out: The overlay; default: the file's name with _boltbox, in the current folder.

    Raises:
        InputError: the file cannot be read, holds something else or an unknown key or a value that
            is no number, or the overlay is there already.
    """
    source, notes = Path(file), []
    values = read_map(source, "lr0: 0.01, as in a hyp*.yaml of YOLOv5")
    if any(isinstance(values.get(group), dict) for group in ("model", "data", "warmup", "trainer")):
        raise InputError(f"{source}: is already an overlay: give it with --config {source}")
    unknown = [
        f"'{key}' ({nearest(key, OPTIONS)})" for key in values if key not in (*OPTIONS, UNUSED)
    ]
    if unknown:
        raise InputError(
            f"{source}: {', '.join(unknown)}: no hyper-parameter of YOLOv5; correct it or take"
            " it out"
        )
    target = Path(out) if out else Path(f"{source.stem}_boltbox.yaml")
    if target.exists():
        raise InputError(
            f"{target}: already exists and is not overwritten; give another name with --out"
        )
    numbers = {key: as_number(value, f"{source}: {key}") for key, value in values.items()}
    if UNUSED in numbers:
        notes.append(
            f"  {UNUSED} {numbers.pop(UNUSED):g}: left out; nothing reads it, in YOLOv5 neither"
        )
    if "anchors" in numbers:
        given = numbers.pop("anchors")
        count = round(given)
        if not 0 <= count <= MOST_ANCHORS:
            raise InputError(
                f"{source}: anchors is {given:g}; expected 1 to {MOST_ANCHORS} anchors a level"
            )
        if count:
            numbers["anchors"] = count
        what = (
            f"model.network.anchors {count}; AutoAnchor finds as many for each level"
            if count
            else "left out; the network's own"
        )
        notes.append(f"  anchors {given:g}: {what}")
    options: dict[str, float | str] = {
        OPTIONS[key]: numbers[key] for key in OPTIONS if key in numbers
    }
    if not options:
        raise InputError(f"{source}: none of its keys means anything here; nothing was written")
    train = f"python cli.py fit --config configs/yolov5.yaml --config {target} --data.dataset FILE"
    # which YOLOv5's rates are made for
    rates = {"model.optim.optimizer": "SGD"} if "model.optim.lr0" in options else {}
    comments = [f"{source.name}, a hyper-parameter file of YOLOv5, as an overlay:", f"  {train}"]
    text = overlay_text({**rates, **options}, comments)
    try:
        write_atomically(target, lambda place: place.write(text.encode()))
    except OSError as e:
        raise InputError(
            f"{target}: cannot be written ({e.strerror or e}); give another place with --out"
        ) from None
    lines = [
        f"{target} holds {len(options)} of the {len(values)} keys of {source}",
        *notes,
        f"train with it: {train}",
    ]
    rank_zero_print("\n".join(lines))
