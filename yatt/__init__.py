"""YATT: long RLHF training jobs that survive failures."""

from pathlib import Path

_FOLDER = Path(__file__).parent
if not (_FOLDER / "flows").is_dir():  # a checkout, where the parts lie beside this folder
    from yatt.checkout import install

    install(_FOLDER.parent)
