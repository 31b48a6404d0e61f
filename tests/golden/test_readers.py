"""The golden tests read their cases' metadata: cases that are NOT FROM THE ORIGINAL, with values
that none of its files has.

Each is written here, by the formulas of the specification or by our own code, which is told the
values outright; then the reader of that kind must agree with it, and must not if the metadata say
something else.
"""

import copy
import json
from pathlib import Path
from typing import Any

import made_heads
import numpy as np
import pytest
import torch
from golden import test_golden_anchors as anchors
from golden import test_golden_data as data
from golden import test_golden_loss as losses
from golden import test_golden_network as networks
from golden import test_golden_recipe as recipe
from golden.cases import Case, read_case
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from boltbox.detector.model.assigner import YOLOv5Assigner
from boltbox.detector.model.loss import DetectionLoss
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.weights.yolov5 import key_map


def written(folder: Path, meta: dict[str, Any], **arrays: Any) -> Case:
    """A case as it comes from a file."""
    path = folder / f"{meta['kind']}_not_from_the_original.npz"
    np.savez(path, meta=json.dumps(meta), **{k: np.asarray(v) for k, v in arrays.items()})
    return read_case(path)


def changed(case: Case, **meta: Any) -> Case:
    """With other metadata; None takes an entry out."""
    return Case(
        case.path, case.kind, {k: v for k, v in {**case.meta, **meta}.items() if v is not None}
    )


def theirs(network: YOLOv5) -> dict[str, Tensor]:
    """The state under YOLOv5's names."""
    state = network.state_dict()
    return {name: state[ours] for name, ours in key_map(network).items()}


def forward_case(folder: Path, network: YOLOv5, meta: dict[str, Any]) -> Case:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    arrays: dict[str, Any] = {
        f"in_w::{name}": tensor.clone() for name, tensor in theirs(network).items()
    }
    with torch.no_grad():
        raw, fused, moving = (
            network.eval()(images / 255),
            network.fused(),
            copy.deepcopy(network).train(),
        )
        arrays |= {f"out_raw_{i}": r for i, r in enumerate(raw)}
        arrays |= {f"out_trainbn_raw_{i}": r for i, r in enumerate(moving(images / 255))}
        arrays["out_decoded"] = network.decode(raw)
        arrays["out_fused_decoded"] = fused.decode(fused(images / 255))
    arrays |= {
        "out_fused_weight_0": fused.backbone.stem.conv.weight,
        "out_fused_bias_0": fused.backbone.stem.conv.bias,
    }
    for place in ("first", "mid", "last"):
        for figure in ("mean", "var"):
            arrays[f"out_trainbn_{place}_running_{figure}"] = getattr(
                moving.backbone.stem.bn, f"running_{figure}"
            )
    known = {"n_params": sum(p.numel() for p in network.parameters()), "nc": network.num_classes}
    keys = {"fused_keys": ["model.0.conv.bias"], "bn_keys": ["model.0.bn.running_mean"] * 3}
    return written(
        folder, {"kind": "forward", **known, **keys, **meta}, in_images_u8=images, **arrays
    )


@pytest.mark.parametrize(
    ("base", "entry", "ours"),
    [
        ("yolov5s-LeakyReLU", None, "leaky_relu"),
        ("yolov5n", "nn.Hardswish()", "hardswish"),
        ("yolov5n", "nn.LeakyReLU(0.1)", "leaky_relu"),
    ],
)
def test_activation(tmp_path: Path, base: str, entry: str | None, ours: str) -> None:
    """By its entry, else by the name of the base model."""
    torch.manual_seed(0)
    multiples = {"depth_multiple": 0.33, "width_multiple": 0.0625}
    network = YOLOv5(2, "n", activation=ours, anchors=2, **multiples)
    case = forward_case(
        tmp_path, network, {"base": base, "activation": entry, "anchors": 2, **multiples}
    )
    networks.test_forward(case)
    with pytest.raises(AssertionError):
        networks.test_forward(changed(case, base="yolov5n", activation=None))


def test_an_activation_that_we_do_not_have(tmp_path: Path) -> None:
    for activation in ("nn.Mish()", "nn.LeakyReLU(0.2)", "nn.LeakyReLU()"):
        case = Case(
            tmp_path, "bias", {"kind": "bias", "base": "yolov5n", "nc": 2, "activation": activation}
        )
        with pytest.raises(AssertionError, match=r"LeakyReLU|Mish"):
            networks.test_bias(case)


def model_entry(nc: int, meta: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What models.json and param_groups.json say of a model, counted on our network."""
    network = YOLOv5(nc, **options)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        raw = copy.deepcopy(network).to("meta")(torch.zeros(1, 3, 640, 640))
    decayed = [p for name, p in network.named_parameters() if p.ndim > 1]
    biases = [p for name, p in network.named_parameters() if name.endswith("bias")]
    scales = [
        p for name, p in network.named_parameters() if p.ndim == 1 and not name.endswith("bias")
    ]
    groups = {"bias": biases, "weights_decay": decayed, "norm_weights": scales}
    return {
        "nc": nc,
        "params": sum(p.numel() for p in network.parameters()),
        "n_param_tensors": len(list(network.parameters())),
        "n_state_entries": len(network.state_dict()),
        "strides": network.strides,
        "na": network.anchors.shape[1],
        "nl": len(network.levels),
        "head_in_channels": [c.in_channels for c in network.head.convs],
        "head_channels": network.head.convs[0].out_channels,
        "top_layers": max(network.layer_names()) + 1,
        "level_shapes_640": [list(r.shape) for r in raw],
        "eval_rows_640": sum(r[..., 0].numel() for r in raw),
        "gflops_conv_only_640": counter.get_total_flops() / 1e9,
        "anchors_px": network.head.anchors_px.flatten(1).tolist(),
        "anchors_grid": network.anchors.flatten(1).tolist(),
        "fused": {"params": sum(p.numel() for p in network.fused().parameters())},
        "optimizer_group_order": list(groups),
        "groups": [
            {"group": name, "n_tensors": len(g), "n_params": sum(p.numel() for p in g)}
            for name, g in groups.items()
        ],
        **meta,
    }


def test_multiples_of_models() -> None:
    """Not those of the model's name; with another number of anchors."""
    given = {"depth_multiple": 0.1, "width_multiple": 0.1, "na": 2, "activation": "SiLU"}
    options = {
        "depth_multiple": 0.1,
        "width_multiple": 0.1,
        "anchors": 2,
        "levels": (3, 4, 5, 6, 7),
    }
    model = model_entry(4, {"base": "yolov5-p7", **given}, size="n", **options)
    for reader in (
        networks.test_models,
        networks.test_fused_size,
        networks.test_param_groups,
        networks.test_default_anchors,
    ):
        reader(model)
    for reader in (networks.test_models, networks.test_fused_size, networks.test_param_groups):
        with pytest.raises(AssertionError):
            reader({**model, "width_multiple": 0.2})


def loss_case(folder: Path, strides: list[int], shared_cell: str, **meta: Any) -> Case:
    rng = torch.Generator().manual_seed(0)
    count, size = 40, 256
    hyp = {
        "box": 0.05,
        "obj": 1.0,
        "cls": 0.5,
        "cls_pw": 1.0,
        "obj_pw": 1.0,
        "fl_gamma": 0.0,
        "anchor_t": 4.0,
    }
    sides = torch.rand(count, 2, generator=rng) * 0.5 + 0.02
    centres = torch.rand(count, 2, generator=rng) * 0.2 + 0.4  # crowded: several share a cell
    classes = torch.randint(0, 3, (count, 1), generator=rng)
    targets = torch.cat((torch.zeros(count, 1), classes, centres, sides), 1)
    per_level = torch.rand(len(strides), 3, 2, generator=rng) * 6 + 1
    raw = [
        torch.randn(1, 3, size // s, size // s, 8, generator=rng).half().float().requires_grad_()
        for s in strides
    ]
    gains = {name: value for name, value in hyp.items() if name != "anchor_t"}
    loss = DetectionLoss(
        3,
        strides,
        YOLOv5Assigner(hyp["anchor_t"]),
        **gains,
        autobalance=True,
        shared_cell=shared_cell,
    )  # type: ignore[arg-type]
    total, parts = made_heads.losses(loss, raw, targets, per_level)
    total.backward()
    arrays = {
        "in_anchors_grid": per_level,
        "in_targets": targets,
        "out_loss": total.detach()[None],
        "out_balance": loss.balance,
    }
    arrays["out_items_box_obj_cls"] = parts
    assigned = made_heads.assign_targets(
        targets, per_level, [(r.shape[2], r.shape[3]) for r in raw], hyp["anchor_t"]
    )
    for i, rows in enumerate(made_heads.only_valid(rows) for rows in assigned):
        arrays |= {f"in_pred_{i}": raw[i].detach().half(), f"out_grad_{i}": raw[i].grad}  # type: ignore[dict-item]
        arrays |= {
            f"out_idx_{i}": torch.stack((rows.image, rows.anchor, rows.row, rows.column), 1),
            f"out_tcls_{i}": rows.cls,
        }
        arrays |= {f"out_tbox_{i}": rows.box, f"out_anch_{i}": per_level[i][rows.anchor]}
    told = {
        "kind": "loss",
        "nc": 3,
        "imgsz": size,
        "strides": strides,
        "hyp_used": hyp,
        "label_smoothing": 0.0,
        "calls": 1,
    }
    return written(folder, {**told, "autobalance": True, **meta}, **arrays)


def test_strides_of_the_loss(tmp_path: Path) -> None:
    """Five levels; and two that begin at 16, whose weights are in proportion to the first then, not
    to the second."""
    losses.test_loss(loss_case(tmp_path, [8, 16, 32, 64, 128], "last"))
    case = loss_case(tmp_path, [16, 32], "last")
    losses.test_loss(case)
    with pytest.raises(AssertionError):
        losses.test_loss(changed(case, strides=[8, 16]))


def test_objects_that_share_a_cell(tmp_path: Path) -> None:
    """`sort_obj_iou` lets the best overlap win."""
    case = loss_case(tmp_path, [8, 16, 32], "best", sort_obj_iou=True)
    losses.test_loss(case)
    with pytest.raises(AssertionError):
        losses.test_loss(changed(case, sort_obj_iou=None))


def test_decay_and_tau_of_the_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the formula of specification 3.5."""
    decay, tau, start, steps, rng = 0.97, 30.0, 4, 6, np.random.default_rng(0)
    sequences = {
        name: rng.normal(size=(steps + 1, *shape))
        for name, shape in (("weight", (2, 3)), ("bias", (2,)))
    }
    sequences["running_mean"] = rng.normal(size=(steps + 1, 2))
    averages: dict[str, list[np.ndarray]] = {name: [] for name in sequences}
    for name, values in sequences.items():
        average = values[0]
        for k in range(1, steps + 1):
            kept = decay * (1 - np.exp(-(start + k) / tau))
            average = kept * average + (1 - kept) * values[k]
            averages[name].append(average)
    counted = [1, 7, 300]
    arrays = {f"in_{k}_seq": v.astype(np.float32) for k, v in sequences.items()} | {
        f"out_ema_{k}": v for k, v in averages.items()
    }
    # of a convolution with three inputs
    arrays["in_weight_seq"] = arrays["in_weight_seq"].reshape(steps + 1, 2, 3)
    case = written(
        tmp_path,
        {
            "kind": "ema",
            "decay": decay,
            "tau": tau,
            "start_updates": start,
            "updates_list": counted,
        },
        in_num_batches_seq=np.arange(steps + 1) + 1,
        out_ema_num_batches=np.ones(steps),
        out_updates=start + 1 + np.arange(steps),
        out_decay_at=[decay * (1 - np.exp(-n / tau)) for n in counted],
        **arrays,
    )
    recipe.test_ema(case, monkeypatch)
    for entry in ("decay", "tau"):
        with pytest.raises(AssertionError):
            recipe.test_ema(changed(case, **{entry: None}), monkeypatch)


def test_labels_below_two_pixels(tmp_path: Path) -> None:
    """They count in all figures but the fitness: a loop over the pairs."""
    rng = np.random.default_rng(0)
    sizes = np.concatenate(
        (
            np.exp(rng.normal(3.0, 0.8, (90, 2))),
            rng.uniform(0.3, 1.9, (30, 2)),
            rng.uniform((0.5, 5), (1.5, 9), (10, 2)),
        )
    )
    found = np.exp(rng.normal(3.0, 0.7, (5, 4, 2)))
    figures: dict[str, list[float]] = {"fitness": [], "bpr": [], "aat": [], "mean_best": []}
    for tried in found:
        ratios = np.array([[min(w / a, a / w, h / b, b / h) for a, b in tried] for w, h in sizes])
        large, best = sizes.max(1) >= 2, ratios.max(1)
        figures["fitness"].append(float((best * (best > 0.25))[large].mean()))
        figures["bpr"].append(float((best > 0.25).mean()))
        figures["aat"].append(float((ratios > 0.25).sum(1).mean()))
        figures["mean_best"].append(float(best.mean()))
    assert not large.all()
    labels = np.column_stack((np.zeros(len(sizes)), np.full((len(sizes), 2), 0.5), sizes / 320))
    case = written(
        tmp_path,
        {"kind": "kmeans", "imgsz": 320, "n": 4, "gen": 100, "thr": 4.0, "seeds": [0]},
        in_labels=labels,
        in_label_image=np.zeros(len(labels), int),
        in_shapes_wh=[[100, 100]],
        out_anchors=found,
        **{f"out_{k}": v for k, v in figures.items()},
    )
    anchors.test_search_is_as_good(case)


def test_label_files_with_other_problems(tmp_path: Path) -> None:
    refused = {"accepted": False, "labels": None, "shape_wh": None, "n_segments": 0}
    texts = [
        "0 0.5 nan 0.2 0.3\n",
        "0 0.5 0,5 0.2 0.3\n",
        "0 0.5 0.5 0.2 0.3\ncat 0.5 0.5 0.1 0.1\n",
    ]
    rows = [[0.0, 0.5, 0.5, 0.2, 0.3], [2.0, 0.4, 0.4, 0.1, 0.1]]
    doubled = {
        "accepted": True,
        "labels": rows,
        "shape_wh": [50, 40],
        "n_segments": 0,
        "message_kind": "duplicates removed",
    }
    meta = {
        "kind": "labels",
        "cases": [
            {"text": text, "h": 40, "w": 50}
            for text in (*texts, "2 .4 .4 .1 .1\n0 .5 .5 .2 .3\n2 .4 .4 .1 .1\n")
        ],
        "results": [*({**refused, "message_kind": "not a number"} for _ in texts), doubled],
    }
    case = Case(tmp_path / "label_files.json", "labels", meta)
    data.test_label_files(case, tmp_path)
    fine = {
        **meta,
        "cases": [{"text": "0 .5 .5 .2 .3\n", "h": 40, "w": 50}],
        "results": meta["results"][:1],
    }
    with pytest.raises(AssertionError):
        data.test_label_files(Case(case.path, "labels", fine), tmp_path)


@pytest.mark.parametrize(("freeze", "layers"), [([3], {0, 1, 2}), ([1, 3], {1, 3})])
def test_frozen_layers_of_a_training(tmp_path: Path, freeze: list[int], layers: set[int]) -> None:
    """One number is so many first layers, several are these (specification 3.6), whose statistics
    move all the same."""
    rng = np.random.default_rng(0)
    hyp = {
        "lr0": 0.01,
        "lrf": 0.01,
        "momentum": 0.937,
        "weight_decay": 0.0005,
        "warmup_epochs": 3.0,
        "warmup_momentum": 0.8,
    }
    hyp |= {
        "warmup_bias_lr": 0.1,
        "box": 0.05,
        "obj": 1.0,
        "cls": 0.5,
        "cls_pw": 1.0,
        "obj_pw": 1.0,
        "anchor_t": 3.0,
        "fl_gamma": 1.5,
    }
    meta = {
        "kind": "e2e",
        "base": "yolov5n",
        "nc": 2,
        "depth_multiple": 0.33,
        "width_multiple": 0.0625,
        "imgsz": 64,
        "nbs": 2,
    }
    meta |= {
        "batch_size": 2,
        "epochs": 1,
        "optimizer": "SGD",
        "cos_lr": False,
        "label_smoothing": 0.0,
        "sort_obj_iou": True,
        "hyp_full": hyp,
    }
    network = YOLOv5(2, "n", depth_multiple=0.33, width_multiple=0.0625)
    arrays: dict[str, Any] = {f"in_w::{name}": tensor for name, tensor in theirs(network).items()}
    for split in ("train", "val"):
        arrays[f"in_{split}_images"] = rng.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
        centres, sides = rng.uniform(0.3, 0.7, (4, 2)), rng.uniform(0.2, 0.5, (4, 2))
        arrays[f"in_{split}_labels"] = np.column_stack((rng.integers(0, 2, 4), centres, sides))
        arrays[f"in_{split}_label_image"] = np.arange(4)
    inputs = written(tmp_path, meta, out_order=np.arange(4).reshape(2, 2), **arrays)
    told: dict[str, Any] = {
        "freeze": sorted(layers),
        "nominal_batch_size": 2,
    }
    module, recorder, ema = recipe.trained(inputs, tmp_path / "told", **told)

    assert module.ema is not None
    after, before = theirs(module.network), inputs.tensors("in_w::")
    for name, tensor in before.items():
        if int(name.split(".")[1]) in layers:
            counted = name.rpartition(".")[2] in (
                "running_mean",
                "running_var",
                "num_batches_tracked",
            )
            assert torch.equal(after[name], tensor) != counted, name
    assert not torch.equal(after["model.4.cv1.bn.bias"], before["model.4.cv1.bn.bias"])
    arrays |= {f"out_model::{name}": tensor for name, tensor in after.items()}
    arrays |= {f"out_ema::{name}": tensor for name, tensor in theirs(module.ema).items()}  # type: ignore[arg-type]
    targets = [
        np.column_stack((np.full(len(r["batch"].targets), i), r["batch"].targets))
        for i, r in enumerate(recorder.rows)
    ]
    (epoch,) = recorder.epochs
    validation = [
        epoch[f"val/{k}"]
        for k in ("P", "R", "mAP50", "mAP50-95", "box_loss", "obj_loss", "cls_loss")
    ]
    case = written(
        tmp_path,
        {**meta, "freeze": freeze, "sort_obj_iou": True},
        out_order=inputs["out_order"],
        out_batch_targets_iter_img_cls_xywh=np.concatenate(targets),
        out_lr=recorder.column("lr"),
        out_stepped=recorder.column("stepped"),
        out_loss=recorder.column("loss"),
        out_ema_updates=ema.updates,
        out_epoch_results_P_R_m50_map_box_obj_cls=[validation],
        out_epoch_fitness=[epoch["val/fitness"]],
        out_epoch_mean_losses=[[epoch[f"train/{k}_loss"] for k in ("box", "obj", "cls")]],
        **arrays,
    )
    recipe.test_training_trace(case, tmp_path / "read")
    if freeze == [3]:
        with pytest.raises(AssertionError):
            recipe.test_training_trace(changed(case, freeze=[0]), tmp_path / "misread")
