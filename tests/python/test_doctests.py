"""The examples in the package's docstrings run."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import tokend

NEED_A_TRAINER = ("tokend.integrations.", "tokend.__main__")


def examples():
    """The docstrings with examples, each once."""
    names = [found.name for found in pkgutil.walk_packages(tokend.__path__, "tokend.")]
    names = [name for name in names if not name.startswith(NEED_A_TRAINER)]
    found = {}
    for module in [tokend, *map(importlib.import_module, sorted(names))]:
        for test in doctest.DocTestFinder().find(module, module.__name__):
            if test.examples:
                found[test.filename, test.lineno] = test
    return list(found.values())


@pytest.mark.parametrize("test", [pytest.param(test, id=test.name) for test in examples()])
def test_examples_run(daemon, monkeypatch, test):
    monkeypatch.chdir(daemon.directory)
    monkeypatch.setenv("TOKEND_SOCKET", daemon.socket)
    test.globs |= {"tokend": tokend, "torch": torch, "Loader": tokend.Loader}
    test.globs |= {"Cursor": tokend.Cursor}
    said = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
