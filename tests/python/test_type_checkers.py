"""mypy --strict and pyright's strict mode accept what users write: README, pages, examples, and
every kind of batch.

pyright runs as basedpyright in strict mode: the same checker, in a wheel with its dependencies.
torch's own types are incomplete: OF_TORCH lists their errors, and any other error is a failure.

EXEMPT lists the examples that are not checked. Most need a trainer or a model that is not installed
in build/venv, for example ibm-fms. The functions of Megatron-Core, nanoGPT and the mixture of
experts have no types. The programs of client/example/gpt are not checked either: `make run` runs
them, and users do not copy them.
"""

import inspect
import json
import os
import re
import subprocess
import sys

import pytest
import tokend
from lib import PACKAGE, REPO
from tokend import kinds

PAGES = {"readme": REPO / "README.md", "page": REPO / "client/python/README.md"}
EXAMPLES = ["fim.py", "trainer.py", "trainers/losses.py", "trainers/train_ddp.py"]
EXEMPT = {
    f"trainers/{name}.py"
    for name in (
        "mcore",
        "olmo",
        "titan",
        "train_accelerate",
        "train_composer",
        "train_documents",
        "train_fsdp",
        "train_jax",
        "train_lightning",
        "train_moe",
        "train_nanogpt",
        "train_torchft",
        "train_transformers",
        "train_trl",
    )
}
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
from tokend import Batch, Loader, RequestedBatch, TokensBatch, ViewBatch
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
    assert_type(Loader("train", 8, documents=True), Loader[RequestedBatch[torch.Tensor]])
    assert_type(next(Loader("train", 8, documents=True, provenance=True))["max_seqlen"], int)
    assert_type(next(Loader("train", 8, loss_mask=True))["loss_mask"], torch.Tensor)
    assert_type(next(Loader("train", 8, framework="numpy", provenance=True))["epoch"], Array)
    masked = Loader("train", 8, attention_mask=True, dtype={"labels": torch.int32})
    masked.reset(loader.state_dict())
    assert_type(next(masked)["attention_mask"], torch.Tensor)
    assert_type(next(Loader("train", 8, shift_labels=True))["shift_labels"], torch.Tensor)
    assert_type((masked.stream, masked.batch_size), tuple[str, int])
    assert_type(Loader("train", 8, tokens=True, loss_mask=True), Loader[TokensBatch[torch.Tensor]])
    assert_type(next(Loader("train", 8, framework="numpy", view=True, hold=2)), ViewBatch[Array])
    assert_type(Loader("train", 8, documents=flag, framework=name), Loader[RequestedBatch[Any]])
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
next(Loader("train", 8, tokens=True))["labels"]
Loader("train", 8, wrong=1)
held: Loader[int] = Loader("train", 8)
"""


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


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
        for i, block in enumerate(blocks(page)):
            (place / f"{name}_{i}.py").write_text(whole(block))
    for name in EXAMPLES:
        (place / f"example_{name.replace('/', '_')}").write_text(
            (REPO / "client/example" / name).read_text()
        )
    (place / "kinds_of_batches.py").write_text(KINDS)
    (place / "wrong.py").write_text(WRONG)
    assert len(list(place.glob("readme_*"))) >= 2 and len(list(place.glob("page_*"))) >= 2
    return place


def mypy(place):
    """A list of (file, line, message)"""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--no-error-summary",
        "--hide-error-codes",
    ]
    done = subprocess.run(
        [*command, "--cache-dir", place / "cache", *sorted(place.glob("*.py"))],
        cwd=place, env={**os.environ, "MYPYPATH": str(PACKAGE)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1) and not done.stderr, done.stderr + done.stdout
    found = [
        re.fullmatch(r"(?:.*/)?([^/]*\.py):(\d+): (error|note): (.*)", line)
        for line in done.stdout.splitlines()
    ]
    return [(line[1], int(line[2]), line[4]) for line in found if line and line[3] == "error"]


def pyright(place):
    (place / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(PACKAGE)]})
    )
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "-p",
        place,
    ]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr + done.stdout
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (os.path.basename(d["file"]), d["range"]["start"]["line"] + 1, d["message"])
        for d in found
        if d["severity"] == "error"
    ]


@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_users_code_has_no_type_errors(code, checker):
    found = checker(code)
    ours = [fault for fault in found if not any(re.match(known, fault[2]) for known in OF_TORCH)]
    unexpected = [f"{file}:{line}: {what}" for file, line, what in ours if file != "wrong.py"]
    assert not unexpected, "\n".join(unexpected)
    assert {line for file, line, _ in ours if file == "wrong.py"} >= {
        5,
        6,
        7,
        8,
    }  # the wrong lines are found


def test_every_example_is_checked_or_exempt():
    place = REPO / "client/example"
    there = {
        str(path.relative_to(place)) for path in place.rglob("*.py") if path.parent.name != "gpt"
    }
    assert there == {*EXAMPLES} | EXEMPT


def test_options_are_the_loaders_arguments():
    arguments = set(inspect.signature(tokend.Loader.__init__).parameters) - {
        "self",
        "stream",
        "micro_batch",
    }
    kind = {"framework", "tokens", "view"}
    assert kinds.RequestOptions.__optional_keys__ | kind == arguments
    requests = {"documents", "loss_mask", "attention_mask", "shift_labels", "provenance"}
    assert kinds.Options.__optional_keys__ | kind | requests == arguments
    for asks in (
        kinds.AsksDocuments,
        kinds.AsksLossMask,
        kinds.AsksAttentionMask,
        kinds.AsksShiftLabels,
        kinds.AsksProvenance,
    ):
        assert asks.__optional_keys__ | asks.__required_keys__ | kind == arguments


def test_every_batch_has_the_required_keys():
    assert tokend.Batch.__required_keys__ == {"input_ids", "labels", "position", "dataset"}
    assert tokend.TokensBatch.__required_keys__ >= {"tokens", "padding", "position", "dataset"}
