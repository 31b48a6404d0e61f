"""The diagnosis as one HTML file that needs nothing else: no network, no script, no second file."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from detector.commands.doctor.charts import class_chart, count_histogram, log_histogram
from detector.commands.doctor.finding import SEVERITIES, Diagnosis, Finding
from detector.commands.doctor.gallery import Gallery, Picture
from detector.commands.doctor.statistics import COCO_BORDERS
from detector.data.datasets import DetectionDataset
from detector.report import html as page
from detector.report.drawing import PALETTE
from detector.system.atomic_file import write_atomically

SHOWN = 20  # findings of a kind that are seen at once
FOLDED = 500  # further ones that can be unfolded; all are in doctor.json
PICTURES = 6  # of a kind
_BLUE, _ORANGE, _GREEN, _VERMILION = (f"rgb{PALETTE[k]}" for k in (4, 0, 2, 5))

STYLE = f"""{page.STYLE}
.badge {{ border-radius: 4px; padding: 1px 7px; font-size: 13px; }}
.fault {{ background: {_VERMILION}; color: #000; }} .warning {{ background: {_ORANGE}; color: #000; }}
.note {{ background: {_BLUE}; color: #fff; }}
svg {{ width: 100%; max-width: 520px; display: block; }} svg text {{ fill: var(--ink); font-size: 11px; }}
svg .small {{ font-size: 9px; }}
svg .grid {{ stroke: var(--line); }} svg .axis {{ stroke: var(--ink); }}
svg .border {{ stroke: var(--ink); stroke-dasharray: 3 3; }}
.s0 {{ fill: {_BLUE}; }} .s1 {{ fill: {_ORANGE}; }} .s2 {{ fill: {_GREEN}; }}
.legend svg {{ display: inline; width: 12px; height: 12px; margin: 0 4px 0 12px; }}
"""
BOX_RATIOS = {2.0**k: f"1:{2**-k}" if k < 0 else f"{2**k}:1" for k in range(-5, 6)}
IMAGE_RATIOS = {1 / 4: "1:4", 1 / 2: "1:2", 3 / 4: "3:4", 1: "1:1", 4 / 3: "4:3", 2: "2:1", 4: "4:1"}


def write_page(path: Path, diagnosis: Diagnosis, datasets: Mapping[str, DetectionDataset]) -> None:
    """Write the page: counts, charts from `diagnosis.statistics`, findings by kind with pictures of the worst images.

    Args:
        path: of the HTML file; its folder is made.
        diagnosis: of the data set.
        datasets: by split, for the boxes in the pictures.
    """
    title = f"Doctor: {diagnosis.source}"
    content = page.document(
        title, _body(title, diagnosis, Gallery(datasets, diagnosis.findings)), STYLE.removeprefix(page.STYLE)
    )
    write_atomically(path, lambda file: file.write(content))


def _body(title: str, diagnosis: Diagnosis, gallery: Gallery) -> str:
    counts = "".join(f"<div><b>{diagnosis.count(s)}</b>{s}{'' if diagnosis.count(s) == 1 else 's'}</div>" for s in SEVERITIES)
    figures, findings = _figures(diagnosis.statistics), _findings(diagnosis.findings, gallery)
    return f'<h1>{escape(title)}</h1>\n<div class="counts">{counts}</div>\n{figures}{findings}'


# ---- Figures


def _figures(statistics: Mapping[str, Any]) -> str:
    """The table of the splits and the charts."""
    if not statistics.get("splits"):
        return ""
    splits = statistics["splits"]
    rows = "".join(_split_row(split, figures) for split, figures in splits.items())
    heads = ("", "images", "without objects", "boxes", "small", "medium", "large", "median size")
    table = "".join(f"<th>{h}</th>" for h in heads)
    legend = "".join(
        f'<svg viewBox="0 0 12 12" aria-hidden="true"><rect class="s{k}" width="12" height="12"/></svg>{escape(split)}'
        for k, split in enumerate(splits)
    )
    small, large = COCO_BORDERS
    return (
        f'<h2>Figures</h2><div class="wide"><table><thead><tr>{table}</tr></thead><tbody>{rows}</tbody></table></div>\n'
        f'<p class="soft">Sizes are square roots of areas at {statistics["image_size"]} px: small is under {small:g} px, large '
        f"from {large:g} px. Bars are shares of a split.{_anchors(statistics.get('anchors'))}</p>\n"
        f'<p class="legend">{legend}</p><div class="grid-of">{_charts(statistics)}</div>\n'
    )


def _split_row(split: str, figures: Mapping[str, Any]) -> str:
    median = figures["median_size"]
    cells = [figures["images"], figures["background"], figures["boxes"]]
    cells += [f"{figures[k]:.0%}" for k in ("small", "medium", "large")]
    cells.append("" if median is None else f"{median:.1f} px")
    return f"<tr><th>{escape(split)}</th>{''.join(f'<td>{c}</td>' for c in cells)}</tr>"


def _anchors(anchors: Mapping[str, Any] | None) -> str:
    if anchors is None:
        return ""
    return (
        f" The anchors reach {anchors['bpr']:.1%} of the boxes (best possible recall), {anchors['aat']:.2f} anchors a box, "
        f"fitness {anchors['fitness']:.3f}."
    )


def _charts(statistics: Mapping[str, Any]) -> str:
    histograms = statistics["histograms"]
    sizes, boxes, images, numbers = (histograms[k] for k in ("size_px", "box_ratio", "image_ratio", "objects_per_image"))
    powers = {2.0**k: str(2**k) for k in range(20)}
    charts = {
        "Object size in pixels": lambda title: log_histogram(title, sizes["edges"], sizes["counts"], powers, COCO_BORDERS),
        "Objects in an image": lambda title: count_histogram(title, numbers["edges"], numbers["counts"]),
        "Width to height of boxes": lambda title: log_histogram(title, boxes["edges"], boxes["counts"], BOX_RATIOS, ()),
        "Width to height of images": lambda title: log_histogram(title, images["edges"], images["counts"], IMAGE_RATIOS, ()),
        "Boxes of each class": lambda title: class_chart(
            title, statistics["names"], {split: figures["class_counts"] for split, figures in statistics["splits"].items()}
        ),
    }
    drawn = {title: draw(title) for title, draw in charts.items()}
    return "".join(f'<section class="panel"><h3>{title}</h3>{svg}</section>' for title, svg in drawn.items() if svg)


# ---- Findings


def _findings(findings: Sequence[Finding], gallery: Gallery) -> str:
    """A section for each kind, the most severe and the most frequent first."""
    if not findings:
        return "<h2>Findings</h2><p>Nothing was found.</p>"
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.severity, finding.kind), []).append(finding)
    order = sorted(kinds, key=lambda kind: (SEVERITIES.index(kind[0]), -len(kinds[kind])))
    base = _common_folder([f.file for f in findings if f.file])
    place = f'<p class="soft">Files are in {escape(base)}</p>' if base else ""
    sections = "".join(_section(severity, kind, kinds[severity, kind], gallery, base) for severity, kind in order)
    return f"<h2>Findings</h2>{place}{sections}"


def _section(severity: str, kind: str, findings: Sequence[Finding], gallery: Gallery, base: str) -> str:
    pictures = "".join(_figure(p, base) for p in gallery.pictures(findings, PICTURES))
    body = f'<div class="pictures">{pictures}</div>' if pictures else ""
    body += _list(findings[:SHOWN], 1, base)
    folded, beyond = findings[SHOWN : SHOWN + FOLDED], max(len(findings) - SHOWN - FOLDED, 0)
    if folded:
        rest = f"<p>{beyond} further ones are in doctor.json.</p>" if beyond else ""
        body += f"<details><summary>{len(folded)} more</summary>{_list(folded, SHOWN + 1, base)}{rest}</details>"
    name = escape(kind.replace("_", " ").capitalize())
    badge = f'<span class="badge {escape(severity)}">{escape(severity)}</span>'
    return f'<section class="panel"><h3>{badge} {name} <small>{len(findings)}</small></h3>{body}</section>\n'


def _list(findings: Sequence[Finding], start: int, base: str) -> str:
    items = []
    for f in findings:
        place = ", ".join(filter(None, (_inside(f.file, base) if f.file else f.split, f.where)))
        items.append(f"<li>{f'<code>{escape(place)}</code>: ' if place else ''}{escape(f.problem)}</li>")
    return f'<ol start="{start}">{"".join(items)}</ol>'


def _figure(picture: Picture, base: str) -> str:
    name = " | ".join(_inside(file, base) for file in picture.files)
    if picture.jpeg is None:
        shown = f'<div class="missing">cannot be shown: {escape(picture.reason)}</div>'
    else:
        shown = page.picture(picture.jpeg, name)
    pair = ' class="pair"' if len(picture.files) > 1 else ""
    return f"<figure{pair}>{shown}<figcaption>{escape(name)}</figcaption></figure>"


def _common_folder(files: Sequence[str]) -> str:
    """The folder that all files are in; empty if there is none."""
    if not files or len({os.path.isabs(f) for f in files}) > 1:
        return ""
    return os.path.commonpath([os.path.dirname(f) for f in files])


def _inside(file: str, folder: str) -> str:
    return os.path.relpath(file, folder) if folder else file
