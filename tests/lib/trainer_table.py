"""The table of trainers at the end of the trainers' tests: how often each was killed, after which
steps and on how many processes it resumed, and what `tokctl verify` reports.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
EXAMPLES = TESTS.parent / "client/example/trainers"
TRAINERS = {  # by example: the trainer, and its distribution or the commit that it is rebuilt from
    "train_ddp.py": ("DDP, FSDP2", "torch"),
    "train_documents.py": ("documents", "torch"),
    "train_nanogpt.py": ("nanoGPT", "3adf61e1"),
    "train_accelerate.py": ("accelerate", "accelerate"),
    "train_moe.py": ("MoE, EP", "torch"),
    "train_transformers.py": ("transformers", "transformers"),
    "train_lightning.py": ("Lightning", "lightning"),
    "train_composer.py": ("composer", "composer"),
    "train_litgpt.yaml": ("litgpt", "litgpt"),
    "train_torchft.py": ("torchft", "torchft-nightly"),
    "train_trl.py": ("TRL", "trl"),
    "titan.py": ("torchtitan", "torchtitan"),
    "olmo.py": ("OLMo-core", "ai2-olmo-core"),
    "train_jax.py": ("JAX", "jax"),
    "mcore.py": ("megatron.core", "megatron-core"),
    "train_llmc.c": ("llm.c", "f1e2ace6"),
}
ROW = "{:<16}{:<14}{:>5}  {:>6}  {:<12}{:<34}{:>7}  {}"
HEAD = ROW.format(
    "trainer", "version", "lines", "killed", "resumed", "processes", "samples", "rep/lost/alt"
)


class Run(NamedTuple):
    """A proven run: a trainer started several times, its rows and records checked."""

    example: str
    version: str
    killed: int  # processes
    resumed: list  # the steps after which the later starts went on
    worlds: list  # the processes of each start, in words
    samples: int
    repeated: int
    lost: int
    altered: int
    skipped: int  # by the operator


def read(text):
    """The runs in a file that `proven()` wrote."""
    return [Run(**json.loads(line)) for line in text.splitlines()]


def find(example):
    """Its path: that of an example for users, otherwise of one for the tests alone."""
    path = EXAMPLES / example
    return path if path.exists() else TESTS / "trainers" / example


def changed(example):
    """How many lines of @example differ from the trainer's usual loop: those that contain "tokend",
    in code or in a comment at their end.
    """
    text = find(example).read_text()
    text = re.sub(r'\A"""(.|\n)*?"""|^\s*/\*(.|\n)*?\*/\n', "", text, flags=re.MULTILINE)
    comment = "//" if example.endswith(".c") else "#"
    lines = [line.strip() for line in text.splitlines() if not line.strip().startswith(comment)]
    return sum("tokend" in line.lower() for line in lines)


def table(runs, whole):
    """The lines of the table, and the trainers that no run proved. @whole: all tests were run."""
    lines, missing = [HEAD], []
    for example, (trainer, _) in TRAINERS.items():
        mine = [run for run in runs if run.example == example]
        if not mine:
            missing += [trainer] if whole else []
            continue
        shown = max(mine, key=lambda run: (len(run.resumed), run.killed))
        names = ("killed", "samples", "repeated", "lost", "altered")
        killed, samples, *verdict = (sum(getattr(run, name) for run in mine) for name in names)
        resumed, worlds = ", ".join(map(str, shown.resumed)), " → ".join(map(str, shown.worlds))
        cells = (trainer, shown.version, changed(example), killed, resumed, worlds, samples)
        lines.append(ROW.format(*cells, "/".join(map(str, verdict))).rstrip())
    return (lines if len(lines) > 1 else []), missing
