"""python -m tokend.show: prints the samples of a run at a position or step, as text.

    python -m tokend.show -c tokend.yaml train --position 123456 --count 4 \
        --tokenizer tokenizer.json
    python -m tokend.show -c tokend.yaml train --step 1000 --world 8 --micro 4 --rank 3 \
        --run RUN --tokenizer gpt2.tiktoken

`tokctl plan --tokens` computes the samples. The tokenizer is your own file: a tokenizer.json of
Hugging Face, a .tiktoken file (lines of base64 and rank) or a SentencePiece model.
"""

import json
import os
import re
import subprocess
import sys

from .._tokend import Error, program, version
from . import tokenize
from .parser import Parser
from .tokenizer import load_tokenizer

CONFIGS = ("tokend.yaml", "tokend.yml")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # data must not control the terminal


def config_of(given):
    """The config's path."""
    if given is None:
        given = next(filter(os.path.exists, CONFIGS), None)
    if given is None:
        raise Error(
            f"{CONFIGS[0]}: not in this directory; pass -c FILE, or make one: python -m tokend "
            "init DIRECTORY"
        )
    if not os.path.exists(given):
        raise Error(f"{given}: No such file or directory")
    return given


class Tokenizers:
    """Those of the shards. @given: the user's file, for all."""

    def __init__(self, given):
        self._given = load_tokenizer(given) if given else None
        self._loaded = {None: None}

    def of(self, path):
        """The tokenizer that tokend.tokenize noted next to a shard. None: unknown."""
        if self._given:
            return self._given
        name = tokenize.noted_tokenizer(os.path.dirname(path))
        if name not in self._loaded:
            try:
                self._loaded[name] = load_tokenizer(name)
            except Error as error:
                print(f"tokend: {error}; printing numbers", file=sys.stderr)
                self._loaded[name] = None
        return self._loaded[name]


def _arguments(argv):
    parser = Parser(
        prog="python -m tokend.show",
        description="Prints the samples of a run at a position or step, as text.",
    )
    parser.add_argument("--version", action="version", version=f"tokend {version}")
    parser.add_argument(
        "-c", "--config", metavar="FILE", help=f"the daemon's config; default: {CONFIGS[0]}"
    )
    parser.add_argument(
        "stream", nargs="?", default="train", metavar="STREAM", help="default train"
    )
    parser.add_argument("--position", metavar="P", help="position of the first sample; default 0")
    parser.add_argument("--count", metavar="N", help="number of samples; default 1")
    parser.add_argument(
        "--step", metavar="N", help="samples of this step of the job, counted from 0"
    )
    parser.add_argument("--world", metavar="W", help="with --step: data-parallel ranks of the job")
    parser.add_argument("--micro", metavar="B", help="with --step: rows per batch")
    parser.add_argument("--rank", metavar="R", help="with --step: only this rank; default all")
    parser.add_argument(
        "--from",
        metavar="I",
        help="with --step: position of step 0; default the cursor's, otherwise 0",
    )
    parser.add_argument(
        "--cursor",
        metavar="F",
        nargs="+",
        action="extend",
        default=[],
        help="cursor of the run, for the history of its mixes",
    )
    parser.add_argument(
        "--run", metavar="RUN", help="name of the run, for the cursor that tokend keeps of it"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json, .tiktoken or a SentencePiece model; default: the one that "
        "python -m tokend.tokenize noted, otherwise, and with --json, print numbers",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    given = parser.parse_args(argv)
    if given.position is not None and given.step is not None:
        parser.error("--position, --step: pass one of them")
    if given.step is None:
        given.position = given.position or "0"
        for name in ("world", "micro", "rank", "from"):
            if getattr(given, name) is not None:
                parser.error(f"--{name}: needs --step; pass --step instead of --position")
        given.count = given.count or "1"
    return given


def _command(given):
    command = [program("tokctl"), "plan", "-c", given.config, given.stream, "--tokens", "--json"]
    if given.position is not None:
        command += ["--from", given.position]
    for name in ("count", "step", "world", "micro", "rank", "from", "run"):
        value = getattr(given, name)
        if value is not None:
            command += [f"--{name}", value]
    for cursor in given.cursor:
        command += ["--cursor", cursor]
    return command


def _show(row, tokenizer):
    """With text instead of tokens if there is a tokenizer."""
    if tokenizer:
        tokens = row.pop("tokens")
        row["text"] = None if tokens is None else tokenizer.text(tokens)


def printable(text):
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def _print(row):
    keys = ("position", "dataset", "epoch", "shard", "offset", "rank", "row")
    print("  ".join(f"{key} {row[key]}" for key in keys if row.get(key) is not None), end="")
    if row["position"] is None:
        print("  padding: the stream has ended\n")
    elif "text" in row:
        print("\n" + printable(row["text"]) + "\n")
    else:
        print("\n" + " ".join(map(str, row["tokens"])) + "\n")


def show(given):
    """Prints the rows. Returns the exit status."""
    given.config = config_of(given.config)
    tokenizers = Tokenizers(given.tokenizer)
    with subprocess.Popen(_command(given), stdout=subprocess.PIPE) as plan:
        for line in plan.stdout:
            row = json.loads(line)
            known = given.tokenizer or not given.json
            _show(row, tokenizers.of(row["path"] or "") if known else None)
            if given.json:
                print(json.dumps(row))
            else:
                _print(row)
    if plan.returncode < 0:
        raise Error(f"tokctl: was killed by signal {-plan.returncode}; run it again")
    return plan.returncode


def main(argv=None):
    given = _arguments(argv)
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = show(given)
        sys.stdout.flush()
        return status
    except Error as error:
        print(f"tokend.show: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
