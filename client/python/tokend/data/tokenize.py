"""python -m tokend tokenize: makes flat token shards from text, or from columns of tokens.

    python -m tokend tokenize web/*.jsonl.zst -o /data/web --tokenizer tokenizer.json
    python -m tokend tokenize books/ -o /data/books --tokenizer gpt2.tiktoken --resume > tokend.yaml
    python -m tokend tokenize tokenized/*.parquet -o /data/web --column input_ids

A document is a .txt file, the --field of a line of .jsonl, or the --field of a row of .parquet.
With --column, documents are lists of integers in a column of .parquet or .arrow. A document begins
with the BOS that a tokenizer.json's template names, and an EOS token follows it; with --column
there is none unless --eos names one. All shards but the last contain --shard-tokens tokens. Their
bytes do not depend on the number of workers. At the end, a config for these shards is printed.
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
from .parser import Parser, positive, printable, progress, quoted, things

NOTES = ".tokenize.json"  # in the directory of shards: options, inputs and progress
TYPECODES = {"u16": "H", "u32": "I"}  # of arrays; tokens and these machines are little-endian
LABEL_BYTES = 64
TOGETHER = 1 << 18  # characters or tokens that are encoded together
NONE = "none"
COLUMN = "column"  # instead of a tokenizer's digest
RESUME = "continue with --resume"
START_OVER = "start again, in another directory"


def _encoded(parts, encoder, run):
    """Returns (tokens as bytes, documents, empty documents)."""
    contents = [part.content for part in parts]
    whole = array.array(TYPECODES[run["dtype"]])
    try:
        made = encoder.encode(contents) if encoder else contents
        for part, tokens in zip(parts, made, strict=True):
            if part.begins:
                whole.extend(run["bos"])
            whole.extend(tokens)
            if run["eos"] is not None and part.ends:
                whole.append(run["eos"])
    except (TypeError, ValueError, OverflowError) as error:
        more = "" if encoder else f"; --column takes lists of tokens of {run['dtype']}"
        raise Error(f"{parts[0].where} or a later document: {error}{more}") from None
    empty = sum(not content for content in contents)
    return whole.tobytes(), sum(part.ends for part in parts), empty


# ---- the output ----


# Progress after a whole shard. All but shards are before the documents that were encoded together
# and continue after it: some of their tokens may be in the shard.
NOTHING = {"shards": 0, "parts": 0, "tokens": 0, "documents": 0, "empty": 0, "finished": False}


class Output:
    """Writes shards to a directory: each as a part file, synced, renamed, then noted."""

    def __init__(self, path, run, resume):
        self.path, self.run, self.done, self._part = path, run, NOTHING, None
        self.read = 0  # bytes of input, by this process
        self._width = array.array(TYPECODES[run["dtype"]]).itemsize
        self._shard_bytes = run["shard_tokens"] * self._width
        os.makedirs(path, exist_ok=True)
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Error(
                f"{path}: another tokend tokenize writes to it; name another directory"
            ) from None
        if not os.listdir(path):
            self._note()
        elif not resume:
            raise Error(f"{path}: is not empty; name another directory, or {RESUME}")
        else:
            self._resume()
        self._count = dict(self.done)

    def _resume(self):
        notes = read_notes(self.path)
        if not notes:
            raise Error(
                f"{self.path}: --resume: has files, but no run of tokend tokenize; name another "
                "directory"
            )
        for key, now in self.run.items():
            then = notes["run"].get(key)
            if key != "file" and then != now:
                what = f"{key} was {then}, now {now}"
                if key == "inputs":
                    what = "the inputs have changed (files, sizes or times)"
                raise Error(f"{self.path}: --resume: {what}; {START_OVER}")
        self.done = notes["done"]
        rest = self.done["tokens"] * self._width if self.done["finished"] else sys.maxsize
        for number in range(self.done["shards"]):
            path, whole = os.path.join(self.path, _name(number)), min(rest, self._shard_bytes)
            if (size := os.stat(path).st_size) != whole:
                raise Error(f"{path}: has {size} bytes instead of {whole}; {START_OVER}")
            rest -= whole

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

    def write(self, parts, data, number, empty):
        """Appends the tokens of some parts, without those that are in shards already."""
        count, written = self._count, self.done["shards"] * self._shard_bytes
        written += self._part.tell() if self._part else 0
        rest = memoryview(data)[written - count["tokens"] * self._width :]
        while rest:
            if self._part is None:
                self._part = self._open(_name(self.done["shards"]), "wb")
            left = self._shard_bytes - self._part.tell()
            self._part.write(rest[:left])
            if len(rest) >= left:
                self.close()
            rest = rest[left:]
        count["parts"] += parts
        count["tokens"] += len(data) // self._width
        count["documents"] += number
        count["empty"] += empty

    def close(self, finished=False):
        """Ends the shard, and notes the progress."""
        shards = self.done["shards"]
        if self._part:
            self._finish(self._part, _name(shards))
            self._part, shards = None, shards + 1
        self.done = self._count | {"shards": shards, "finished": finished}
        self._note()

    def ends(self):
        """The tokens added to each document, in words."""
        bos, eos = self.run["bos"], self.run["eos"]
        bos = f"BOS {', '.join(map(str, bos))}" if bos else "no BOS"
        return f"{bos}, {'no EOS' if eos is None else f'EOS {eos}'}"

    def config(self):
        """A config that serves the shards."""
        path = os.path.realpath(self.path)
        name, path = map(quoted, (label(path), path))
        eos, vocab = self.run["eos"], f"    vocab: {self.run['vocab']}\n"
        if not self.run["file"]:
            vocab = "    # vocab: 50257  # set your tokenizer's: another token stops the stream\n"
        return (
            "streams:\n  train:\n    seed: 42\n    seq_len: 2048\n"
            + ("" if eos is None else f"    eos: {eos}\n")
            + f"{vocab}    datasets:\n"
            f"      - {{name: {name}, path: {path}, dtype: {self.run['dtype']}}}\n"
        )


def _name(number):
    return f"{number:05}.bin"


def label(path):
    """The last name of a path, as a dataset may have it."""
    text = "".join(c for c in os.path.basename(path) if c.isprintable())
    return text.encode(errors="ignore")[:LABEL_BYTES].decode(errors="ignore") or "text"


def read_notes(directory):
    """Returns what tokenize noted next to its shards: {"run": …, "done": …}, or {}."""
    try:
        with open(os.path.join(directory, NOTES)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def noted_tokenizer(directory):
    """The tokenizer of the shards in a directory: BYTES, or a file that is still there; otherwise
    None.
    """
    noted = read_notes(directory).get("run", {}).get("file")
    return noted if noted and (noted == tokenizer.BYTES or os.path.exists(noted)) else None


# ---- the run ----


def _token(option, given, encoder):
    """Returns the token that an option names. @encoder: None for documents of tokens."""
    number = int(given) if given.isdecimal() else encoder and encoder.number(given)
    if number is None or number >= 2**32:
        raise Error(f"{option} {given}: there is no such token; pass its number")
    return number


def _eos(given, encoder):
    if given is not None:
        return _token("--eos", given, encoder)
    ends = encoder.ends_of_text() if encoder else {None: None}
    if len(ends) != 1:
        known = f"several tokens that end a text ({', '.join(ends)})" if ends else "no known one"
        raise Error(f"--eos: the tokenizer has {known}; pass the token's number or text")
    return next(iter(ends.values()))


def _bos(given, encoder):
    if given is None:
        return list(encoder.begin) if encoder else []
    return [] if given == NONE else [_token("--bos", given, encoder)]


def _groups(parts, most):
    """Yields (bytes read, parts that are encoded together)."""
    group, size, read = [], 0, 0
    for part, read in parts:
        group.append(part)
        size += len(part.content)
        if size > TOGETHER:
            yield read, group
            group, size = [], 0
        if read >= most:
            break
    if group:
        yield read, group


def _convert(output, sources, encoder, threads, most):
    run, size = output.run, sum(source.size for source in sources)
    total, pending = min(size, most), collections.deque()

    def write(at_most):
        """Waits for results until at most so many are pending."""
        while len(pending) > at_most:
            output.read, parts, encoded = pending.popleft()
            output.write(parts, *encoded.result())
            progress(f"{100 * output.read // total} % of the input")

    pool = concurrent.futures.ThreadPoolExecutor(threads)  # packages encode without Python's lock
    try:
        found = documents.read(sources, run["field"], not encoder)
        for read, parts in _groups(itertools.islice(found, output.done["parts"], None), most):
            pending.append((read, len(parts), pool.submit(_encoded, parts, encoder, run)))
            write(2 * threads)
        write(0)
    finally:
        pool.shutdown(cancel_futures=True)
    output.close(finished=True)
    progress()
    if most <= output.read < size:
        say(f"only the first {output.read >> 20} of {size >> 20} MiB (--most converts more)")


def make(given, most=sys.maxsize):
    """Makes the shards. Returns the Output. @given: as arguments() returns it. @most: the end is
    after so many bytes of input.
    """
    kinds = documents.TABLES if given.column else documents.TEXTS
    sources = documents.sources_of(given.inputs, kinds, given.text, say)
    encoder = tokenizer.load(given.tokenizer, given.pattern) if given.tokenizer else None
    bos, eos = _bos(given.bos, encoder), _eos(given.eos, encoder)
    vocab = max([encoder.vocab if encoder else 0, *(token + 1 for token in [*bos, eos or 0])])
    dtype = given.dtype
    if dtype == "auto":
        dtype = "u16" if vocab <= 1 << 16 and encoder else "u32"
    if dtype == "u16" and vocab > 1 << 16:
        raise Error(f"--dtype u16: cannot hold the vocabulary's {vocab} tokens; pass u32")
    run = {  # what decides the shards' bytes; only `file` may be another one at a resume
        "field": given.column or given.field,
        "bos": bos,
        "eos": eos,
        "vocab": vocab,
        "dtype": dtype,
        "tokenizer": encoder.digest if encoder else COLUMN,
        "made_by": f"tokend {version}, {encoder.made_by if encoder else COLUMN}",
        "pattern": encoder and encoder.pattern,
        "shard_tokens": given.shard_tokens,
        "inputs": [[os.path.realpath(s.path), s.size, s.changed] for s in sources],
        "file": given.tokenizer and tokenizer.place(given.tokenizer),
    }
    if encoder and encoder.note and not given.resume:
        say(encoder.note)
    begin, output = time.monotonic(), Output(given.output, run, given.resume)
    if not output.done["finished"]:
        _convert(output, sources, encoder, given.workers, most)
    done, seconds = output.done, time.monotonic() - begin
    if not done["tokens"]:
        raise Error(f"{sources[0].path}: has no documents; name other files")
    empty = f" ({done['empty']} of them empty)" if done["empty"] else ""
    say(
        f"{done['documents']} {things(done['documents'], 'document')}{empty}, {done['tokens']} "
        f"{things(done['tokens'], 'token')} in {done['shards']} {things(done['shards'], 'shard')} "
        f"of {dtype} in {given.output}; {output.ends()}; {seconds:.1f} s, "
        f"{output.read / 1e6 / seconds:.1f} MB/s"
    )
    return output


# ---- the command ----


def say(text):
    progress()
    print(f"tokend tokenize: {printable(text)}", file=sys.stderr, flush=True)


def add_shared(add):
    """The options that init has, too. @add: a parser's add_argument."""
    add("--field", default="text", metavar="NAME",
        help="field of JSONL, column of parquet; default text")  # fmt: skip
    add("--eos", metavar="ID|TEXT",
        help="token after each document; default: the tokenizer's own, if it names one, and none "
        "with --column")  # fmt: skip
    add("--bos", metavar="ID|TEXT",
        help=f"token before each document, or {NONE}; default: what a tokenizer.json's template "
        "says")  # fmt: skip


def arguments(argv):
    parser = Parser(
        prog="python -m tokend tokenize",
        description="Makes flat token shards from text, JSONL or parquet, with EOS after each "
        "document. Prints a config for them.",
        epilog="Names of special tokens in the text are encoded as ordinary text.",
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="IN",
        help=".txt, .jsonl (also .gz, .zst), .parquet, or a directory of them")  # fmt: skip
    add("-o", "--output", required=True, metavar="DIR", help="a new or empty directory")
    add("--tokenizer", metavar="FILE",
        help="tokenizer.json or .tiktoken; or bytes: a token is a byte")  # fmt: skip
    add("--column", metavar="NAME",
        help="instead of --tokenizer: column of .parquet or .arrow with tokens")  # fmt: skip
    add("--text", action="store_true",
        help="take files with any other ending too, if they contain UTF-8 text")  # fmt: skip
    add("--dtype", default="auto", choices=("auto", "u16", "u32"),
        help="default: u16 if the vocabulary fits, u32 with --column")  # fmt: skip
    add("--shard-tokens", type=positive, default=1 << 28, metavar="N",
        help="tokens per shard; default 2^28")  # fmt: skip
    add_shared(add)
    add("--pattern", metavar="REGEX", help="splits text for a .tiktoken file; default GPT-2's")
    add("--workers", type=positive, default=len(os.sched_getaffinity(0)), metavar="N",
        help="threads; default: one per core")  # fmt: skip
    add("--resume", action="store_true", help="continue after the last whole shard in DIR")
    given = parser.parse_intermixed_args(argv)  # IN may follow options
    if (given.tokenizer is None) == (given.column is None):
        parser.error("pass --tokenizer for text, or --column for tokens")
    return given


def main(argv):
    given = arguments(argv)
    try:
        output = make(given)
    except OSError as error:
        if error.filename:
            raise
        raise Error(f"{given.output}: {error.strerror}; {RESUME}") from None  # written to
    except KeyboardInterrupt:
        raise KeyboardInterrupt(RESUME) from None
    print(output.config(), end="")
    return 0
