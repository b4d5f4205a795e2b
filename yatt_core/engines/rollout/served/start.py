"""The first code of an engine's process: `python start.py MODULE CONNECTION PARENT`, run by the engine's own Python.

The engine's environment has no YATT. This script makes the package from which it comes importable, and nothing that lies
beside it: in an installation, those are the workflow's libraries. Processes that the engine spawns run it again, as
multiprocessing does with the main script, and so find the package too. Needs only the standard library.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3]


def make_importable() -> None:
    """Imports the package from its folder, unless that was done."""
    if PACKAGE.name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        PACKAGE.name, PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE.name] = module
    spec.loader.exec_module(module)


make_importable()
if __name__ == "__main__":
    importlib.import_module(sys.argv[1]).main(int(sys.argv[2]), int(sys.argv[3]))
