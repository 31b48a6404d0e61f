"""docs/pictures: the committed figures show what is measured in benchmarks/, and none is large."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import figures

LARGEST = 200_000  # bytes


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    figures.draw(folder)
    return folder


def shapes(path):
    """Coordinates of the named curves and bars of an SVG, in points."""
    found = {}
    for group in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}g"):
        name = group.get("id", "")
        if name.endswith(tuple(figures.RECIPES)):
            numbers = re.findall(r"-?[\d.]+", group[0].get("d", ""))
            found[name] = np.array(numbers, float)
    return found


@pytest.mark.parametrize("theme", figures.THEMES)
@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_shows_what_is_committed(name, theme, drawn):
    """Other versions of matplotlib draw other letters, but the same curves and bars."""
    file = f"{name}-{theme}.svg"
    committed = shapes(figures.PICTURES / file)
    fresh = shapes(drawn / file)
    assert committed.keys() == fresh.keys()
    assert len(fresh) >= 6
    for shape, numbers in fresh.items():
        assert len(numbers) >= 8
        np.testing.assert_allclose(committed[shape], numbers, atol=0.1, err_msg=shape)


def test_no_picture_is_large():
    sizes = {path.name: path.stat().st_size for path in figures.PICTURES.iterdir()}
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}
