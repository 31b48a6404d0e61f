"""YOLOv5's training recipe on PyTorch Lightning. `detector`, `callbacks` and `configs` lie beside
this folder in a checkout and are linked into it, so that a project may have modules of these
names."""

from pathlib import Path

if not Path(__file__).with_name("detector").is_dir():  # a checkout without symbolic links
    __path__.append(str(Path(__file__).parents[1]))
