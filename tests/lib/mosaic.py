"""Mosaic's package streaming without its __init__, which wants torchvision and all clouds. Imports
nothing else of this folder, so bench/loaders.py uses it in an environment of its own.
"""

import importlib.util
import sys
import types


def import_without_init():
    """Makes streaming.base and the modules below it importable."""
    if "streaming" in sys.modules:
        return
    root = importlib.util.find_spec("streaming").submodule_search_locations[0]
    for name, path in (("streaming", root), ("streaming.base", root + "/base")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [path]
