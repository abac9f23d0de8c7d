"""python -m tokend show: prints rows of `tokctl plan --tokens --json` as text.

tokctl plan -c tokend.yaml train --from 123456 --count 4 --tokens --json |
    python -m tokend show --tokenizer tokenizer.json
"""

import functools
import json
import os
import sys

from ..errors import Error
from . import tokenize, tokenizer
from .parser import Parser, printable

KEYS = "position", "dataset", "epoch", "shard", "offset", "rank", "row"
TOKENIZER_HELP = (
    "tokenizer.json, .tiktoken or bytes; default: the one that python -m tokend tokenize noted "
    "next to the shards, otherwise print numbers"
)


@functools.cache
def _noted(directory):
    """The tokenizer that is noted there, or None."""
    run = tokenize.read_notes(directory)[0]
    name = run.get("file")
    try:
        made = name and tokenizer.load(name)
        if made and made.digest != run["tokenizer"]:
            raise Error(f"{name}: was changed after tokenize made {directory}; pass --tokenizer")
        return made
    except (Error, ImportError, OSError) as error:
        print(f"tokend: {printable(str(error))}; printing numbers", file=sys.stderr)
        return None


def text_of(given, path, tokens):
    """@given: the user's tokenizer, or None; @path: of the tokens' shard. Numbers, if there is no
    tokenizer.
    """
    made = given or _noted(os.path.dirname(path))
    return printable(made.text(tokens)) if made else " ".join(map(str, tokens))


def main(argv):
    parser = Parser(
        prog="tokctl plan … --tokens --json | python -m tokend show",
        description=__doc__.splitlines()[0],
    )
    parser.add_argument("--tokenizer", metavar="FILE", help=TOKENIZER_HELP)
    file = parser.parse_args(argv).tokenizer
    given = file and tokenizer.load(file)
    for line in sys.stdin:
        try:
            row = json.loads(line)
            head = "  ".join(f"{key} {row[key]}" for key in KEYS if row.get(key) is not None)
            tokens = row["tokens"]
        except (ValueError, KeyError, AttributeError):
            raise Error("stdin is not the output of tokctl plan --tokens --json") from None
        text = "padding: the stream has ended"
        if tokens is not None:
            text = text_of(given, row.get("path") or "", tokens)
        print(f"{head}\n{text}\n")
    return 0
