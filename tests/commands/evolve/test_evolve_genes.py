"""The genes of an evolution: the file of their space, where they start, how they mutate and
cross."""

import numpy as np
import pytest

from boltbox.detector.commands.evolve import genetic
from boltbox.detector.commands.evolve.genetic import child
from boltbox.detector.commands.evolve.space import YOLOV5_GENES, Gene, read_space, start_values
from boltbox.detector.system.errors import InputError

CONFIGURATION = {
    "model.optim.lr0": 0.01,
    "data.augment.mosaic": 1.0,
    "data.batch_size": 64,
    "model.network.size": "n",
    "model.nested.x": 1.5,
}
GENES = (
    Gene("a", "model.a", 0.0, 1.0),
    Gene("rate", "model.rate", 1e-4, 1.0, log=True),
    Gene("n", "model.n", 1, 9, is_integer=True),
)


def children(values, fitness, genes, g=0):
    rngs = map(np.random.default_rng, range(20))
    return np.array([child(rng, values, fitness, genes, g, 10) for rng in rngs])


def test_repaired_mutation_is_a_fifth_of_each_range(monkeypatch):
    """All genes mutate, none is crossed: a child is one of the pool, moved by at most a fifth of
    the range, in logarithms for a log gene, and an integer stays one."""
    monkeypatch.setattr(
        genetic, "schedule", lambda g, generations: genetic.Schedule(2, 2, 0.0, 1.0)
    )
    found = children(np.tile([0.5, 0.01, 4.0], (8, 1)), np.arange(8.0), GENES)
    assert 0.1 < np.abs(found[:, 0] - 0.5).max() <= 0.2
    decades = np.log10(found[:, 1] / 0.01)
    assert 0.4 < np.abs(decades).max() <= 0.8
    assert {3.0, 5.0} <= set(found[:, 2]) <= {2.0, 3.0, 4.0, 5.0, 6.0}


def test_children_come_from_the_fit(monkeypatch):
    """With mutations that do not move, each child is a front of one parent's genes and the rest of another's;
    tournaments of all leave only the best in the pool, and what failed is never in it."""
    genes = [Gene(str(k), str(k), 0, 100) for k in range(5)]
    monkeypatch.setattr(genetic, "REACH", 0.0)
    values = np.arange(10.0)[:, None].repeat(5, axis=1)
    fitness = np.array([3, -np.inf, 5, 1, 9, -np.inf, 7, 2, 8, 0.0])
    schedules = {"elites": genetic.Schedule(2, 5, 1.0, 0.0), "all": genetic.Schedule(0, 10, 1.0, 0)}
    monkeypatch.setattr(genetic, "schedule", lambda *_: schedules["elites"])
    found = children(values, fitness, genes).round(6)
    assert len(set(map(tuple, found))) > 5
    for row in found:
        assert (np.diff(row) != 0).sum() <= 1, "one cut"
        assert not {1.0, 5.0} & set(row)
    monkeypatch.setattr(genetic, "schedule", lambda *_: schedules["all"])
    assert set(children(values, fitness, genes).round(6).ravel()) == {4.0}


def test_no_training_is_spent_on_a_copy():
    """At the end of the schedule few genes mutate and tournaments are small; still no child is one
    of those before it."""
    values = np.random.default_rng(0).random((20, 3)) * 0.5 + 0.2
    found = children(values, np.arange(20.0), GENES, 9)
    assert not (found[:, None] == values).all(axis=2).any()


def test_start_is_the_configuration_and_the_files_within_the_bounds():
    """What is null in the configuration comes from low.yaml, or is the lowest value."""
    genes = [
        YOLOV5_GENES["scale"],
        YOLOV5_GENES["mosaic"]._replace(high=0.9),
        YOLOV5_GENES["lr0"],
        YOLOV5_GENES["anchors"],
    ]
    options = {gene.option: None for gene in genes} | {"data.augment.scale": 0.25}
    start = start_values(genes, options)
    assert [tuple(values.values()) for values in start] == [
        (0.25, 0.9, 0.01, 2), (0.5, 0.9, 0.01, 2), (0.9, 0.9, 0.01, 2), (0.9, 0.9, 0.01, 2), (0.0, 0.0, 0.01, 2),
        (0.75544, 0.85834, 0.00334, 3), (0.491, 0.9, 0.00258, 3),
    ]  # fmt: skip
    rows = np.array([[gene.from_unit(x) for gene in genes] for x in np.linspace(0, 1, 200)])
    assert rows.min(axis=0) == pytest.approx([0.0, 0.0, 1e-5, 2.0])
    assert rows.max(axis=0) == pytest.approx([0.9, 0.9, 0.1, 10.0])
    assert set(rows[:, 3]) == set(range(2, 11))


def test_space(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(
        "mosaic:\nmodel.optim.lr0: {low: 1e-4, high: 0.1, log: true}\n"
        "data.batch_size: {low: 8, high: 128}\nmodel.nested.x: {low: 0, high: 3}\n"
    )
    assert read_space(file, CONFIGURATION) == [
        YOLOV5_GENES["mosaic"],
        Gene("lr0", "model.optim.lr0", 1e-4, 0.1, log=True),
        Gene("data.batch_size", "data.batch_size", 8, 128, is_integer=True),
        Gene("model.nested.x", "model.nested.x", 0, 3),
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("mosiac: {low: 0, high: 1}", "'mosaic'"),
        ("model.network.size: {low: 0, high: 1}", "model.network.size"),
        ("lr0: {low: 0.1, high: 0.1}", "lr0: low is 0.1"),
        ("lr0: {low: 0, log: true}", "lr0: low is 0"),
        ("lr0: {low: much}", "lr0: low is nan"),
        ("lr0: {high: .inf}", "lr0: low"),
        ("lr0: {hihg: 3}", "lr0"),
        ("lr0: 0.1", "lr0"),
        ("data.batch_size: {low: 8}", "data.batch_size: low is 8, high is nan"),
        ("lr0:\nmodel.optim.lr0:", "model.optim.lr0"),
        ("[1, 2]", "space.yaml"),
        ("lr0: {", "space.yaml"),
    ],
)
def test_a_space_that_makes_no_sense(text, named, tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as e:
        read_space(file, CONFIGURATION)
    assert named in str(e.value)
    assert str(file) in str(e.value)
