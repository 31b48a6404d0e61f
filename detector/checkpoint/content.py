"""What a training checkpoint must hold: the one place that looks at its shape, so that nobody after
it has to.

A file can be intact, hold nothing but tensors and plain types, and still be none of ours: a word
where a count belongs, another network's tensors under our names. Everything that Lightning and we
read on a resume is looked at here; what callbacks of others keep is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boltbox.detector.checkpoint.hyper_parameters import (
    check_network_options,
    check_options,
    check_parts,
    empty_network,
    network_options,
)
from boltbox.detector.checkpoint.lightning_state import (
    COUNT,
    LOOPS,
    OPTIMIZER,
    SCALER,
    check_version,
)
from boltbox.detector.checkpoint.origins import ORIGINS
from boltbox.detector.checkpoint.recipe_state import DATA, PROCESS, RUN, check_callbacks
from boltbox.detector.checkpoint.validators import (
    InvalidContent,
    anything,
    check_tensor,
    fields,
    instance_of,
    list_of,
    mapping_of,
    nullable,
    number,
)
from boltbox.detector.model.parts import MissingPart
from boltbox.detector.system.errors import InputError

DETECTOR = fields(
    {"state_dict": mapping_of(check_tensor), "hyper_parameters": check_network_options},
    {"origins": ORIGINS, "image_size": COUNT},
)
CHECKPOINT = fields(
    {
        "state_dict": mapping_of(check_tensor),
        "hyper_parameters": check_network_options,
        "optimizer_states": list_of(OPTIMIZER),
        "loops": LOOPS,
        "callbacks": check_callbacks,
        "lr_schedulers": list_of(anything),
        "epoch": COUNT,
        "global_step": COUNT,
        "pytorch-lightning_version": check_version,
    },
    {
        "DetectionData": DATA,
        "MixedPrecision": SCALER,
        "native_amp_scaling_state": SCALER,
        "processes": nullable(list_of(PROCESS)),
        "window_batches": COUNT,
        "compiled": instance_of(bool),
        "image_size": COUNT,
        "class_maps": list_of(number),
        "run": RUN,
        "origins": ORIGINS,
    },
)


def check_checkpoint(
    content: dict[str, Any], constructor: Callable[..., Any] | None = None
) -> None:
    """Look at the whole content of a training checkpoint.

    Args:
        constructor: of the module that was trained, for the types of its hyper-parameters; default:
            only those of the network are looked at.

    Raises:
        InvalidContent: something is missing, of another type, out of its range, or does not go with
            the rest.
    """
    CHECKPOINT(content, "")
    if constructor is not None:
        check_options(content["hyper_parameters"], constructor, "hyper_parameters")
    check_detector(content)
    names = content["hyper_parameters"]["names"]
    for maps in (content.get("class_maps"), content.get("DetectionData", {}).get("epoch_maps")):
        if maps is not None and len(maps) != len(names):
            raise InvalidContent(
                f"class_maps or epoch_maps has another length than its {len(names)} class names"
            )
    everyone = content.get("processes") or []
    for i, process in enumerate(everyone):
        if process["gradients"].keys() != everyone[0]["gradients"].keys():
            raise InvalidContent(
                f"processes.{i}.gradients has other names than that of the first process"
            )
        for name, gradient in process["gradients"].items():
            parameter = content["state_dict"].get(f"network.{name}")
            if parameter is None or parameter.shape != gradient.shape:
                raise InvalidContent(
                    f"processes.{i}.gradients.{name} belongs to no parameter of the network"
                )


def check_detector(content: dict[str, Any]) -> None:
    """Look at `hyper_parameters` and `state_dict`: they must make a network and fill it.

    Raises:
        InvalidContent: as above.
        MissingPart: they may, but need a class of the user's own that is not found.
    """
    DETECTOR(content, "")
    options, tensors = content["hyper_parameters"], content["state_dict"]
    try:
        check_parts(options)
        network = empty_network(len(options["names"]), network_options(options))
    except MissingPart:
        raise
    except InputError as e:
        raise InvalidContent(f"hyper_parameters make no network: {e}") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    present = [
        p
        for p in ("network.", "ema.")
        if p == "network." or any(name.startswith(p) for name in tensors)
    ]
    for prefix in present:
        given = {
            name.removeprefix(prefix): tuple(t.shape)
            for name, t in tensors.items()
            if name.startswith(prefix)
        }
        wrong = {
            name for name in given.keys() | wanted.keys() if given.get(name) != wanted.get(name)
        }
        if wrong:
            raise InvalidContent(
                f"state_dict does not fill the network that hyper_parameters describe ({len(wrong)}"
                f" tensors, like {prefix}{min(wrong)})"
            )
