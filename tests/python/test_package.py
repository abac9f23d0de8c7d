"""The package: what it imports, its versions of Python, its types as users' checkers see them.

pyright runs as basedpyright in strict mode: the same checker, in a wheel with its dependencies.
torch's own types are incomplete: OF_TORCH lists their errors, and any other error is a failure.
"""

import json
import os
import re
import subprocess
import sys

import pytest
from lib import PACKAGE, REPO
from lib.pythons import find_python

OLD = [version for version in ("3.6", "3.7", "3.8", "3.9") if find_python(version)]
LATER = [version for version in ("3.10", "3.12", "3.13") if find_python(version)]


def python(*arguments, interpreter=sys.executable):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE)}
    return subprocess.run(
        [interpreter, *arguments],
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_import_needs_no_other_package():
    """Every public name is there, and neither torch nor NumPy is imported for it."""
    done = python(
        "-c",
        "import sys, tokend\n"
        "assert set(tokend.__all__) <= set(dir(tokend))\n"
        "assert all(hasattr(tokend, name) for name in tokend.__all__)\n"
        "assert not hasattr(tokend, 'no_such_name')\n"
        "from tokend import *; Loader, Cursor, TransformError\n"
        "import tokend.mesh, tokend.transform, tokend.device, tokend.throughput\n"
        "print({'torch', 'numpy', 'yaml', 'transformers'} & set(sys.modules))\n",
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


@pytest.mark.parametrize("module", ["tokend", "tokend.tokenize", "tokend.show"])
def test_version(module):
    done = python("-m", module, "--version")
    version = re.search(r'TOKEND_VERSION "(.*)"', (REPO / "proto/version.h").read_text())[1]
    assert (done.returncode, done.stdout) == (0, f"tokend {version}\n"), done.stderr


@pytest.mark.skipif(not OLD, reason="no Python older than 3.10")
def test_an_old_python_is_refused_in_one_line():
    for version in OLD:
        interpreter = find_python(version)
        for module in ("tokend", "tokend.tokenize"):
            done = python("-m", module, interpreter=interpreter)
            assert done.returncode == 1
            said = r"tokend: \S+ is Python 3\.\d+\.\d+; use 3.10 or later\n"
            assert re.fullmatch(said, done.stderr)
        done = python("-c", "import tokend", interpreter=interpreter)
        assert done.stderr.splitlines()[-1].startswith("ImportError: tokend: "), done.stderr


@pytest.mark.skipif(not LATER, reason="no other Python from 3.10 on")
def test_later_pythons_import_every_module():
    """The extension is built once, for the stable ABI. Modules that need a trainer are left out."""
    names = (path.relative_to(PACKAGE) for path in sorted(PACKAGE.glob("tokend/**/*.py")))
    modules = [".".join(name.with_suffix("").parts).removesuffix(".__init__") for name in names]
    code = (
        "import importlib, sys\n"
        f"for name in {modules}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert 'integrations' in name or error.name in sys.argv[1:], (name, error)\n"
    )
    foreign = ["torch", "numpy", "lightning", "transformers"]
    for version in LATER:
        done = python("-c", code, *foreign, interpreter=find_python(version))
        assert done.returncode == 0, (version, done.stderr)


# ---- types: mypy --strict and pyright's strict mode accept what users write ----

PAGES = {"readme": REPO / "README.md", "page": REPO / "client/python/README.md"}
EXAMPLES = ["fim.py", "trainer.py", "trainers/losses.py", "trainers/train_ddp.py"]
OF_TORCH = [
    r'Module "torch\.distributed\.checkpoint" does not explicitly export attribute "(load|save)"',
    r'"(load|save)" is not exported from module "torch\.distributed\.checkpoint"',
    r'Call to untyped function "backward" in typed context',
    (
        r'Type of "(load|save|backward|step|manual_seed|compile|barrier|all_reduce|tolist)" is '
        r"partially unknown"
    ),
    (
        r'Argument type is partially unknown\s+Argument .*"values" in function '
        r'"print"\s+Argument type is "list\[Unknown\]"'
    ),
]
BEFORE_A_FRAGMENT = """
import torch
import tokend
from tokend import Loader

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
step, interval = 0, 100
loader = data = Loader("train", 8)


def train(batch: tokend.Batch[torch.Tensor]) -> None: ...
def save(model: torch.nn.Module, state: dict[str, bytes]) -> None: ...
def evaluate(batch: tokend.Batch[torch.Tensor]) -> float:
    return 0.0


"""
KINDS = """
from typing import Any, assert_type

import numpy
import torch
from tokend import Batch, Loader
from torch.distributed.checkpoint.stateful import Stateful

Array = numpy.ndarray[Any, Any]


def of_each_kind(name: str, flag: bool) -> None:
    with Loader("train", 8) as loader:
        assert_type(loader, Loader[Batch[torch.Tensor]])
        for batch in loader:
            assert_type(batch["labels"], torch.Tensor)
        stateful: Stateful = loader
        stateful.load_state_dict(state_dict=loader.state_dict())
    assert_type(Loader("train", 8, framework="numpy", rank=0, world=1), Loader[Batch[Array]])
    assert_type(next(Loader("train", 8, documents=True, provenance=True))["max_seqlen"], int)
    assert_type(next(Loader("train", 8, loss_mask=True))["loss_mask"], torch.Tensor)
    assert_type(next(Loader("train", 8, framework="numpy", provenance=True))["epoch"], Array)
    assert_type(next(Loader("train", 8, shift_labels=True))["shift_labels"], torch.Tensor)
    assert_type((loader.stream, loader.batch_size), tuple[str, int])
    asked = Loader("train", 8, documents=flag, framework=name, dtype={"labels": torch.int32})
    asked.reset(loader.state_dict())
    step(Loader("train", 8, documents=True))
    step(loader)


def step(loader: Loader) -> None:
    one(next(loader))


def one(batch: Batch[torch.Tensor]) -> torch.Tensor:
    return batch["input_ids"]
"""
WRONG = """
import torch
from tokend import Loader

next(Loader("train", 8))["cu_seqlens"]
Loader("train", 8, wrong=1)
held: Loader[int] = Loader("train", 8)
"""


def whole(block):
    """The block, after the names that the page's text defines, unless it defines them itself."""
    if "import " in block and ("train(" not in block or "def train(" in block):
        return block
    given = BEFORE_A_FRAGMENT.splitlines()
    rest = [line for line in block.splitlines() if line == "" or line not in given]
    return "\n".join([*given, *rest, ""])


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """A directory with all code that users write."""
    place = tmp_path_factory.mktemp("code")
    for name, page in PAGES.items():
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        assert len(blocks) >= 2
        for i, block in enumerate(blocks):
            (place / f"{name}_{i}.py").write_text(whole(block))
    for name in EXAMPLES:
        text = (REPO / "client/example" / name).read_text()
        (place / f"example_{name.replace('/', '_')}").write_text(text)
    (place / "kinds_of_batches.py").write_text(KINDS)
    (place / "wrong.py").write_text(WRONG)
    return place


def mypy(place):
    """A list of (file, line, message)"""
    options = ["--strict", "--follow-imports=silent", "--no-error-summary", "--hide-error-codes"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            *options,
            "--cache-dir",
            place / "cache",
            *place.glob("*.py"),
        ],
        cwd=place,
        env={**os.environ, "MYPYPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1) and not done.stderr, done.stderr + done.stdout
    line = re.compile(r"(?:.*/)?([^/]*\.py):(\d+): error: (.*)")
    found = filter(None, map(line.fullmatch, done.stdout.splitlines()))
    return [(one[1], int(one[2]), one[3]) for one in found]


def pyright(place):
    config = {"typeCheckingMode": "strict", "extraPaths": [str(PACKAGE)]}
    (place / "pyrightconfig.json").write_text(json.dumps(config))
    options = ["--outputjson", "--pythonpath", sys.executable, "-p", place]
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", *options],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return [
        (os.path.basename(d["file"]), d["range"]["start"]["line"] + 1, d["message"])
        for d in json.loads(done.stdout)["generalDiagnostics"]
        if d["severity"] == "error"
    ]


@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_users_code_has_no_type_errors(code, checker):
    found = checker(code)
    ours = [fault for fault in found if not any(re.match(known, fault[2]) for known in OF_TORCH)]
    unexpected = [f"{file}:{line}: {what}" for file, line, what in ours if file != "wrong.py"]
    assert not unexpected, "\n".join(unexpected)
    assert {line for file, line, _ in ours if file == "wrong.py"} >= {5, 6, 7}, "they are found"
