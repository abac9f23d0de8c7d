"""Every public name has types, and the extension's stub matches the extension."""

import ast
import inspect
import pathlib
import typing

import pytest
import tokend
from tokend import _tokend, throughput

PACKAGE = pathlib.Path(tokend.__file__).parent
STUB = ast.parse((PACKAGE / "_tokend.pyi").read_text())
PUBLIC = [tokend.Loader, tokend.Cursor, tokend.Request, throughput.Throughput]


def functions(of):
    """The public methods and properties of a class."""
    for name, value in vars(of).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function) and (not name.startswith("_") or name.startswith("__")):
            yield name, function


@pytest.mark.parametrize("of", PUBLIC, ids=lambda of: of.__name__)
def test_public_names_are_typed(of):
    for name, function in functions(of):
        signature = inspect.signature(function)
        untyped = [
            p.name
            for p in signature.parameters.values()
            if p.name != "self" and p.annotation is p.empty
        ]
        if inspect.ismethod(vars(of)[name]) or isinstance(vars(of)[name], classmethod):
            untyped.remove("cls")
        assert not untyped, f"{of.__name__}.{name}"
        assert signature.return_annotation is not signature.empty, f"{of.__name__}.{name}"


@pytest.mark.parametrize("of", PUBLIC[:3], ids=lambda of: of.__name__)
def test_types_are_known_at_run_time(of):
    """To tools that look at them, also of classes that inherit one."""
    typing.get_type_hints(type("Users", (of,), {}))
    for _, function in functions(of):
        typing.get_type_hints(function)


def test_the_package_has_py_typed():
    assert (PACKAGE / "py.typed").exists()


def test_the_stub_matches_the_extension():
    stated = {
        node.name: node for node in STUB.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    names = set(stated) | {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}
    assert names == {name for name in vars(_tokend) if not name.startswith("__")}
    members = stated["Client"].body
    client = {node.name for node in members if isinstance(node, ast.FunctionDef)} - {"__init__"}
    client |= {node.target.id for node in members if isinstance(node, ast.AnnAssign)}
    assert client == {name for name in vars(_tokend.Client) if not name.startswith("__")}
    for name, node in stated.items():
        real = getattr(_tokend, name)
        if isinstance(real, type) and issubclass(real, Exception):
            assert [base.id for base in node.bases] == [base.__name__ for base in real.__bases__], (
                name
            )
