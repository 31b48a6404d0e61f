"""A detector as a folder in the layout of the Hugging Face Hub: config.json, model.safetensors, and
README.md, its model card. The functions are methods of a Detector."""

from __future__ import annotations

import json
import tempfile
from os.path import isdir
from pathlib import Path
from typing import Any

import torch
import yaml

from boltbox.detector.model.network import UNKNOWN, YOLOv5
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, in_one_line, need
from boltbox.detector.system.ranges import check_arguments
from boltbox.detector.system.text_file import load_yaml, read_text
from boltbox.detector.system.torch_file import as_input_error
from boltbox.detector.weights.published import describe_origins
from boltbox.detector.weights.trained import CONFIG, LIBRARY, TENSORS

CARD = "README.md"
METRICS = ("P", "R", "mAP50", "mAP50-95", "coco/AP", "coco/AP50")
CODE = """
```python
from boltbox import Detector

detector = Detector.from_pretrained("{name}")
print(detector.predict("photo.jpg"))
```
"""


def save_pretrained(
    detector: Any, folder: str | Path, run: str | Path | None = None, name: str | None = None
) -> None:
    """Write the detector and its model card into a folder.

    Args:
        detector: Its moving average is written, if there is one.
        folder: New, or without files of these names.
        run: Run folder of the training, whose metrics and dataset the card states.
        name: Of the repository, "org/name"; default: that of the folder.

    Raises:
        InputError: A file exists, the run has no metrics, or safetensors is not installed.
    """
    check_arguments(save_pretrained, locals())
    need("safetensors", "save_pretrained")
    from safetensors.torch import save

    folder = Path(folder)
    for file in (CARD, TENSORS, CONFIG):
        if (folder / file).exists():
            raise InputError(f"{folder / file} exists. Give another folder")
    network = detector.evaluated_network()
    card = model_card(name or folder.resolve().name, detector.names, network, run)
    content: dict[str, Any] = {"library_name": LIBRARY}
    detector.on_save_checkpoint(content)
    content.pop("class_maps", None)
    tensors = {}
    for key, tensor in network.state_dict().items():  # copies: layers may share a tensor
        tensors[f"network.{key}"] = tensor.cpu().clone(memory_format=torch.contiguous_format)
    write_atomically(folder / TENSORS, save(tensors))
    write_atomically(folder / CARD, card)
    write_atomically(folder / CONFIG, json.dumps(content, indent=1))


def from_pretrained(cls: Any, name: str | Path, device: str | torch.device | None = None) -> Any:
    """A detector from a folder of `save_pretrained`, ready for `predict`. Nothing in it is
    executed.

    Args:
        cls: The class of the detector.
        name: The folder, or a repository of the Hub, "org/name", which is fetched.
        device: Default: the first GPU, if there is one.

    Raises:
        InputError: There is none, or it is no detector of boltbox.
    """
    check_arguments(from_pretrained, {"name": name})
    folder = name
    if not isdir(name):
        hub = need("huggingface_hub", "from_pretrained")
        try:
            folder = hub.snapshot_download(str(name), allow_patterns=[CONFIG, TENSORS])
        except Exception as e:  # of the hub, of the network, of the name
            raise InputError(
                f"{name}: no folder, and not fetched from the Hub ({in_one_line(e)[:200]}). Give a"
                " folder or org/name"
            ) from None
    return cls.load(folder, device)


def push_to_hub(detector: Any, repo_id: str, run: str | Path | None = None, **options: Any) -> None:
    """Upload what `save_pretrained` writes to the Hub.

    Args:
        detector: See `save_pretrained`.
        repo_id: "org/name"; made if it is missing.
        run: See `save_pretrained`.
        options: Of `huggingface_hub.HfApi.upload_folder`, like commit_message.
    """
    check_arguments(push_to_hub, locals())
    hub = need("huggingface_hub", "push_to_hub").HfApi()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(detector, folder, run, repo_id)
        hub.create_repo(repo_id, exist_ok=True)
        hub.upload_folder(repo_id=repo_id, folder_path=folder, **options)


def model_card(name: str, names: list[str], network: YOLOv5, run: str | Path | None) -> str:
    """The text of README.md.

    Args:
        name: Of the model.
        names: Class names.
        network: Its origins give the licence.
        run: Run folder with the metrics.
    """
    header: dict[str, Any] = {"library_name": LIBRARY, "pipeline_tag": "object-detection"}
    licences = {origin.licence.lower() for origin in network.origins}
    if licences:
        header["license"] = "other" if UNKNOWN in licences or len(licences) > 1 else licences.pop()
    lines = [f"# {name}", "", "An object detector.", CODE.format(name=name)]
    if run:
        dataset, metrics = _measured(Path(run))
        known = [key for key in METRICS if metrics[key] is not None]  # COCO's need an object
        values = [{"type": key, "name": key, "value": metrics[key]} for key in known]
        result = {
            "task": {"type": "object-detection"},
            "dataset": {"name": dataset, "type": dataset},
            "metrics": values,
        }
        header["model-index"] = [{"name": name, "results": [result]}]
        lines += [f"Dataset: {dataset}, {metrics['images']} images of `{metrics['split']}`.", ""]
        lines += ["| metric | value |", "|---|---|"]
        lines += [f"| {value['name']} | {value['value']:.3f} |" for value in values]
    lines += ["", f"Classes: {', '.join(names)}.", ""]
    lines += [f"Weights: {describe_origins(network.origins)}.", ""]
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n" + "\n".join(lines)


def _measured(run: Path) -> tuple[str, dict[str, Any]]:
    """Name of the dataset, and content of metrics.json of a run."""
    with as_input_error(run, "the folder of a fit that has metrics.json and config.yaml"):
        metrics = json.loads(read_text(run / "metrics.json"))
        dataset = Path(load_yaml(read_text(run / "config.yaml"))["data"]["dataset"])
        values = {key: metrics[key] for key in (*METRICS, "images", "split")}
    if dataset.suffix in (".yaml", ".yml"):
        dataset = dataset.resolve().parent
    return dataset.name, values
