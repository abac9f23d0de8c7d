"""The examples in the package's docstrings run. The docstrings of public names have a short first
line; those of methods say what they raise.
"""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import tokend
import tokend.mesh

FIRST_LINE = 92  # columns
NEED_A_TRAINER = ("tokend.integrations.", "tokend.lightning", "tokend.megatron", "tokend.olmo")
NEED_A_TRAINER += ("tokend.torchtitan", "tokend.transformers", "tokend.__main__")
EXAMPLES = 12  # docstrings with examples, at least


def modules():
    names = [found.name for found in pkgutil.walk_packages(tokend.__path__, "tokend.")]
    names = [name for name in names if not name.startswith(NEED_A_TRAINER)]
    return [tokend, *map(importlib.import_module, sorted(names))]


def examples():
    """The docstrings with examples, each once."""
    found = {}
    for module in modules():
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


def test_there_are_examples():
    assert len(examples()) >= EXAMPLES


def public():
    """(name, object): the package's public names, and the methods of its classes."""
    for name in tokend.__all__:
        thing = getattr(tokend, name)
        if not inspect.isclass(thing):
            continue
        yield name, thing
        for part, method in inspect.getmembers(thing):
            ours = (getattr(method, "__module__", None) or "").startswith("tokend.")
            if not part.startswith("_") and (ours or isinstance(method, property)):
                yield f"{name}.{part}", method


PUBLIC = dict(public())


@pytest.mark.parametrize("name", PUBLIC)
def test_first_line_is_a_short_sentence(name):
    text = inspect.getdoc(PUBLIC[name])
    assert text, f"{name} has no docstring"
    first = text.splitlines()[0]
    assert len(first) <= FIRST_LINE and first.endswith((".", ":")), first


@pytest.mark.parametrize("name", [n for n, thing in PUBLIC.items() if inspect.isfunction(thing)])
def test_methods_say_what_they_raise(name):
    assert "raises" in inspect.getdoc(PUBLIC[name]).lower()


def test_every_argument_of_a_loader_is_described():
    text = inspect.getdoc(tokend.Loader)
    arguments = list(inspect.signature(tokend.Loader).parameters)
    missing = [name for name in arguments if f"\n  {name} " not in text and f" {name} " not in text]
    assert not missing
