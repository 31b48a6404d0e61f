"""Tables in CSV files, a dictionary per row."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.system.atomic_file import not_fatal, write_atomically


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows by the names of the columns; none if there is no such file.

    Raises:
        csv.Error, UnicodeDecodeError: the file holds something else.
    """
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows; the columns are those of any row, in the order in which they appear. A full
    or read-only disk costs a warning only."""
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(columns), restval="")
    writer.writeheader()
    writer.writerows(rows)
    with not_fatal(path):
        write_atomically(path, text.getvalue())
