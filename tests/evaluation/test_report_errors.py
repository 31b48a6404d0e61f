"""The error analysis against a slow and obvious one, written from the paper."""

from hypothesis import given, settings
from made_evidence import drawn_evidence
from overlaps import overlap

from boltbox.detector.evaluation.error_kinds import (
    KINDS,
    MISSED,
    classify,
    count_errors,
)


def slow_verdicts(e):
    """One detection after the other, the surest first: the cause, and the label it has or would
    have."""
    result = [("", -1)] * len(e.score)
    taken = set()
    for k in sorted(range(len(e.score)), key=lambda k: -e.score[k]):
        own = []
        other = []
        for t in range(len(e.label_kind)):
            if e.label_image[t] == e.image[k]:
                labels = own if e.label_kind[t] == e.kind[k] else other
                labels.append((overlap(e.box[k], e.label_box[t], 1e-7), -t))
        (best, t), (best_other, t_other) = max(own, default=(0, 1)), max(other, default=(0, 1))
        if best >= 0.5 and -t not in taken:
            result[k] = "hit", -t
            taken.add(-t)
        elif best >= 0.5:
            result[k] = "duplicate", -1
        elif best_other >= 0.5:
            result[k] = "wrong class", -t_other
        elif best >= 0.1:
            result[k] = "poor localisation", -t
        else:
            result[k] = "both" if best_other >= 0.1 else "background", -1
    return result


@settings(max_examples=80)
@given(drawn_evidence())
def test_verdicts_are_those_of_the_slow_way(e):
    errors = classify(e, e.true_positives()[:, 0])
    slow = slow_verdicts(e)
    expected = dict.fromkeys(KINDS, 0)
    found = set()
    for k, (kind, target) in enumerate(slow):
        assert (KINDS[errors.verdict[k]], errors.target[k]) == (kind, target)
        if e.score[k] >= 0.3:
            expected[kind] += 1
            if kind in ("hit", "wrong class", "poor localisation"):
                found.add(target)
    assert len(errors.verdict) == len(errors.target) == len(slow)
    counts = count_errors(e, errors, 0.3)
    assert counts.pop(MISSED) == len(e.label_kind) - len(found)
    assert counts == expected
