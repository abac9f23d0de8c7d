"""The package: what it imports, its versions of Python, its types as users' checkers see them.

torch's own types are incomplete: OF_TORCH lists their errors, and any other error is a failure.
"""

import json
import os
import re
import sys

from lib import PACKAGE, REPO, child_environment, run
from loading import python


def test_an_import_needs_no_other_package():
    """Every public name is there, and neither torch nor NumPy is imported for it."""
    done = python(
        "import sys, tokend\n"
        "assert all(hasattr(tokend, name) for name in tokend.__all__)\n"
        "assert not hasattr(tokend, 'no_such_name')\n"
        "from tokend import *; Loader, Cursor, TransformError\n"
        "import tokend.parallel, tokend.transform, tokend.device, tokend.throughput\n"
        "print({'torch', 'numpy', 'yaml', 'transformers'} & set(sys.modules))\n"
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_version():
    code, out, err = run(sys.executable, "-m", "tokend", "--version", env=child_environment())
    version = re.search(r'TOKEND_VERSION "(.*)"', (REPO / "proto/version.h").read_text())[1]
    assert (code, out.decode()) == (0, f"tokend {version}\n"), err


# ---- types: pyright's strict mode accepts what users write ----

EXAMPLES = ["trainers/losses.py", "trainers/train_ddp.py"]
OF_TORCH = [
    r'"(load|save)" is not exported from module "torch\.distributed\.checkpoint"',
    (
        r'Type of "(load|save|backward|step|manual_seed|compile|barrier|all_reduce|tolist)" is '
        r"partially unknown"
    ),
    (
        r'Argument type is partially unknown\s+Argument .*"values" in function '
        r'"print"\s+Argument type is "list\[Unknown\]"'
    ),
]
KINDS = """
from typing import assert_type

import torch
from tokend import Batch, Loader
from torch.distributed.checkpoint.stateful import Stateful


def of_each_kind(name: str, flag: bool) -> None:
    with Loader("train", 8) as loader:
        stateful: Stateful = loader
        stateful.load_state_dict(state_dict=loader.state_dict())
        assert_type(next(loader), Batch)
    assert_type(next(iter(Loader("train", 8, framework="numpy", rank=0, world=1))), Batch)
    for batch in Loader("train", 8, documents=True, provenance=True):
        assert_type(batch["max_seqlen"], int)
    asked = Loader("train", 8, documents=flag, framework=name, dtype={"labels": torch.int32})
    asked.reset(loader.state_dict())
    step(asked)


def step(loader: Loader) -> None:
    one(next(loader))


def one(batch: Batch) -> torch.Tensor:
    return batch["input_ids"]
"""
WRONG = """
import torch
from tokend import Loader

next(Loader("train", 8))["cu_seq_lens"]
Loader("train", 8, wrong=1)
held: Loader[int] = Loader("train", 8)
"""


def test_users_code_has_no_type_errors(tmp_path):
    """pyright, as basedpyright: the same checker, in a wheel with its dependencies."""
    for name in EXAMPLES:
        text = (REPO / "client/example" / name).read_text()
        (tmp_path / f"example_{name.replace('/', '_')}").write_text(text)
    (tmp_path / "kinds_of_batches.py").write_text(KINDS)
    (tmp_path / "wrong.py").write_text(WRONG)
    config = {"typeCheckingMode": "strict", "extraPaths": [str(PACKAGE)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    options = ["--outputjson", "--pythonpath", sys.executable, "-p", tmp_path]
    code, out, err = run(sys.executable, "-m", "basedpyright", *options, cwd=tmp_path)
    assert code in (0, 1) and not err, (out, err)
    found = [
        (os.path.basename(d["file"]), d["range"]["start"]["line"] + 1, d["message"])
        for d in json.loads(out)["generalDiagnostics"]
        if d["severity"] == "error" and not any(re.match(known, d["message"]) for known in OF_TORCH)
    ]
    assert not [fault for fault in found if fault[0] != "wrong.py"]
    assert {line for file, line, _ in found if file == "wrong.py"} >= {5, 6, 7}, "they are found"
