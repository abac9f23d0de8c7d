"""python -m tokend tokenize: makes flat token shards from text, or from columns of tokens.

    python -m tokend tokenize web/*.jsonl.zst -o /data/web --tokenizer tokenizer.json
    python -m tokend tokenize books/ -o /data/books --tokenizer gpt2.tiktoken --resume > tokend.yaml
    python -m tokend tokenize tokenized/*.parquet -o /data/web --column input_ids

A document is a .txt file, the --field of a line of .jsonl, or the --field of a row of .parquet.
Of a directory, files for validation by their names are left out; name them to convert them.
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
import pathlib
import sys
import time

from .._tokend import version
from ..errors import Error
from . import documents, tokenizer
from .parser import Parser, positive, printable, progress, quoted

NOTES = ".tokenize.json"  # in the directory of shards: options, inputs and progress
UNFINISHED = ".part-tokenize"  # there until the last shard is; as of tokctl pack, tokend remarks it
TYPECODES = {"u16": "H", "u32": "I"}  # of arrays; tokens and these machines are little-endian
LABEL_BYTES = 64
TOGETHER = 1 << 18  # characters or tokens that are encoded together
NONE = "none"
RESUME = "continue with --resume"
START_OVER = "start again, in another directory"


def _encoded(parts, encoder, run):
    """Returns the tokens as bytes, and where the first of these documents has an EOS within, or
    None.
    """
    contents, bos, eos = [part.content for part in parts], run["bos"], run["eos"]
    whole, within = array.array(TYPECODES[run["dtype"]]), None
    end = b"" if eos is None else array.array(whole.typecode, [eos]).tobytes()
    try:
        for part, tokens in zip(parts, encoder.encode(contents), strict=True):
            if not run["file"] and tokens and (tokens[-1] == eos or tokens[:1] == bos):
                raise Error(f"{part.where}: has that --eos or --bos already; omit the option")
            if part.begins:
                whole.extend(bos)
            made = array.array(whole.typecode)
            made.extend(tokens)
            if end and end in made.tobytes() and eos in made:  # found faster in bytes
                within = within or part.where
            whole.extend(made)
            if eos is not None and part.ends:
                whole.append(eos)
    except Error:
        raise
    except Exception as error:  # each package has its own errors
        more = "" if run["file"] else f"; --column takes lists of tokens of {run['dtype']}"
        raise Error(f"{parts[0].where} or a later document: {error}{more}") from None
    return whole.tobytes(), within


# ---- the output ----


# Progress after a whole shard. All but shards are before the documents that were encoded together
# and continue after it: some of their tokens may be in the shard.
NOTHING = {"shards": 0, "parts": 0, "tokens": 0, "documents": 0, "finished": False}


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
            raise Error(f"{path}: another run writes to it; name another directory") from None
        # nothing is lost if there is no shard yet, as after a wrong --field
        if not os.listdir(path) or read_notes(path)[1].get("shards") == 0:
            self._note()
        elif resume:
            self._resume(*read_notes(path))
        else:
            raise Error(f"{path}: is not empty; name another directory, or {RESUME}")
        self._count = dict(self.done)

    def _resume(self, run, done):
        if not run:
            raise Error(f"{self.path}: --resume: no run of tokend tokenize; {START_OVER}")
        for key, now in self.run.items():
            if key != "file" and run.get(key) != now:
                raise Error(f"{self.path}: --resume: other {key} than before; {START_OVER}")
        self.done, rest = done, done["tokens"] * self._width if done["finished"] else sys.maxsize
        for number in range(done["shards"]):
            path, whole = os.path.join(self.path, _name(number)), min(rest, self._shard_bytes)
            if (size := os.stat(path).st_size) != whole:
                raise Error(f"{path}: has {size} bytes instead of {whole}; {START_OVER}")
            rest -= whole
        self._note()

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
        file, mark = self._open(NOTES, "w"), pathlib.Path(self.path, UNFINISHED)
        json.dump({"run": self.run, "done": self.done}, file)
        self._finish(file, NOTES)
        if self.done["finished"]:
            mark.unlink(missing_ok=True)
        else:
            mark.touch()

    def write(self, parts, data):
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
        count["parts"] += len(parts)
        count["tokens"] += len(data) // self._width
        count["documents"] += sum(part.ends for part in parts)

    def close(self, finished=False):
        """Ends the shard, and notes the progress."""
        shards = self.done["shards"]
        if self._part:
            self._finish(self._part, _name(shards))
            self._part, shards = None, shards + 1
        self.done = self._count | {"shards": shards, "finished": finished}
        self._note()

    def config(self):
        """A config that serves the shards."""
        path, run = os.path.realpath(self.path), self.run
        vocab = f"vocab: {run['vocab']}"
        if not run["file"]:
            vocab = "# vocab: 50257  # set your tokenizer's: another token stops the stream"
        return (
            "streams:\n  train:\n    seed: 42\n    seq_len: 2048\n"
            + ("" if run["eos"] is None else f"    eos: {run['eos']}\n")
            + f"    {vocab}\n    datasets:\n"
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


def token(option, given, encoder):
    if given == NONE:  # may be a word of the vocabulary
        raise Error(f"{option} {NONE}: is for --bos; pass a token's number, or omit {option}")
    number = int(given) if given.isdecimal() else encoder.number(given)
    if number is None or number >= 2**32:
        raise Error(f"{option} {given}: there is no such token; pass its number")
    return number


def _bos(given, encoder):
    if given is None:
        return [*encoder.begin]
    return [] if given == NONE else [token("--bos", given, encoder)]


def _eos(given, encoder):
    if given is not None or not encoder.file:
        return given and token("--eos", given, encoder)
    ends = encoder.ends_of_text()
    if len(ends) != 1:
        known = f"several tokens that end a text ({', '.join(ends)})" if ends else "no known one"
        raise Error(f"--eos: the tokenizer has {known}; pass the token's number or text")
    return next(iter(ends.values()))


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
    total, pending, said = min(size, most), collections.deque(), False

    def write(at_most):
        """Waits for results until at most so many are pending."""
        nonlocal said
        while len(pending) > at_most:
            output.read, parts, encoded = pending.popleft()
            data, within = encoded.result()
            output.write(parts, data)
            if within and not said:
                said = True
                say(f"{within}: has EOS {run['eos']} in its text, too; is that the right EOS?")
            progress(f"{100 * output.read // total} % of the input")

    pool = concurrent.futures.ThreadPoolExecutor(threads)  # packages encode without Python's lock
    try:
        found = documents.read(sources, run["field"], say, not run["file"])
        for read, parts in _groups(itertools.islice(found, output.done["parts"], None), most):
            pending.append((read, parts, pool.submit(_encoded, parts, encoder, run)))
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
    encoder = tokenizer.load(given.tokenizer, given.pattern)
    bos, eos = _bos(given.bos, encoder), _eos(given.eos, encoder)
    vocab = max([encoder.vocab, *(token + 1 for token in [*bos, eos or 0])])
    fits = "u16" if vocab <= 1 << 16 and given.tokenizer else "u32"
    dtype = fits if given.dtype == "auto" else given.dtype
    if dtype == "u16" and vocab > 1 << 16:
        raise Error(f"--dtype u16: cannot hold the vocabulary's {vocab} tokens; pass u32")
    run = {  # what decides the shards' bytes; only `file` may be another one at a resume
        "field": given.column or given.field,
        "bos": bos,
        "eos": eos,
        "vocab": vocab,
        "dtype": dtype,
        "tokenizer": encoder.digest,
        "made_by": f"tokend {version}, {encoder.made_by}",
        "pattern": encoder.pattern,
        "shard_tokens": given.shard_tokens,
        "inputs": [[os.path.realpath(s.path), s.size, s.changed] for s in sources],
        "file": encoder.file,
    }
    if encoder.note:
        say(encoder.note)
    begin, output = time.monotonic(), Output(given.output, run, given.resume)
    if not output.done["finished"]:
        _convert(output, sources, encoder, given.workers, most)
    done, seconds = output.done, time.monotonic() - begin
    if not done["tokens"]:
        raise Error(f"{sources[0].path}: has no documents; name other files")
    begins = f"BOS {', '.join(map(str, bos))}" if bos else "no BOS"
    ends = "no EOS" if eos is None else f"EOS {eos}"
    say(
        f"{done['documents']} documents, {done['tokens']} tokens in {done['shards']} shards of "
        f"{dtype} in {given.output}; {begins}, {ends}; {seconds:.1f} s, "
        f"{output.read / 1e6 / seconds:.1f} MB/s"
    )
    return output


# ---- the command ----


def say(text):
    progress()
    print(f"tokend tokenize: {printable(text)}", file=sys.stderr, flush=True)


def add_shared(add):
    """The options that init has, too. @add: a parser's add_argument."""
    add("--field", default="text", metavar="NAME", help="of JSONL, or a column; default text")
    add("--eos", metavar="ID|TEXT", help="after each document; default: the tokenizer's only one")
    add("--bos", metavar="ID|TEXT", help=f"before each, or {NONE}; default: the template's")


def arguments(argv):
    parser = Parser(
        prog="python -m tokend tokenize",
        description="Makes flat token shards from text, JSONL or parquet, with EOS after each "
        "document. Prints a config for them.",
        epilog="Names of special tokens in the text are encoded as ordinary text.",
    )
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
    given = parser.parse_args(argv)
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
