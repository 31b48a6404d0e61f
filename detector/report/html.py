"""HTML pages that are one file: no network, no script, no second file. Jinja2 fills the templates
and escapes every value."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boltbox.detector.system.atomic_file import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from boltbox.detector.report.crops import Crop

DETECTOR = Path(__file__).parents[1]


@dataclass
class Section:
    """A part of a page. text: paragraphs · table: rows of cells, of which the first is the header ·
    pictures: files, or contents of JPEGs · crops: cut-outs with a caption each."""

    title: str
    text: Sequence[str] = ()
    table: Sequence[Sequence[Any]] = ()
    pictures: Sequence[Path | bytes] = ()
    crops: Sequence[Crop] = ()


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write sections, one below the other, as an HTML file."""
    page = document("report/templates/report.html", title=title, sections=sections)
    write_atomically(path, lambda file: file.write(page))


def render(template: str, **values: Any) -> Markup:
    """The text of a template, named from `detector/` on as in "report/templates/report.html".
    Values are text: `<`, `&` and quotes in them are escaped. A value that a template names and
    nobody gave raises jinja2.UndefinedError."""
    from markupsafe import Markup

    return Markup(_environment().get_template(template).render(values))


def document(template: str, **values: Any) -> bytes:
    """The whole file. A file name that is no valid UTF-8 comes as surrogates, which cannot be
    written: they become escapes."""
    return render(template, **values).encode("utf-8", "backslashreplace")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(DETECTOR),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = _data_uri
    return environment


def _data_uri(image: Path | bytes) -> str:
    """An image file, or a JPEG's content, as an address that needs no second file."""
    content, kind = (
        (image, "jpeg") if isinstance(image, bytes) else (image.read_bytes(), image.suffix[1:])
    )
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
