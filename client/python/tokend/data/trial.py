"""python -m tokend try: serves a config, and shows a batch and how fast batches come.

    python -m tokend try
    python -m tokend try -c tokend.yaml valid --tokenizer tokenizer.json

The rows are printed as text if their tokenizer is known: python -m tokend tokenize notes it next to
the shards. The daemon is a private one, as of Loader(config=…), and ends a minute later.
"""

import collections
import importlib.util
import os
import time

from ..errors import Error
from . import tokenizer
from .parser import Parser, positive, tokctl
from .show import TOKENIZER_HELP, text_of

CONFIG = "tokend.yaml"
SHOWN = 400  # characters of a row
MEASURED_S = 1.0
DEADLINE_S = 30.0


def _print_batch(batch, plan, given):
    for row, tokens in zip(plan, batch["input_ids"].tolist(), strict=False):
        if tokens != row["tokens"][: len(tokens)]:
            raise Error(
                f"row {row['position']}: differs from {row['path']}; a daemon with another config "
                "or data serves it: stop it with tokctl stop, and try again"
            )
        print(
            f"row {row['position']}: dataset {row['dataset']}, {os.path.relpath(row['path'])} "
            f"from token {row['offset']}"
        )
        text = text_of(given, row["path"], tokens).strip("\n")
        text = text if len(text) <= SHOWN else text[:SHOWN] + "…"
        print("    " + text.replace("\n", "\n    ") + "\n")


def _measure(loader):
    """Takes batches for MEASURED_S. Prints the rate, and the mix as served."""
    served, begin, seconds = collections.Counter(), time.monotonic(), 0.0
    while seconds < MEASURED_S and (batch := next(loader, None)):
        served.update(batch["dataset"].tolist())
        seconds = time.monotonic() - begin
    served.pop(-1, None)  # padding
    if rows := served.total():
        named = enumerate(loader.datasets)
        shares = ", ".join(f"{name} {100 * served[i] / rows:.1f} %" for i, name in named)
        rate = rows * loader.seq_len / seconds / 1e6
        print(f"mix: {shares} of {rows:,} rows")
        print(f"rate: {rate:,.1f} M tokens a second, as int64 in this process")


def main(argv):
    parser = Parser(
        prog="python -m tokend try",
        description="Serves a config, and shows the first batch of a stream, where its rows are "
        "from, the mix and the rate.",
    )
    add = parser.add_argument
    add("-c", "--config", metavar="FILE", default=CONFIG, help=f"default: {CONFIG}")
    add("stream", nargs="?", default="train", metavar="STREAM", help="default train")
    add("--rows", type=positive, default=4, metavar="N", help="rows per batch; default 4")
    add("--tokenizer", metavar="FILE", help=TOKENIZER_HELP)
    given = parser.parse_args(argv)
    from ..loader import Loader  # imports torch, if it is there

    begin, config = time.monotonic(), given.config
    if not os.path.exists(config):
        raise Error(f"{config}: not found; pass -c FILE, or make one: python -m tokend init PATH")
    tokens = given.tokenizer and tokenizer.load(given.tokenizer)
    rows = ("--from", "0", "--count", str(given.rows))
    plan = tokctl("plan", "-c", config, given.stream, *rows, "--tokens", "--json")
    run = {"config": config, "run": f"try-{os.getpid()}", "deadline": DEADLINE_S}
    framework = "numpy" if importlib.util.find_spec("numpy") else None
    with Loader(given.stream, given.rows, rank=0, world=1, framework=framework, **run) as loader:
        batch = next(loader, None)
        if batch is None:
            raise Error(f"stream {given.stream}: has no batches")
        first = time.monotonic() - begin
        _print_batch(batch, plan, tokens)
        print(
            f"stream {given.stream}: {given.rows} rows of {loader.seq_len} tokens, "
            f"the first batch after {first:.2f} s"
        )
        _measure(loader)
    return 0
