"""The label formats by name. A new one is a file here and a row in FORMATS.

Which format a data.yaml means that names none is found out by asking them, the last row first.
"""

from boltbox.detector.data.formats.coco_json import CocoJson
from boltbox.detector.data.formats.format import Format
from boltbox.detector.data.formats.voc_xml import VocXml
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.model.parts import find_part
from boltbox.detector.system.errors import InputError

FORMATS: dict[str, type[Format]] = {"yolo": YoloText, "voc": VocXml, "coco": CocoJson}


def format_class(name: str) -> type[Format]:
    """The format of a name in FORMATS, or a class of the user's own by its import path,
    `my_formats.CsvRows`.

    A path is code, which is imported: it must come from a command line, a configuration or a
    script, never from a data file.

    Raises:
        InputError: there is no such format.
    """
    if name in FORMATS:
        return FORMATS[name]
    if "." not in name:
        raise InputError(
            f"data.format {name}: choose from {', '.join(FORMATS)}, or give the import path of a"
            " class of your own"
        )
    return find_part({"class_path": name}, Format, "data.format")  # type: ignore[type-abstract]
