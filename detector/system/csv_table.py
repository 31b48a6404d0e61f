"""Tables in CSV files, a dictionary per row."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.system.atomic_file import not_fatal, write_atomically


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows by column name; none if the file is missing.

    Raises:
        csv.Error, UnicodeDecodeError: The file is not a CSV file.
    """
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows. A full or read-only disk only causes a warning.

    Args:
        path: The file, which is replaced.
        rows: Their keys are the columns, in the order in which they first appear.
    """
    columns: dict[str, Any] = {}  # its keys keep the order
    for row in rows:
        columns |= row
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="")
    writer.writeheader()
    writer.writerows(rows)
    with not_fatal(path):
        write_atomically(path, text.getvalue())
