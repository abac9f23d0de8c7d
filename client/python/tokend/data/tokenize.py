"""python -m tokend tokenize: makes flat token shards from text, or from columns of tokens.

    python -m tokend tokenize web/*.jsonl.zst -o /data/web --tokenizer tokenizer.json
    python -m tokend tokenize books/ -o /data/books --tokenizer gpt2.tiktoken --resume > tokend.yaml
    python -m tokend tokenize tokenized/*.parquet -o /data/web --column input_ids

A document is a .txt file, the --field of a line of .jsonl, or the --field of a row of .parquet.
With --column, documents are lists of integers in a column of .parquet or .arrow. A document begins
with the BOS that a tokenizer.json's template names, and an EOS token follows it: that of --eos, the
template's, or none with --column. A shard ends with the document that fills it to --shard-tokens.
The shards' bytes do not depend on the number of workers. At the end, a config for them is printed.
Names of special tokens in a text are encoded as ordinary text.
"""

import array
import collections
import concurrent.futures
import fcntl
import itertools
import json
import os
import sys
import time

from .._tokend import Error, version
from . import documents, tokenizer
from .parser import Parser, positive, printable, quoted

NOTES = ".tokenize.json"  # in the directory of shards: options, inputs and progress
TYPECODES = {"u16": "H", "u32": "I"}  # of arrays; tokens and these machines are little-endian
LABEL_BYTES = 64
TOGETHER = 1 << 18  # characters or tokens that are encoded together
NONE = "none"
START_OVER = "start again, in another directory"


def _encoded(parts, encoder, run):
    """Returns an array of tokens for each part."""
    code, end, arrays = TYPECODES[run["dtype"]], run["eos"], []
    try:
        encoded = encoder.encode([part.content for part in parts])
        for part, tokens in zip(parts, encoded, strict=True):
            whole = array.array(code, run["bos"] if part.begins else [])
            whole.extend(tokens)
            if end is not None and part.ends:
                whole.append(end)
            arrays.append(whole)
    except (TypeError, ValueError, OverflowError) as error:
        more = "" if run["file"] else f"; --column takes lists of tokens of {run['dtype']}"
        raise Error(f"{parts[0].where} or a later document: {error}{more}") from None
    return arrays


# ---- the output ----


# Progress after a whole shard; `sizes` are the shards' bytes.
NOTHING = {"sizes": [], "parts": 0, "documents": 0, "finished": False}


class Output:
    """Writes shards to a directory: each as a part file, synced, renamed, then noted."""

    def __init__(self, path, run, resume):
        self.path, self.run, self.done, self._shard = path, run, NOTHING, None
        self._width = array.array(TYPECODES[run["dtype"]]).itemsize
        os.makedirs(path, exist_ok=True)
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Error(f"{path}: another run writes to it; name another directory") from None
        if not os.listdir(path):
            self._note()
        elif resume:
            self._resume(*read_notes(path))
        else:
            raise Error(f"{path}: is not empty; name another directory, or pass --resume")
        self._parts, self._documents = self.done["parts"], self.done["documents"]

    def _resume(self, run, done):
        if not run:
            raise Error(f"{self.path}: --resume: no run of tokend tokenize; {START_OVER}")
        for key, now in self.run.items():
            if key != "file" and run.get(key) != now:
                raise Error(f"{self.path}: --resume: other {key} than before; {START_OVER}")
        for number, size in enumerate(done["sizes"]):
            path = os.path.join(self.path, _name(number))
            if (found := os.stat(path).st_size) != size:
                raise Error(f"{path}: has {found} bytes instead of {size}; {START_OVER}")
        self.done = done

    def _open(self, name, mode):
        return open(os.path.join(self.path, f".{name}.part"), mode)

    def _finish(self, file, name):
        """Gives a part file its name, for good."""
        with file:
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, os.path.join(self.path, name))
        os.fsync(self._directory)

    def _note(self):
        file = self._open(NOTES, "w")
        json.dump({"run": self.run, "done": self.done}, file)
        self._finish(file, NOTES)

    def write(self, part, tokens):
        """Appends the tokens of a part. A shard ends with the part that fills it."""
        self._parts += 1
        self._documents += part.ends
        if not tokens:
            return
        if self._shard is None:
            self._shard = self._open(_name(len(self.done["sizes"])), "wb")
        tokens.tofile(self._shard)
        if self._shard.tell() >= self.run["shard_tokens"] * self._width:
            self.close()

    def close(self, finished=False):
        """Ends the shard, and notes the progress."""
        sizes = self.done["sizes"]
        if self._shard:
            name, sizes = _name(len(sizes)), [*sizes, self._shard.tell()]
            self._finish(self._shard, name)
            self._shard = None
        counts = {"parts": self._parts, "documents": self._documents}
        self.done = {"sizes": sizes, **counts, "finished": finished}
        self._note()

    def tokens(self):
        return sum(self.done["sizes"]) // self._width

    def config(self):
        """A config that serves the shards."""
        path, run = os.path.realpath(self.path), self.run
        return (
            "streams:\n  train:\n    seed: 42\n    seq_len: 2048\n"
            + ("" if run["eos"] is None else f"    eos: {run['eos']}\n")
            + (f"    vocab: {run['vocab']}\n" if run["file"] else "    # vocab: 50257\n")
            + "    datasets:\n"
            f"      - {quoted({'name': label(path), 'path': path, 'dtype': run['dtype']})}\n"
        )


def _name(number):
    return f"{number:05}.bin"


def label(path):
    """The last name of a path, as a dataset may have it."""
    text = "".join(c for c in os.path.basename(path) if c.isprintable())
    return text.encode(errors="ignore")[:LABEL_BYTES].decode(errors="ignore") or "text"


def read_notes(directory):
    """Returns (options of the run that made a directory's shards, its progress), or empty ones."""
    try:
        with open(os.path.join(directory, NOTES)) as file:
            notes = json.load(file)
        return notes["run"], notes["done"]
    except (OSError, ValueError):
        return {}, {}


# ---- the run ----


def _token(option, given, encoder):
    number = int(given) if given.isdecimal() else encoder.number(given)
    if number is None:
        raise Error(f"{option} {given}: there is no such token; pass its number")
    return number


def _bos(given, encoder):
    if given is None:
        return [*encoder.begin]
    return [] if given == NONE else [_token("--bos", given, encoder)]


def _eos(given, encoder):
    if given is not None:
        return _token("--eos", given, encoder)
    if encoder.file and encoder.end is None:
        raise Error("--eos: the tokenizer does not name one; pass the token's number or text")
    return encoder.end


def _groups(parts, most):
    """Yields the parts that are encoded together, until they have @most characters or tokens."""
    group, size = [], 0
    for part in parts:
        group.append(part)
        size += len(part.content)
        most -= len(part.content)
        if size > TOGETHER or most <= 0:
            yield group
            group, size = [], 0
        if most <= 0 and next(parts, None):
            say("only the beginning is converted (--most converts more)")
            return
    if group:
        yield group


def _convert(output, sources, encoder, threads, most):
    run, pending = output.run, collections.deque()

    def write(parts, encoded):
        for part, tokens in zip(parts, encoded.result(), strict=True):
            output.write(part, tokens)

    pool = concurrent.futures.ThreadPoolExecutor(threads)  # packages encode without Python's lock
    try:
        found = documents.read(sources, run["field"], not run["file"])
        for parts in _groups(itertools.islice(found, output.done["parts"], None), most):
            pending.append((parts, pool.submit(_encoded, parts, encoder, run)))
            if len(pending) > 2 * threads:
                write(*pending.popleft())
        for parts, encoded in pending:
            write(parts, encoded)
    finally:
        pool.shutdown(cancel_futures=True)
    output.close(finished=True)


def make(given, most=sys.maxsize):
    """Makes the shards. Returns the Output. @given: as arguments() returns it. @most: the end is
    after so many characters.
    """
    kinds = documents.TABLES if given.column else documents.TEXTS
    sources = documents.sources_of(given.inputs, kinds, given.text, say)
    encoder = tokenizer.load(given.tokenizer, given.pattern)
    bos, eos = _bos(given.bos, encoder), _eos(given.eos, encoder)
    vocab = max([encoder.vocab, *(token + 1 for token in [*bos, eos or 0])])
    fits = "u16" if vocab <= 1 << 16 and given.tokenizer else "u32"
    dtype = fits if given.dtype == "auto" else given.dtype
    run = {  # what decides the shards' bytes; only `file` may be another one at a resume
        "field": given.column or given.field,
        "bos": bos,
        "eos": eos,
        "vocab": vocab,
        "dtype": dtype,
        "tokenizer": encoder.made_by,
        "made_by": f"tokend {version}",
        "shard_tokens": given.shard_tokens,
        "inputs": [[os.path.realpath(s.path), s.size, s.changed] for s in sources],
        "file": encoder.file,
    }
    if encoder.note:
        say(encoder.note)
    begin, output = time.monotonic(), Output(given.output, run, given.resume)
    if not output.done["finished"]:
        _convert(output, sources, encoder, given.workers, most)
    if not output.tokens():
        raise Error(f"{sources[0].path}: has no documents; name other files")
    begins = f"BOS {', '.join(map(str, bos))}" if bos else "no BOS"
    ends = "no EOS" if eos is None else f"EOS {eos}"
    say(
        f"{output.done['documents']} documents, {output.tokens()} tokens in "
        f"{len(output.done['sizes'])} shards of {dtype} in {given.output}; {begins}, {ends}; "
        f"{time.monotonic() - begin:.1f} s"
    )
    return output


# ---- the command ----


def say(text):
    print(f"tokend tokenize: {printable(text)}", file=sys.stderr, flush=True)


def add_shared(add):
    """The options that init has, too. @add: a parser's add_argument."""
    add("--field", default="text", metavar="NAME", help="of JSONL, or a column; default text")
    add("--eos", metavar="ID|TEXT", help="after each document; default: the template's")
    add("--bos", metavar="ID|TEXT", help=f"before each, or {NONE}; default: the template's")


def arguments(argv):
    parser = Parser("tokenize", __doc__)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="IN", help=".txt, .jsonl, .parquet, or a directory of them")
    add("-o", "--output", required=True, metavar="DIR", help="a new or empty directory")
    add("--tokenizer", metavar="FILE", help="tokenizer.json or .tiktoken; bytes: a token is a byte")
    add("--column", metavar="NAME", help="instead of --tokenizer: of parquet or Arrow, with tokens")
    add("--text", action="store_true", help="take other files too, if they contain UTF-8 text")
    add("--dtype", default="auto", choices=("auto", "u16", "u32"), help="u32 for --column")
    add("--shard-tokens", type=positive, default=1 << 28, metavar="N", help="default 2^28")
    add_shared(add)
    add("--pattern", metavar="REGEX", help="splits text for a .tiktoken file; default GPT-2's")
    cores = len(os.sched_getaffinity(0))
    add("--workers", type=positive, default=cores, metavar="N", help="threads; default: all cores")
    add("--resume", action="store_true", help="continue after the last whole shard in DIR")
    given = parser.parse_intermixed_args(argv)  # IN may follow options
    if (given.tokenizer is None) == (given.column is None):
        parser.error("pass --tokenizer for text, or --column for tokens")
    return given


def main(argv):
    print(make(arguments(argv)).config(), end="")
    return 0
