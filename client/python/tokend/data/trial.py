"""python -m tokend try: serves a config, and shows a batch and how fast batches come.

    python -m tokend try
    python -m tokend try -c tokend.yaml valid --tokenizer tokenizer.json

The rows are printed as text if their tokenizer is known: python -m tokend.tokenize notes it next to
the shards. The daemon is a private one, as of Loader(config=…), and ends a minute later.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time

from .._tokend import Error, program, version
from . import tokenize
from .found import progress
from .parser import Parser
from .show import CONFIGS, Tokenizers, config_of, printable

SHOWN = 400  # characters of a row
MEASURED_S = 1.0
DEADLINE_S = 30.0


def _plan(config, stream, rows):
    """The first rows, as tokctl reads them from the shards."""
    command = [program("tokctl"), "plan", "-c", config, stream, "--from", "0", "--count", str(rows)]
    command += ["--tokens", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Error(done.stderr.strip().removeprefix("tokctl: "))
    return [json.loads(line) for line in done.stdout.splitlines()]


def _print_row(row, tokens, tokenizer):
    print(
        f"row {row['position']}: dataset {row['dataset']}, {os.path.relpath(row['path'])} "
        f"from token {row['offset']}"
    )
    text = tokenizer.text(tokens) if tokenizer else " ".join(map(str, tokens))
    text = printable(text.strip("\n"))
    text = text if len(text) <= SHOWN else text[:SHOWN] + "…"
    print("    " + text.replace("\n", "\n    ") + "\n")


def _print_batch(batch, plan, tokenizers):
    for row, tokens in zip(plan, batch["input_ids"].tolist(), strict=False):
        if tokens != row["tokens"][: len(tokens)]:
            raise Error(
                f"row {row['position']}: differs from {row['path']}; a daemon with another config "
                "or data serves it: stop it with tokctl stop, and try again"
            )
        _print_row(row, tokens, tokenizers.of(row["path"]))


def _measure(loader):
    """Takes batches for MEASURED_S. Prints the rate, and the mix as served."""
    names = loader.datasets
    served, tokens = dict.fromkeys(names, 0), 0
    begin = last = time.monotonic()
    for batch in loader:
        for index in batch["dataset"].tolist():
            if index >= 0:
                served[names[index]] += 1
                tokens += loader.seq_len
        last = time.monotonic()
        if last - begin > MEASURED_S:
            break
        progress(f"measuring: {tokens:,} tokens")
    rows, seconds = sum(served.values()), max(last - begin, 1e-9)
    progress()
    if rows:
        shares = ", ".join(f"{name} {100 * n / rows:.1f} %" for name, n in served.items())
        print(f"mix: {shares} of {rows:,} rows")
        print(f"rate: {tokens / seconds / 1e6:,.1f} M tokens a second, as int64 in this process")


def attempt(given):
    begin = time.monotonic()
    config = config_of(given.config)
    tokenizers = Tokenizers(given.tokenizer)
    plan = _plan(config, given.stream, given.rows)
    progress(f"{config}: a daemon starts")
    from ..loader import Loader

    framework = "numpy" if importlib.util.find_spec("numpy") else None
    with Loader(
        given.stream,
        given.rows,
        config=config,
        run=f"try-{os.getpid()}",
        rank=0,
        world=1,
        framework=framework,
        deadline=DEADLINE_S,
    ) as loader:
        progress(f"{config}: waiting for the first batch")
        batch = next(loader)
        first = time.monotonic() - begin
        progress()
        _print_batch(batch, plan, tokenizers)
        print(
            f"stream {given.stream}: {given.rows} rows of {loader.seq_len} tokens, "
            f"the first batch after {first:.2f} s"
        )
        _measure(loader)
    return 0


def _arguments(argv):
    parser = Parser(
        prog="python -m tokend try",
        description="Serves a config, and shows the first batch of a stream, where its rows are "
        "from, the mix and the rate.",
    )
    parser.add_argument("-c", "--config", metavar="FILE", help=f"default: {CONFIGS[0]}")
    parser.add_argument(
        "stream", nargs="?", default="train", metavar="STREAM", help="default train"
    )
    parser.add_argument(
        "--rows", type=tokenize.positive, default=4, metavar="N", help="rows per batch; default 4"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json, .tiktoken or SentencePiece model; default: the one that "
        "python -m tokend.tokenize noted, otherwise print numbers",
    )
    parser.add_argument("--version", action="version", version=f"tokend {version}")
    return parser.parse_args(argv)


def main(argv=None):
    given = _arguments(argv)
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = attempt(given)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except StopIteration:
        text, status = f"stream {given.stream}: has no batches", 1
    except KeyboardInterrupt:
        text, status = "interrupted", 130
    except OSError as error:
        text, status = f"{error.filename or '.'}: {error.strerror or error}", 1
    except (Error, ImportError) as error:
        text, status = str(error), 1
    progress()
    print(f"tokend try: {text}", file=sys.stderr)
    return status
