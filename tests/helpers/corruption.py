"""Texts with a few places corrupted, drawn by hypothesis, for readers of label files."""

import re

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXTREMES = [
    *[
        "1e309",
        "-1e309",
        "-1",
        "nan",
        "NaN",
        "-inf",
        "infinity",
        "1e30",
        "16777217",
        "1e-60",
        "-0",
        "1_0",
        "\u0661",
        "0x10",
    ],
    *["", " ", "1e", "1,5", "1e9", "2147483648", str(10**30), str(2**63 - 1)],
    # sound, but elsewhere
    *["0", "0.5", "1.0000001", "1", "2", "40", "60", "1.5", "+0.5", "5e-1", ".5", "5."],
]
TOKENS = [
    *EXTREMES,
    *["\n", "\r\n", "\r", "\0", "\x0c", "\x1c", "\u2028", "\ufeff", "\t"],
    *["<", ">", "&", "]]>", "<!--", "-->", "&x;", '"', "{", "}", "[", "]", ","],
]
FUZZ = settings(max_examples=200, suppress_health_check=list(HealthCheck))


@st.composite
def corrupted(draw: st.DrawFn, texts: list[str]) -> bytes:
    """One of the texts with up to four defects: numbers replaced, bytes changed, cut out, put in,
    repeated, lines repeated."""
    data = draw(st.sampled_from(texts)).encode()
    for _ in range(draw(st.integers(1, 4))):
        how = draw(st.sampled_from(["number", "number", "flip", "cut", "insert", "repeat", "line"]))
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        end = at + draw(st.integers(1, 12))
        if how == "number":
            places = list(re.finditer(rb"-?[\d.]+", data))
            if not places:
                continue
            place = places[draw(st.integers(0, len(places) - 1))]
            data = (
                data[: place.start()]
                + draw(st.sampled_from(EXTREMES)).encode()
                + data[place.end() :]
            )
        elif how == "flip":
            data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        elif how == "cut":
            data = data[:at] + data[end:]
        elif how == "insert":
            data = (
                data[:at]
                + draw(st.one_of(st.sampled_from(TOKENS).map(str.encode), st.binary(max_size=4)))
                + data[at:]
            )
        elif how == "repeat":
            data = data[:end] + data[at:]
        else:
            lines = data.splitlines(keepends=True)
            k = draw(st.integers(0, max(len(lines) - 1, 0)))
            data = b"".join([*lines[: k + 1], *lines[k:]])
    return data
