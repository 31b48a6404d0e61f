"""Published weights and checkpoints of ours: what is taken of them, and what does not fit."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from made_networks import same, small, yolov5_converter  # noqa: F401
from made_options import made_detector
from shared import published_file  # noqa: F401
from weight_files import read_yolov5

from boltbox.detector.checkpoint.writer import AtomicCheckpointIO
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.yolov5 import by_our_names, key_map


def test_published_weights(published: Path) -> None:
    weights = read_yolov5(published)
    assert len(weights.names) == 80
    assert (weights.names[0], weights.names[79]) == ("person", "toothbrush")
    assert {t.dtype for t in weights.state.values()} == {torch.float32, torch.int64}
    assert {t.dtype for name, t in weights.state.items() if "num_batches" not in name} == {
        torch.float32
    }
    network = YOLOv5(80, "n")
    assert load_weights(network, published).line == f"{published}: loaded 349 of 349 tensors"
    assert same(
        {theirs: network.state_dict()[ours] for theirs, ours in key_map(network).items()},
        weights.state,
    )


def test_published_weights_for_other_classes(published: Path) -> None:
    network = YOLOv5(3, "n")
    other = YOLOv5(80, "n")
    head = {name: t.clone() for name, t in network.head.state_dict().items()}
    said = load_weights(network, published).line
    assert said.endswith(
        "loaded 343 of 349 tensors; the head starts from random values, as its classes or its kind differ"
    )
    assert same(network.head.state_dict(), head)
    load_weights(other, published)
    assert same(network.backbone.state_dict(), other.backbone.state_dict())
    assert same(network.neck.state_dict(), other.neck.state_dict())
    assert torch.equal(network.anchors, other.anchors)


@pytest.mark.parametrize("size", ["s", "n6", "p34"])
def test_published_weights_of_another_size(size: str, published: Path) -> None:
    network = YOLOv5(80, size, width_multiple=0.5 if size == "s" else 0.25)
    before = {name: t.clone() for name, t in network.state_dict().items()}
    with pytest.raises(
        InputError,
        match=r"yolov5n.pt: these weights do not fit .*made with --model.network.size n$",
    ):
        load_weights(network, published)
    assert same(network.state_dict(), before), "nothing is half loaded"


@pytest.mark.parametrize("names", [["a", "b", "c"], {0: "a", 1: "b", 2: "c"}])
def test_a_full_checkpoint_gives_its_average_in_float32(
    tmp_path: Path, as_yolov5: Any, names: Any
) -> None:
    """As YOLOv5 saves it after an epoch: model and ema in half precision, names as a list or a
    map."""
    plain = small(seed=1)
    average = small(seed=2)
    content = {
        "epoch": 3,
        "model": as_yolov5(plain, names=names).half(),
        "ema": as_yolov5(average, names=names).half(),
    }
    torch.save(content, tmp_path / "last.pt")
    weights = read_yolov5(tmp_path / "last.pt")
    assert weights.names == ["a", "b", "c"]
    assert weights.multiples == {}
    network = small(seed=3)
    network.load_state_dict(by_our_names(network, weights))
    assert same(network.state_dict(), average.state_dict(), atol=0.02)
    assert not same(network.state_dict(), plain.state_dict(), atol=0.02)
    assert {t.dtype for t in network.state_dict().values()} == {torch.float32, torch.int64}


def test_a_stripped_checkpoint_gives_its_model(tmp_path: Path, as_yolov5: Any) -> None:
    """As YOLOv5 leaves it after a training: no ema; and as releases before 6 wrote it: anchors in
    pixels beside the anchors."""
    network = small(seed=1)
    model = as_yolov5(network, nc=3)
    model.get_submodule("model.24").register_buffer("anchor_grid", torch.ones(3, 1, 3, 1, 1, 2))
    torch.save({"epoch": -1, "model": model, "ema": None}, tmp_path / "best.pt")
    weights = read_yolov5(tmp_path / "best.pt")
    assert weights.names == ["0", "1", "2"], "without names: numbers"
    other = small(seed=2)
    other.load_state_dict(by_our_names(other, weights))
    assert same(other.state_dict(), network.state_dict())


@pytest.mark.parametrize(("size", "multiples"), [("n", (0.33, 0.25)), ("s6", (0.33, 0.5))])
def test_the_error_names_the_size_that_fits(
    tmp_path: Path, as_yolov5: Any, size: str, multiples: tuple[float, float]
) -> None:
    yaml = {"depth_multiple": multiples[0], "width_multiple": multiples[1]}
    torch.save({"model": as_yolov5(YOLOv5(3, size), nc=3, yaml=yaml)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match=rf"made with --model.network.size {size}$"):
        load_weights(small(size="p2"), tmp_path / "other.pt")


def test_weights_with_a_tensor_too_many_or_too_few(tmp_path: Path, as_yolov5: Any) -> None:
    """Nothing is left out in silence."""
    more = as_yolov5(small(), nc=3)
    more.get_submodule("model.0").register_buffer("extra", torch.zeros(3))
    fewer = as_yolov5(small(), nc=3)
    del fewer.get_submodule("model.9").cv2
    for model in (more, fewer):
        torch.save({"model": model}, tmp_path / "odd.pt")
        with pytest.raises(InputError, match=r"odd.pt: no network of"):
            load_weights(small(), tmp_path / "odd.pt")


def test_anchors_that_were_asked_for_stay(tmp_path: Path, as_yolov5: Any) -> None:
    """A file does not overrule an option (specification 6.2: the file's anchors are left out if
    anchors are given)."""
    yaml = {"depth_multiple": 0.33, "width_multiple": 0.125}
    torch.save({"model": as_yolov5(small(), nc=3, yaml=yaml)}, tmp_path / "best.pt")
    options = {
        "depth_multiple": 0.33,
        "width_multiple": 0.125,
        "weights": str(tmp_path / "best.pt"),
    }
    anchors = [[10.0, 20.0] * 3, [30.0, 40.0] * 3, [64.0, 96.0] * 3]
    assert (
        made_detector(["a", "b", "c"], anchors=anchors, **options)
        .network.head.anchors_px.flatten(1)
        .tolist()
        == anchors
    )
    assert torch.equal(made_detector(["a", "b", "c"], **options).network.anchors, small().anchors)


def checkpoint(names: list[str], **networks: YOLOv5) -> dict[str, Any]:
    """The part of a Lightning checkpoint that weights are read from; networks by prefix."""
    state = {
        f"{prefix}.{name}": t
        for prefix, network in networks.items()
        for name, t in network.state_dict().items()
    }
    return {
        "state_dict": state | {"loss.balance": torch.ones(3)},
        "hyper_parameters": {"names": names},
        "epoch": 2,
    }


def test_a_checkpoint_of_ours(tmp_path: Path) -> None:
    """Its average first, then its network; anchors included."""
    plain = small(seed=1)
    average = small(seed=2, anchors=[[10, 20] * 3] * 3)
    file = tmp_path / "last.ckpt"
    network = small(seed=3)
    torch.save(checkpoint(["a", "b", "c"], network=plain), file)
    assert load_weights(network, file).line == f"{file}: loaded 349 of 349 tensors"
    assert same(network.state_dict(), plain.state_dict())
    torch.save(checkpoint(["a", "b", "c"], network=plain, ema=average), file)
    load_weights(network, file)
    assert same(network.state_dict(), average.state_dict())


def test_a_checkpoint_of_ours_for_other_classes(tmp_path: Path) -> None:
    torch.save(checkpoint(["a", "b", "c"], network=small(3, seed=1)), tmp_path / "last.ckpt")
    network = small(5, seed=2)
    head = {name: t.clone() for name, t in network.head.state_dict().items()}
    assert (
        "the head starts from random values" in load_weights(network, tmp_path / "last.ckpt").line
    )
    assert same(network.backbone.state_dict(), small(3, seed=1).backbone.state_dict())
    assert same(network.head.state_dict(), head)


def test_a_checkpoint_of_ours_of_another_size(tmp_path: Path) -> None:
    torch.save(
        checkpoint(["a", "b", "c"], network=small(width_multiple=0.25)), tmp_path / "last.ckpt"
    )
    with pytest.raises(
        InputError,
        match=r"last.ckpt: these weights do not fit the network .* network was made with",
    ):
        load_weights(small(), tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {}},
        {"hyper_parameters": {"names": ["a"]}},
        {"state_dict": {}, "hyper_parameters": {"lr": 0.1}},
        [1, 2],
        3,
    ],
    ids=str,
)
def test_a_checkpoint_of_somebody_else(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(InputError, match=r"other.ckpt: .*not a (checkpoint|file of weights)"):
        load_weights(small(), tmp_path / "other.ckpt")


def test_classes_of_the_same_name_keep_their_rows(published: Path) -> None:
    """Whatever their case, spaces and order; the others start fresh, and without names all do."""
    names = ["lamp", "Traffic_Light", "PERSON"]
    network = YOLOv5(3)
    nameless = YOLOv5(3)
    whole = YOLOv5(80)
    load_weights(whole, published)
    said = load_weights(network, published, names, reuse_head=True).line
    assert said.endswith(
        "class outputs start from random values, as the classes differ, except traffic light, person"
    )
    fresh = [conv.weight.detach().view(3, 8, -1).clone() for conv in nameless.head.convs]
    load_weights(nameless, published, reuse_head=True)
    for level, own in enumerate(fresh):
        rows, plain, theirs = (
            n.head.convs[level].weight.detach().unflatten(0, (3, -1)).flatten(2)
            for n in (network, nameless, whole)
        )
        assert torch.equal(rows[:, [0, 1, 2, 3, 4, 6, 7]], theirs[:, [0, 1, 2, 3, 4, 14, 5]])
        assert torch.equal(plain[:, :5], theirs[:, :5])
        assert torch.equal(plain[:, 5:], own[:, 5:])


def test_classes_in_another_order_keep_their_rows(published: Path, tmp_path: Path) -> None:
    """Of as many classes too; names that differ in place alone stay. Of a single class the row is
    not trained, and stays fresh."""
    torch.manual_seed(0)
    trained = made_detector(["a", "b", "c"], width_multiple=0.125, depth_multiple=0.1)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, plugins=[AtomicCheckpointIO()]
    )
    trainer.strategy.connect(trained)
    trainer.save_checkpoint(tmp_path / "abc.ckpt")

    def rows(network: YOLOv5) -> torch.Tensor:
        return network.head.convs[0].weight.detach().unflatten(0, (3, -1))

    def started(names: list[str]) -> tuple[YOLOv5, list[int]]:
        network = YOLOv5(3, width_multiple=0.125, depth_multiple=0.1)
        return network, load_weights(
            network, tmp_path / "abc.ckpt", names, reuse_head=True
        ).known_classes

    own = rows(trained.network)
    renamed, known = started(["a", "x", "c"])
    assert torch.equal(rows(renamed), own)
    assert known == [0, 2]
    single = YOLOv5(1)
    assert ", except " not in load_weights(single, published, ["person"], reuse_head=True).line
    torch.save(checkpoint(["a"], network=small(1, seed=3)), tmp_path / "a.ckpt")
    loaded = load_weights(small(2), tmp_path / "a.ckpt", ["a", "b"], reuse_head=True)
    assert loaded.has_head
    assert loaded.known_classes == []
    assert loaded.line.endswith("class outputs start from random values, as the classes differ")
