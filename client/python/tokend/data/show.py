"""python -m tokend show: prints rows of `tokctl plan --tokens --json` as text.

tokctl plan -c tokend.yaml train --from 123456 --count 4 --tokens --json |
    python -m tokend show --tokenizer tokenizer.json
"""

import functools
import json
import os
import sys

from .._tokend import Error
from . import tokenize, tokenizer
from .parser import Parser, printable

TOKENIZER_HELP = (
    "tokenizer.json, .tiktoken or bytes; default: the one that python -m tokend tokenize noted "
    "next to the shards, otherwise print numbers"
)


@functools.cache
def _load(name):
    """None, after a line about it: it cannot be loaded."""
    try:
        return name and tokenizer.load(name)
    except Error as error:
        print(f"tokend: {printable(str(error))}; printing numbers", file=sys.stderr)
        return None


@functools.cache
def _noted(directory):
    return _load(tokenize.noted_tokenizer(directory))


def text_of(given, path, tokens):
    """@given: the user's tokenizer, or None; @path: of the tokens' shard. Numbers, if there is no
    tokenizer.
    """
    made = given or _noted(os.path.dirname(path))
    return printable(made.text(tokens)) if made else " ".join(map(str, tokens))


def _row(line):
    try:
        row = json.loads(line)
        row["position"], row["tokens"]
    except (ValueError, KeyError, TypeError):
        raise Error("stdin is not the output of tokctl plan --tokens --json") from None
    return row


def main(argv):
    parser = Parser(
        prog="tokctl plan … --tokens --json | python -m tokend show",
        description=__doc__.splitlines()[0],
    )
    parser.add_argument("--tokenizer", metavar="FILE", help=TOKENIZER_HELP)
    file = parser.parse_args(argv).tokenizer
    given = file and tokenizer.load(file)
    for row in map(_row, sys.stdin):
        keys = ("position", "dataset", "epoch", "shard", "offset", "rank", "row")
        print("  ".join(f"{key} {row[key]}" for key in keys if row.get(key) is not None))
        if row["tokens"] is None:
            print("padding: the stream has ended\n")
        else:
            print(text_of(given, row.get("path") or "", row["tokens"]) + "\n")
    return 0
