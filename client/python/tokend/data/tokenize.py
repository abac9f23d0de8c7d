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
import dataclasses
import errno
import fcntl
import json
import multiprocessing
import multiprocessing.resource_tracker
import os
import queue
import signal
import sys
import time

from .._tokend import Error, version
from . import documents, tokenizer
from .parser import Parser, positive, progress

NOTES = ".tokenize.json"  # in the directory of shards: options, inputs and progress
WIDTH = {"u16": 2, "u32": 4}
TYPECODE = {"u16": "H", "u32": "I"}  # of arrays; tokens and these machines are little-endian
LABEL_BYTES = 64
NONE = "none"
COLUMN = "column"  # instead of a tokenizer's digest
RESUME = "continue with --resume"
START_OVER = "start again, in another directory"
BOS_HELP = f"token before each document, or {NONE}; default: what a tokenizer.json's template says"


@dataclasses.dataclass
class How:
    """What decides the shards' bytes, with the inputs."""

    tokenizer: str  # a file, or BYTES; None: the documents are tokens
    pattern: str
    field: str  # or column
    bos: list
    eos: int
    dtype: str


# ---- workers ----


def _encoded(piece, encoder, how):
    """Returns (tokens as bytes, documents, empty documents, characters)."""
    if encoder is None:
        found = made = documents.tokens(piece)
    else:
        found = list(documents.texts(piece, how.field))
        made = encoder.encode(found)
    whole = array.array(TYPECODE[how.dtype])
    for tokens in made:
        if piece.begins:
            whole.extend(how.bos)
        whole.extend(tokens)
        if how.eos is not None and piece.ends:
            whole.append(how.eos)
    empty = sum(not document for document in found)
    return whole.tobytes(), len(found) * piece.ends, empty, sum(map(len, found))


def _work(pipe, how):
    """A process: encodes pieces until the parent ends."""
    encoder = tokenizer.load(how.tokenizer, how.pattern) if how.tokenizer else None
    while True:
        try:
            piece = pipe.recv()
            try:
                pipe.send(_encoded(piece, encoder, how))
            except Error as error:
                pipe.send(str(error))
            except (TypeError, ValueError, OverflowError) as error:
                more = "" if encoder else f"; --column takes lists of tokens of {how.dtype}"
                unit = "line" if piece.kind == "jsonl" else "row"
                pipe.send(f"{piece.path}: from {unit} {piece.number} on: {error}{more}")
        except (EOFError, OSError):
            return


class Workers:
    """Processes, each with a pipe and at most one piece."""

    def __init__(self, count, how):
        multiprocessing.resource_tracker.ensure_running()  # otherwise start() unblocks SIGINT
        context = multiprocessing.get_context("spawn")
        self._idle, self._processes = queue.SimpleQueue(), []
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's, in every worker
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it is for the parent
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, how), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._idle.put(ours)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._threads = concurrent.futures.ThreadPoolExecutor(count)

    def begin(self, piece):
        return self._threads.submit(self._encode, piece)

    def _encode(self, piece):
        pipe = self._idle.get()
        try:
            pipe.send(piece)
            result = pipe.recv()
        except (EOFError, OSError):
            raise Error(
                f"--workers: a worker died (out of memory?); pass fewer, and {RESUME}"
            ) from None
        finally:
            self._idle.put(pipe)
        if isinstance(result, str):
            raise Error(result)
        return result

    def end(self):
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)


# ---- the output ----


@dataclasses.dataclass
class Done:
    """The progress after a whole shard. All but shards are before the piece that continues after
    it, some of whose tokens may be in the shard.
    """

    shards: int = 0
    pieces: int = 0
    tokens: int = 0
    documents: int = 0
    empty: int = 0
    finished: bool = False


class Output:
    """Writes shards to a directory: each as a part file, synced, renamed, then noted."""

    def __init__(self, path, run, resume):
        self.path, self.run, self.done = path, run, Done()
        self._width = WIDTH[run["dtype"]]
        os.makedirs(path, exist_ok=True)
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Error(
                f"{path}: another tokend tokenize writes to it; name another directory"
            ) from None
        if set(os.listdir(path)) <= {NOTES + ".part"}:
            self._note()
        elif not resume:
            raise Error(f"{path}: is not empty; name another directory, or {RESUME}")
        else:
            self._resume()
        self.count = dataclasses.replace(self.done)  # of whole pieces
        self._part = None
        self._written = self.done.shards * run["shard_tokens"]  # tokens

    def _resume(self):
        notes = read_notes(self.path)
        if notes is None:
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
        self.done = Done(**notes["done"])
        whole = self.run["shard_tokens"] * self._width
        for number in range(self.done.shards):
            path = os.path.join(self.path, _name(number))
            size = os.stat(path).st_size if os.path.exists(path) else 0
            is_last = self.done.finished and number == self.done.shards - 1
            if size != whole and not (is_last and 0 < size < whole):
                raise Error(f"{path}: has {size} bytes instead of {whole}; {START_OVER}")

    def _rename(self, old, new):
        os.replace(os.path.join(self.path, old), os.path.join(self.path, new))
        os.fsync(self._directory)

    def _note(self):
        with open(os.path.join(self.path, NOTES + ".part"), "w") as file:
            json.dump({"run": self.run, "done": dataclasses.asdict(self.done)}, file)
            file.flush()
            os.fsync(file.fileno())
        self._rename(NOTES + ".part", NOTES)

    def write(self, data, number, empty):
        """Appends a piece's tokens, without those that are in shards already."""
        count, rest = self.count, memoryview(data)
        rest = rest[(self._written - count.tokens) * self._width :]
        while rest:
            if self._part is None:
                self._part = open(os.path.join(self.path, self._part_name()), "wb")
            left = self.run["shard_tokens"] - self._written % self.run["shard_tokens"]
            now, rest = rest[: left * self._width], rest[left * self._width :]
            self._part.write(now)
            self._written += len(now) // self._width
            if len(now) == left * self._width:
                self.close()
        count.pieces += 1
        count.tokens += len(data) // self._width
        count.documents += number
        count.empty += empty

    def _part_name(self):
        return f".{_name(self.done.shards)}.part"

    def close(self, finished=False):
        """Ends the shard, and notes the progress."""
        shards = self.done.shards
        if self._part:
            self._part.flush()
            os.fsync(self._part.fileno())
            self._part.close()
            self._rename(self._part_name(), _name(shards))
            self._part, shards = None, shards + 1
        self.done = dataclasses.replace(self.count, shards=shards, finished=finished)
        self._note()


def _name(number):
    return f"{number:05}.bin"


def read_notes(directory):
    """Returns what tokenize noted next to its shards, or None."""
    try:
        with open(os.path.join(directory, NOTES)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def noted_tokenizer(directory):
    """The tokenizer of the shards in a directory: BYTES, or a file that is still there; otherwise
    None.
    """
    noted = (read_notes(directory) or {}).get("run", {}).get("file")
    return noted if noted and (noted == tokenizer.BYTES or os.path.exists(noted)) else None


# ---- the run ----


def _token(option, given, encoder):
    """Returns the token that an option names. @encoder: None for documents of tokens."""
    number = int(given) if given.isdecimal() else encoder and encoder.number(given)
    if number is None or number >= 2**32:
        raise Error(f"{option} {given}: there is no such token; pass its number")
    return number


def _eos(given, encoder):
    if given is not None or encoder is None:
        return None if given is None else _token("--eos", given, encoder)
    ends = encoder.ends_of_text()
    if len(ends) != 1:
        known = f"several tokens that end a text ({', '.join(ends)})" if ends else "no known one"
        raise Error(f"--eos: the tokenizer has {known}; pass the token's number or text")
    return next(iter(ends.values()))


def _bos(given, encoder):
    if given is None:
        return list(encoder.begin) if encoder else []
    return [] if given == NONE else [_token("--bos", given, encoder)]


def label(name):
    """The name as a dataset may have it."""
    text = "".join(c for c in name if c.isprintable())
    return text.encode(errors="ignore")[:LABEL_BYTES].decode(errors="ignore") or "text"


@dataclasses.dataclass
class Made:
    """The shards of a run."""

    output: str
    done: Done
    how: How
    vocab: int  # None: unknown
    characters: int = 0
    read: int = 0  # bytes of input

    def ends(self):
        """The tokens added to each document, in words."""
        bos = f"BOS {', '.join(map(str, self.how.bos))}" if self.how.bos else "no BOS"
        return f"{bos}, {'no EOS' if self.how.eos is None else f'EOS {self.how.eos}'}"

    def config(self):
        """A config that serves the shards."""
        path = os.path.realpath(self.output)
        names = [json.dumps(x, ensure_ascii=False) for x in (label(os.path.basename(path)), path)]
        eos = "" if self.how.eos is None else f"    eos: {self.how.eos}\n"
        vocab = f"    vocab: {self.vocab}\n"
        if self.vocab is None:
            vocab = "    # vocab: 50257  # set your tokenizer's: another token stops the stream\n"
        return (
            f"streams:\n  train:\n    seed: 42\n    seq_len: 2048\n{eos}{vocab}    datasets:\n"
            f"      - {{name: {names[0]}, path: {names[1]}, dtype: {self.how.dtype}}}\n"
        )


def _convert(workers, given, sources, output, made, most):
    begin = shown = time.monotonic()
    done = output.done.pieces
    total = min(sum(source.size for source in sources), most)
    pending = collections.deque()  # (piece's end, its result)

    def write_first():
        nonlocal shown
        made.read, future = pending.popleft()
        *result, characters = future.result()
        output.write(*result)
        made.characters += characters
        now, count = time.monotonic(), output.count
        if now - shown > 0.2:
            shown = now
            left = (total - made.read) * (now - begin) / max(made.read, 1)
            progress(f"{count.documents} documents, {count.tokens} tokens, {left:.0f} s left")

    for number, piece in enumerate(documents.pieces(sources, made.how.field)):
        if number >= done:
            pending.append((piece.read, workers.begin(piece)))
        end, piece = piece.read, None
        if len(pending) > 2 * given.workers:
            write_first()
        if end >= most:
            break
    while pending:
        write_first()
    output.close(finished=True)


def make(given, sources, most=sys.maxsize):
    """Makes the shards. Returns Made. @most: the end is after so many bytes of input."""
    made_by = {f"tokend {version}"}
    for source in sources:  # fails now, not after hours of work
        if source.kind in documents.TABLES:
            made_by.add(f"pyarrow {documents.package('pyarrow', source.path).__version__}")
        if source.packing == ".zst":
            documents.package("zstandard", source.path)
    encoder = tokenizer.load(given.tokenizer, given.pattern) if given.tokenizer else None
    made_by |= {encoder.made_by} if encoder else set()
    bos, eos = _bos(given.bos, encoder), _eos(given.eos, encoder)
    vocab = max([encoder.vocab if encoder else 0, *(token + 1 for token in [*bos, eos or 0])])
    dtype = given.dtype
    if dtype == "auto":
        dtype = "u16" if vocab <= 1 << 16 and encoder else "u32"
    if dtype == "u16" and vocab > 1 << 16:
        raise Error(f"--dtype u16: cannot hold the vocabulary's {vocab} tokens; pass u32")
    pattern = encoder and encoder.pattern
    how = How(given.tokenizer, given.pattern, given.column or given.field, bos, eos, dtype)
    run = {
        **dataclasses.asdict(how),
        "tokenizer": encoder.digest if encoder else COLUMN,
        "made_by": ", ".join(sorted(made_by)),
        "pattern": pattern,
        "shard_tokens": given.shard_tokens,
        "inputs": [[os.path.realpath(s.path), s.size, s.changed] for s in sources],
        "file": given.tokenizer,
    }
    if encoder and not tokenizer.is_bytes(given.tokenizer):
        run["file"] = os.path.realpath(given.tokenizer)
    if encoder and encoder.note and not given.resume:
        say(encoder.note)
    output = Output(given.output, run, given.resume)
    made = Made(given.output, output.done, how, vocab if encoder else None)
    if not output.done.finished:
        workers = Workers(given.workers, how)
        try:
            _convert(workers, given, sources, output, made, most)
        finally:
            workers.end()
            progress()
    made.done = output.done
    if not made.done.tokens:
        raise Error(f"{sources[0].path}: has no documents; name other files")
    return made


# ---- the command ----


def say(text):
    print(f"tokend tokenize: {text}", file=sys.stderr, flush=True)


def _arguments(argv):
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
    add("--field", default="text", metavar="NAME",
        help="field of JSONL, column of parquet; default text")  # fmt: skip
    add("--dtype", default="auto", choices=("auto", "u16", "u32"),
        help="default: u16 if the vocabulary fits, u32 with --column")  # fmt: skip
    add("--shard-tokens", type=positive, default=1 << 28, metavar="N",
        help="tokens per shard; default 2^28")  # fmt: skip
    add("--eos", metavar="ID|TEXT",
        help="token after each document; default: the tokenizer's own, if it names one, and none "
        "with --column")  # fmt: skip
    add("--bos", metavar="ID|TEXT", help=BOS_HELP)
    add("--pattern", metavar="REGEX", help="splits text for a .tiktoken file; default GPT-2's")
    add("--workers", type=positive, metavar="N", default=len(os.sched_getaffinity(0)),
        help="processes; default: one per core")  # fmt: skip
    add("--resume", action="store_true", help="continue after the last whole shard in DIR")
    given = parser.parse_intermixed_args(argv)  # IN may follow options
    if (given.tokenizer is None) == (given.column is None):
        parser.error("pass --tokenizer for text, or --column for tokens")
    return given


def main(argv):
    given = _arguments(argv)
    begin = time.monotonic()
    kinds = documents.TABLES if given.column else documents.TEXTS
    sources, _, left_out = documents.sources_of(given.inputs, kinds, given.text)
    if not sources:
        why = next((f" ({path}: {why})" for path, why in left_out.items()), "")
        raise Error(f"{', '.join(given.inputs)}: has no documents{why}; name other files")
    for path, why in left_out.items():
        say(f"left out: {path}: {why}")
    try:
        made = make(given, sources)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = error.filename or given.output
            raise Error(f"{where}: {error.strerror}; free some space, and {RESUME}") from None
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(RESUME) from None
    done, seconds = made.done, time.monotonic() - begin
    empty = f" ({done.empty} of them empty)" if done.empty else ""
    say(
        f"{done.documents} documents{empty}, {done.tokens} tokens in {done.shards} shards of "
        f"{made.how.dtype} in {given.output}; {made.ends()}; {seconds:.1f} s, "
        f"{made.characters / 1e6 / seconds:.1f} MB/s"
    )
    print(made.config(), end="")
    return 0
