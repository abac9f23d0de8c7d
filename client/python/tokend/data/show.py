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
from .parser import Parser
from .tokenizer import load_tokenizer

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # data must not control the terminal


def _arguments(argv):
    parser = Parser(
        prog="python -m tokend.show",
        description="Prints the samples of a run at a position or step, as text.",
    )
    parser.add_argument("--version", action="version", version=f"tokend {version}")
    parser.add_argument("-c", "--config", required=True, metavar="FILE", help="the daemon's config")
    parser.add_argument("stream", metavar="STREAM", help="name of the stream")
    parser.add_argument("--position", metavar="P", help="position of the first sample")
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
        help="cursors of the run, for the history of its mixes",
    )
    parser.add_argument(
        "--run", metavar="RUN", help="name of the run, for the mix log that tokend keeps"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json, .tiktoken or a SentencePiece model; default: print numbers",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    given = parser.parse_args(argv)
    if (given.position is None) == (given.step is None):
        parser.error("--position, --step: pass --position, or --step with --world and --micro")
    if given.position is not None:
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


def _shown(row, tokenizer):
    """The row as printed with --json: with text instead of tokens if there is a tokenizer."""
    tokens = row.pop("tokens")
    if tokenizer is None:
        row["tokens"] = tokens
    else:
        row["text"] = None if tokens is None else tokenizer.text(tokens)
    return row


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
    tokenizer = load_tokenizer(given.tokenizer) if given.tokenizer else None
    with subprocess.Popen(_command(given), stdout=subprocess.PIPE) as plan:
        for line in plan.stdout:
            row = _shown(json.loads(line), tokenizer)
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
