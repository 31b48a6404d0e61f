"""The page of a review in Chromium: real keys, drags and touches, and the file that it saves."""

import json

import numpy as np
import pytest
from chromium import chromium
from made_datasets import picture, save
from made_labels import labels_of
from made_runs import until

from boltbox.detector.commands.review.page import write_page
from boltbox.detector.commands.review.suspect import (
    Review,
    ReviewedImage,
    Source,
    Suggestion,
    Suspect,
)

EVIL = '</script><script>document.title = "evil"</script><img src=x onerror=alert(1)>'
NAMES = ["cat", EVIL, "bird"]
CAT = (20.0, 30.0, 70.0, 90.5)
DOG = (100.0, 20.0, 140.25, 60.0)
BIRD = (10.0, 10.0, 50.0, 50.0)
BETTER = (96.0, 16.0, 150.0, 70.0)
LOST = (150.0, 80.0, 190.0, 120.0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def review(tmp_path):
    """Of a cat and a dog in one image, and a bird, twice, in another, which is lost; the page."""
    here = str(save(tmp_path / '<b>&"a".png', picture(160, 200)))
    lost = str(tmp_path / "lost \udcff.png")
    labels = labels_of([CAT, DOG], [0, 1], 160, 200)
    birds = labels_of([BIRD, BIRD], [2, 2], 60, 60)
    images = [
        ReviewedImage(here, "train", labels, [EVIL, "line 2"], np.zeros((0, 4))),
        ReviewedImage(lost, "val", birds, ["line 1", "line 1"], np.zeros((0, 4))),
    ]
    suspects = [
        Suspect(7, 0, "wrong_class", 0.9, 0, CAT, 0, Suggestion(CAT, 2), EVIL),
        Suspect(3, 0, "missing", 0.8, None, LOST, 1, Suggestion(LOST, 1), ""),
        Suspect(4, 0, "badly_placed", 0.7, 1, DOG, 1, Suggestion(BETTER, 1), ""),
        Suspect(5, 1, "duplicate", 0.6, 1, BIRD, 2, None, ""),
        Suspect(6, 0, "badly_placed", 0.5, 0, CAT, 0, Suggestion(BETTER, 0), ""),
    ]
    made = Review(Source(str(tmp_path)), NAMES, images, suspects)
    write_page(tmp_path / "review.html", made)
    return made


@pytest.fixture
def page(browser, review):
    browser.open(f"{review.dataset.dataset}/review.html")
    yield browser
    assert browser.errors == []


def saved(page):
    page.press("s")
    path = page.downloaded("decisions.json")
    content = json.loads(path.read_text())
    path.unlink()
    return content


def changes(page):
    """Label, box and class of each change."""
    found = saved(page)["changes"]
    return [(each["label"], each["box"], each["class"]) for each in found]


def text(page, name):
    return page.evaluate(f"document.getElementById('{name}').textContent")


def test_the_file_holds_what_was_decided(page, review):
    """Accepted, accepted, rejected, accepted; undo, redo; what files say is text; the progress
    outlives the page."""
    page.press("a", "a", "r", "a", "u", "u", "Shift+U", "Control+z", "Control+y", "Control+y")
    expected = review.content | {
        "images": {image.file: image.labels.digest() for image in review.images},
        "decisions": [
            {"suspect": 7, "decision": "accepted"},
            {"suspect": 3, "decision": "accepted"},
            {"suspect": 4, "decision": "rejected"},
            {"suspect": 5, "decision": "accepted"},
        ],
        "changes": [
            {"file": review.images[0].file, "label": 0, "box": list(CAT), "class": 2},
            {"file": review.images[0].file, "label": None, "box": list(LOST), "class": 1},
            {"file": review.images[1].file, "label": 1, "box": None, "class": None},
        ],
        "review": review.content["id"],
    }
    del expected["id"], expected["suspects"]
    assert saved(page) == expected

    def outlived():  # Chromium keeps it a moment later
        page.open(f"{review.dataset.dataset}/review.html")
        return page.evaluate("decisions.size")

    until(outlived)
    assert saved(page) == expected
    assert page.evaluate("document.title") != "evil"
    assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0


def test_suspects_of_one_label_make_one_change(page):
    page.press("a", "j", "j", "j", "a")
    assert changes(page) == [(0, list(BETTER), 2)]
    page.press("k", "k", "k", "k", "r")
    assert changes(page) == [(0, list(BETTER), 0)]


def scale(page):
    """Pixels of the screen per pixel of the file, by the selected box of the dog."""
    return page.box(".box.target")[2] / (DOG[2] - DOG[0])


@pytest.mark.parametrize("finger", [False, True])
def test_a_corner_and_a_box_are_dragged(page, finger):
    """The bottom right corner of a suggestion, then all of what it became; touch and mouse."""
    page.press("j", "j")
    pull = (lambda *points: page.touch(points)) if finger else page.drag
    x, y = page.middle('.suggestion [data-corner="2"]')
    unit = scale(page)
    pull((x, y), (x + 5, y + 5), (x + 4 * unit, y + 2 * unit))
    x, y = page.middle(".box.selected")
    pull((x, y), (x - 5, y - 5), (x - 3 * unit, y - 30 * unit))
    ((label, box, index),) = changes(page)
    assert (label, index) == (1, 1)
    assert box == pytest.approx([93, 0, 151, 56], abs=0.1)
    page.press("u")
    ((_, box, _),) = changes(page)
    assert box == pytest.approx([96, 16, 154, 72], abs=0.1)
    page.press("u")
    assert changes(page) == []


def test_keys_alone_correct(page):
    """Look at the keys. Go past the corners of the cat to the dog and delete it; undo. Move the box
    of the cat, choose its class, pull a corner past the image, add a box, delete it; delete the
    cat; pull a corner of the next suggestion twice."""
    page.press("?", "n", "?", "e", *["Tab"] * 10, "x")  # the suggestion is between them
    assert changes(page) == [(1, None, None)]
    page.press("u")
    page.press("e", "ArrowRight", "Shift+ArrowDown", "c", "ArrowDown", "Enter")
    assert changes(page) == [(0, [21, 40, 71, 100.5], 1)]
    page.press("Tab", *["Shift+ArrowLeft"] * 4, "ArrowUp")
    assert changes(page) == [(0, [0, 39, 71, 100.5], 1)]
    page.press("n", "ArrowLeft")
    (_, (label, box, index)) = changes(page)
    assert (label, index) == (None, 2)
    assert 0 < box[0] < box[2] < 200
    page.press("x", "e", "x")
    assert changes(page) == [(0, None, None)]
    assert saved(page)["decisions"] == [{"suspect": 7, "decision": "corrected"}]
    page.press("j", "e", "Tab", "ArrowLeft", "ArrowLeft")  # a suggestion becomes a label
    assert changes(page)[1:] == [(None, [148, *LOST[1:]], 1)]


def test_filters_and_fingers(page):
    """Decisions lead through what the filters show; two fingers zoom and decide nothing."""
    page.evaluate("document.getElementById('split').focus()")
    page.press("v", "Enter", "a")
    assert changes(page) == [(1, None, None)]
    assert page.evaluate("list.children.length") == 1
    page.evaluate("document.getElementById('split').focus()")
    page.press("a", "Enter")
    before = scale(page)
    x, y = page.middle("#stage")
    page.touch([(x - 20, y), (x - 60, y)], [(x + 20, y), (x + 60, y)])
    assert scale(page) > 1.5 * before
    assert len(saved(page)["decisions"]) == 1


def test_two_windows(page):
    """Each shows, and saves, what is decided in the other, and does not undo it."""
    page.press("j", "a", "k", "k")
    first = page.session
    other = page.send("Target.createTarget", url=page.evaluate("location.href"))["targetId"]
    attached = page.send("Target.attachToTarget", targetId=other, flatten=True)
    page.session = attached["sessionId"]
    page.wait("Boolean(document.querySelector('[aria-selected]'))")  # not in about:blank
    page.press("a")
    page.session = first
    page.wait("$('accept').ariaPressed === 'true'")
    page.press("u", "j", "j", "a")
    assert len(saved(page)["decisions"]) == 3
    page.send("Target.closeTarget", targetId=other)


def test_a_browser_that_keeps_nothing(browser, review):
    """It is said, and the decisions are there until the page is closed."""
    script = "Object.defineProperty(window, 'localStorage', {get() { throw new Error(); }});"
    number = browser.send("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    browser.open(f"{review.dataset.dataset}/review.html")
    refused = text(browser, "count")
    browser.press("a")
    assert changes(browser) == [(0, list(CAT), 2)]
    browser.send("Page.removeScriptToEvaluateOnNewDocument", identifier=number)
    browser.open(f"{review.dataset.dataset}/review.html")
    assert refused.startswith(text(browser, "count"))
    assert refused != text(browser, "count")
