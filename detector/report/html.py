"""HTML pages that are one file: no network, no second file. Jinja2 fills the template and escapes
every value."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from boltbox.detector.system.atomic_file import write_atomically


class Crop(NamedTuple):
    """A part of an image.

    Attributes:
        picture: A JPEG, or why there is none.
        caption: What it shows.
        file: The image's.
    """

    picture: bytes | str
    caption: str
    file: str


@dataclass
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        text: Paragraphs.
        table: Rows of cells; the first one is the header.
        pictures: PNG or JPEG files.
        crops: Parts of images with a caption each.
    """

    title: str
    text: Sequence[str] = ()
    table: Sequence[Sequence[Any]] = ()
    pictures: Sequence[Path] = ()
    crops: Sequence[Crop] = ()


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write sections, one below the other, as an HTML file.

    Args:
        path: The file.
        title: Of the page.
        sections: What it shows.
    """
    template = Path(__file__).with_name("page.html")
    page = fill(template, title=title, sections=sections, data_uri=_data_uri)
    write_atomically(path, page)


def fill(template: Path, **values: Any) -> str:
    """A template of Jinja2 with these values, escaped for HTML and XML.

    Args:
        template: The file.
        values: By name.
    """
    from jinja2 import StrictUndefined, Template

    return Template(
        template.read_text(),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        undefined=StrictUndefined,
    ).render(values)


def _data_uri(image: Path | bytes) -> str:
    """An image as an address that needs no second file."""
    content = image if isinstance(image, bytes) else image.read_bytes()
    kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
