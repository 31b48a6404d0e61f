"""Published weights and checkpoints of ours: what is taken of them, and what does not fit."""

import pytest
import torch
from made_networks import MULTIPLES, copied, same, small, yolov5_converter  # noqa: F401
from made_options import made_detector
from made_runs import column
from shared import published_file  # noqa: F401
from weight_files import read_yolov5

from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.trained import read_trained
from boltbox.detector.weights.yolov5 import by_our_names, key_map

ABC = ["a", "b", "c"]


def test_published_weights(published):
    """Whole for a network of their size; on other classes with a fresh head."""
    weights = read_yolov5(published)
    assert len(weights.names) == 80
    assert (weights.names[0], weights.names[79]) == ("person", "toothbrush")
    assert set(column(weights.state.values(), "dtype")) == {torch.float32, torch.int64}
    network = YOLOv5(80, "n")
    assert "loaded 349 of 349 tensors" in load_weights(network, published).line
    state = network.state_dict()
    assert same({theirs: state[ours] for theirs, ours in key_map(network).items()}, weights.state)
    other = YOLOv5(3, "n")
    fresh = copied(other.head)
    loaded = load_weights(other, published)
    assert "loaded 343 of 349 tensors" in loaded.line
    assert not loaded.has_head
    fresh["anchors"] = network.head.anchors
    assert same(other.head.state_dict(), fresh)
    assert same(other.neck.state_dict(), network.neck.state_dict())


@pytest.mark.parametrize("size", ["m", "p34"])
def test_published_weights_of_another_size(size, published):
    network = YOLOv5(80, size, width_multiple=0.25)
    before = copied(network)
    with pytest.raises(InputError, match=r"yolov5n.pt: .*--model.network.size n$"):
        load_weights(network, published, reuse_head=size == "m")
    assert same(network.state_dict(), before), "nothing is half loaded"


def test_a_file_of_yolov5_says_what_it_is(tmp_path, as_yolov5):
    """A large size, another activation, more anchors. A training that asks for as many anchors
    starts with the file's."""
    file = tmp_path / "own.pt"
    network = small(size="n6", activation="relu", anchors=5)
    network.head.anchors *= 1.5
    config = MULTIPLES | {"activation": "nn.ReLU()"}
    torch.save({"model": as_yolov5(network, names=ABC, yaml=config)}, file)
    trained = read_trained(file)
    assert trained.options["activation"] == "relu"
    assert trained.image_size == 1280
    made = made_detector(ABC, size="n6", anchors=5, weights=str(file), **MULTIPLES).network
    for other in (trained.network, made):
        assert same(other.state_dict(), network.state_dict())


@pytest.mark.parametrize("names", [ABC, dict(enumerate(ABC)), None])
def test_files_of_trainings_of_yolov5(tmp_path, as_yolov5, names):
    """In half precision, names as a list or a map; as its last.pt, with an average, or as its
    best.pt, without one and without names, as releases before 6 wrote it: with anchors in pixels
    beside the anchors."""
    attributes = {"names": names} if names else {"nc": 3}
    model = as_yolov5(small(seed=1), **attributes).half()
    ema = as_yolov5(small(seed=2), **attributes).half() if names else None
    model.get_submodule("model.24").register_buffer("anchor_grid", torch.ones(3, 1, 3, 1, 1, 2))
    torch.save({"epoch": 3, "model": model, "ema": ema}, tmp_path / "last.pt")
    weights = read_yolov5(tmp_path / "last.pt")
    assert weights.names == (ABC if names else ["0", "1", "2"])
    network = small(seed=3)
    network.load_state_dict(by_our_names(network, weights.state))
    expected = small(seed=2 if names else 1)
    assert same(network.state_dict(), expected.state_dict(), atol=0.02)
    assert set(column(network.state_dict().values(), "dtype")) == {torch.float32, torch.int64}


def test_files_of_yolov5_that_do_not_fit(tmp_path, as_yolov5):
    """The error names the network that fits. Nothing is left out in silence."""
    file = tmp_path / "odd.pt"
    more = as_yolov5(small(), nc=3, yaml=MULTIPLES)
    more.get_submodule("model.0").register_buffer("extra", torch.zeros(3))
    for model, message in (
        (as_yolov5(YOLOv5(3, "s6"), nc=3), "made with --model.network.size s6$"),
        (as_yolov5(small(), nc=3, yaml=MULTIPLES), "--model.network.width_multiple 0.125$"),
        (more, "no network of"),
        (as_yolov5(small(), yaml={"activation": "nn.Mish()"}), r"nn\.Mish"),
    ):
        torch.save({"model": model}, file)
        with pytest.raises(InputError, match=rf"odd\.pt: .*{message}"):
            load_weights(small(size="p2"), file)


def checkpoint(names, **networks):
    """The part of a Lightning checkpoint that weights are read from; networks by prefix."""
    state = {"loss.balance": torch.ones(3)}
    for prefix, network in networks.items():
        state |= {f"{prefix}.{name}": t for name, t in network.state_dict().items()}
    return {"state_dict": state, "hyper_parameters": {"names": names}}


def test_a_checkpoint_of_ours(tmp_path):
    """Its average first, then its network; its anchors, unless others were asked for."""
    anchors = [[10.0, 20.0] * 3, [30.0, 40.0] * 3, [64.0, 96.0] * 3]
    plain = small(seed=1)
    average = small(seed=2, anchors=anchors)
    file = tmp_path / "last.pt"
    for networks, expected in (
        ({"network": plain}, plain),
        ({"network": plain, "ema": average}, average),
    ):
        network = small(seed=3)
        torch.save(checkpoint(ABC, **networks), file)
        assert "loaded 349 of 349 tensors" in load_weights(network, file).line
        assert same(network.state_dict(), expected.state_dict())
    for given in (None, [[5.0, 6.0] * 3] * 3):
        made = made_detector(ABC, anchors=given, weights=str(file), **MULTIPLES).network
        assert made.head.anchors_px.flatten(1).tolist() == (given or anchors)
    with pytest.raises(InputError, match=r"last.pt: these weights do not fit"):
        load_weights(small(width_multiple=0.25), file)
    for content in ({"state_dict": {}}, {"hyper_parameters": {"names": ABC}}):
        torch.save(content, file)
        with pytest.raises(InputError, match=r"last.pt: .*not a"):
            load_weights(small(), file)


def rows(network):
    """(A, 5 + C, channels) of the finest level."""
    return network.head.convs[0].weight.detach().unflatten(0, (3, -1)).flatten(2)


def test_classes_of_the_same_name_keep_their_rows(published):
    """Whatever their case, spaces and order; the others start fresh, and without names all do."""
    whole = YOLOv5(80)
    load_weights(whole, published)
    network = YOLOv5(3)
    fresh = rows(network).clone()
    assert load_weights(network, published, reuse_head=True).known_classes == []
    assert torch.equal(rows(network)[:, :5], rows(whole)[:, :5])
    assert torch.equal(rows(network)[:, 5:], fresh[:, 5:])
    loaded = load_weights(network, published, ["lamp", "Traffic_Light", "PERSON"], reuse_head=True)
    assert loaded.known_classes == [1, 2]
    assert loaded.line.endswith("except traffic light, person")
    assert torch.equal(rows(network)[:, [0, 4, 6, 7]], rows(whole)[:, [0, 4, 14, 5]])
    assert torch.equal(rows(network)[:, 5], fresh[:, 5])


def test_known_classes(tmp_path):
    """Of as many classes too, in another order; where names differ in place alone, all rows stay.
    The output of a single class is not trained: it stays fresh, here and there."""
    file = tmp_path / "a.ckpt"
    torch.save(checkpoint(ABC, network=small()), file)
    renamed = small(seed=1)
    loaded = load_weights(renamed, file, ["a", "x", "c"], reuse_head=True)
    assert loaded.known_classes == [0, 2]
    assert torch.equal(rows(renamed), rows(small()))
    moved = small(seed=1)
    fresh = rows(moved).clone()
    loaded = load_weights(moved, file, ["c", "a", "x"], reuse_head=True)
    assert loaded.known_classes == [0, 1]
    assert torch.equal(rows(moved)[:, [0, 4, 5, 6]], rows(small())[:, [0, 4, 7, 5]])
    assert torch.equal(rows(moved)[:, 7], fresh[:, 7])
    single = small(1, seed=1)
    fresh = rows(single).clone()
    assert load_weights(single, file, ["a"], reuse_head=True).known_classes == [0]
    assert torch.equal(rows(single)[:, 5], fresh[:, 5])
    torch.save(checkpoint(["a"], network=small(1)), file)
    loaded = load_weights(small(2), file, ["a", "b"], reuse_head=True)
    assert loaded.has_head
    assert loaded.known_classes == []
