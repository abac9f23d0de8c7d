"""python -m tokend.tokenize: makes flat token shards from text, or from columns of tokens.

    python -m tokend.tokenize web/*.jsonl.zst -o /data/web --tokenizer tokenizer.json
    python -m tokend.tokenize books/ -o /data/books --tokenizer gpt2.tiktoken --resume > tokend.yaml
    python -m tokend.tokenize tokenized/*.parquet -o /data/web --column input_ids

A document is a .txt file, the --field of a line of .jsonl, or the --field of a row of .parquet.
With --text any other file of UTF-8 text is a document too. Files may be compressed (.gz, .zst),
except .parquet. A document begins with the BOS that a tokenizer.json's template names, and an EOS
token follows it. With --column, documents are lists of integers
in a column of .parquet or .arrow, and --eos is optional. All shards but the last contain
--shard-tokens tokens. Their bytes do not depend on the number of workers. Special
tokens' names in the text are encoded as ordinary text. At the end, a config for these shards is
printed to stdout.
"""

import array
import collections
import concurrent.futures
import concurrent.futures.process
import contextlib
import dataclasses
import errno
import fcntl
import json
import multiprocessing
import os
import signal
import sys
import threading

from .. import columns, documents, phrases
from .._tokend import Error, version
from .parser import Parser
from .progress import Progress
from .tokenizer import BYTES, is_bytes, load_encoder

RUN = ".tokenize.json"  # options and inputs
DONE = ".tokenize.done.json"  # progress: replaced after each shard
LOOK_S = 2  # between two looks for dead workers, while none sends a result
MOST_SHARDS = 100_000  # names have five digits, so that they sort by number
LABEL_BYTES = 64
NONE = "none"
BOS_HELP = (
    f"token before each document, or {NONE}; default: what a tokenizer.json's template puts there"
)
WIDTH = {"u16": 2, "u32": 4}
TYPECODE = {2: "H", 4: "I"}  # of arrays; both tokens and these machines are little-endian


# ---- workers ----

_worker = None


class _Worker:
    def __init__(self, tokenizer, pattern, field, bos, eos, width):
        self.encoder = load_encoder(tokenizer, pattern)
        self.field, self.bos, self.eos, self.width = field, bos, eos, width

    def _numbers(self, places, texts):
        try:
            return self.encoder.encode(texts)
        except Exception:  # find the text that fails
            for place, text in zip(places, texts, strict=True):
                try:
                    self.encoder.encode([text])
                except Error as error:
                    raise Error(f"{place}: {error}") from None
                except Exception as error:
                    line = " ".join(str(error).split())
                    raise Error(f"{place}: {line}; remove this document") from None
            raise

    def tokens(self, piece):
        """Returns (tokens as bytes, documents, empty documents, characters)."""
        places, texts = [], []
        for place, text in documents.documents(piece, self.field):
            places.append(place)
            texts.append(text)
        numbers = self._numbers(places, texts) if texts else []
        whole = array.array(TYPECODE[self.width])
        bos = [] if piece.kind == "text" and piece.offset else self.bos  # [] within a document
        for of_one in numbers:
            whole.extend(bos)
            whole += array.array(TYPECODE[self.width], of_one)
            if self.eos is not None:
                whole.append(self.eos)
        if piece.goes_on:
            whole.pop()
        ended = len(texts) - piece.goes_on
        return whole.tobytes(), ended, sum(not text for text in texts), sum(map(len, texts))


def _begin_worker(*arguments):
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = _Worker(*arguments)


def _end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(piece):
    try:
        return _worker.tokens(piece)
    except Error as error:
        return str(error)


# ---- the output ----


@dataclasses.dataclass
class Done:
    """The progress: whole shards, and the piece of text that continues after them. Some of the
    piece's tokens may be in these shards.
    """

    shards: int = 0
    input: int = 0  # place of the piece, as documents.Piece
    offset: int = 0
    line: int = 0
    documents: int = 0  # before the piece
    empty: int = 0
    tokens: int = 0
    finished: bool = False


class Output:
    """Writes shards to a directory: each as a part file, synced, renamed, then noted in DONE."""

    def __init__(self, path, run, resume):
        self.path = path
        self.run = run
        self.size = run["shard_tokens"] * WIDTH[run["dtype"]]
        self.done = Done()
        self._part = None
        self._held = 0  # bytes in the part file
        self._open(resume)

    def _open(self, resume):
        os.makedirs(self.path, exist_ok=True)
        self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Error(
                f"{self.path}: another tokend.tokenize writes to it; name another directory"
            ) from None
        if set(os.listdir(self.path)) <= {RUN + ".part"}:
            self._save(RUN, self.run)
        elif not resume:
            raise Error(f"{self.path}: is not empty; name another directory, or {phrases.RESUME}")
        else:
            self._resume()

    def _load(self, name):
        try:
            with open(os.path.join(self.path, name)) as file:
                return json.load(file)
        except FileNotFoundError:
            return None
        except ValueError:
            raise Error(f"{self.path}/{name}: not JSON; {phrases.START_OVER}") from None

    def _resume(self):
        run = self._load(RUN)
        if run is None:
            raise Error(
                f"{self.path}: --resume: contains other files, but no run of tokend.tokenize; name "
                "another directory"
            )
        run.setdefault("bos", [])  # of a version that added none
        for key, now in self.run.items():
            if key != "file" and run.get(key) != now:
                difference = _difference(key, run.get(key), now)
                raise Error(f"{self.path}: --resume: {difference}; {phrases.START_OVER}")
        with contextlib.suppress(TypeError):  # written by another version
            self.done = Done(**(self._load(DONE) or {}))
        for number in range(self.done.shards):
            self._check(number, number + 1 == self.done.shards and self.done.finished)

    def _check(self, number, last):
        path = os.path.join(self.path, _name(number))
        size = os.stat(path).st_size if os.path.exists(path) else 0
        if size != self.size and not (last and 0 < size < self.size):
            raise Error(f"{path}: has {size} bytes instead of {self.size}; {phrases.START_OVER}")

    def _save(self, name, value):
        with open(os.path.join(self.path, name + ".part"), "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        self._rename(name + ".part", name)

    def _rename(self, old, new):
        os.replace(os.path.join(self.path, old), os.path.join(self.path, new))
        os.fsync(self._directory)

    def write(self, data, place, before):
        """Appends the tokens @data of the piece at @place, without those already written.

        @before: a Done, the counts before this piece.
        """
        width = WIDTH[self.run["dtype"]]
        skip = (self.done.shards * self.run["shard_tokens"] - before.tokens) * width + self._held
        data = memoryview(data)[max(skip, 0) :]
        while data:
            if self._part is None:
                if self.done.shards == MOST_SHARDS:
                    raise Error(
                        f"--shard-tokens {self.run['shard_tokens']}: makes more than {MOST_SHARDS} "
                        "shards; pass a larger number"
                    )
                self._part = open(self._part_path(), "wb", buffering=0)
            written = self._part.write(data[: self.size - self._held])
            self._held += written
            data = data[written:]
            if self._held == self.size:
                self._close(before, place)

    def _part_path(self):
        return os.path.join(self.path, f".{_name(self.done.shards)}.part")

    def _close(self, before, place, finished=False):
        if self._part:
            os.fsync(self._part.fileno())
            self._part.close()
            self._rename(os.path.basename(self._part_path()), _name(self.done.shards))
            self.done.shards += 1
        self._part, self._held = None, 0
        shards = self.done.shards
        self.done = dataclasses.replace(before, shards=shards, finished=finished)
        if place:
            self.done.input, self.done.offset, self.done.line = place
        self._save(DONE, dataclasses.asdict(self.done))

    def finish(self, total):
        self._close(total, None, True)


def _name(number):
    return f"{number:05}.bin"


def _difference(key, then, now):
    if key == "inputs":
        if isinstance(then, list) and len(then) == len(now):
            then, now = next((a, b) for a, b in zip(then, now, strict=True) if a != b)
            if then[0] == now[0]:
                return f"{now[0]} has changed (size or time)"
            return f"the inputs had {then[0]}, now {now[0]}"
        return f"the inputs were {len(then or [])} files, now {len(now)}"
    if key == "tokenizer":
        return "the tokenizer's file has changed"
    return f"{key.replace('_', '-')} was {then}, now {now}"


# ---- the run ----


def _submit(pool, piece):
    """A worker that begins does not see Ctrl-C, not even before _begin_worker()."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_work, piece)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _result(pool, future):
    """The pool waits for ever for the rest of a result whose worker died while it sent it."""
    while not concurrent.futures.wait([future], LOOK_S).done:
        if any(worker.exitcode is not None for worker in [*pool._processes.values()]):
            raise concurrent.futures.process.BrokenProcessPool
    return future.result()


def _results(pool, pieces, window):
    """Yields (place, bytes of input read, result) in the order of the pieces. At most @window of
    them are in memory.
    """
    pending = collections.deque()

    def first():
        place, done, future = pending.popleft()
        result = future if isinstance(future, str) else _result(pool, future)
        if isinstance(result, str):
            raise Error(result)
        return place, done, result

    for piece in pieces:
        pending.append(
            (
                (piece.input, piece.offset, piece.line),
                piece.done,
                piece.error or _submit(pool, piece),
            )
        )
        piece = None
        if len(pending) >= window:
            yield first()
    while pending:
        yield first()


def _until(most, pieces):
    for piece in pieces:
        yield piece
        if most is not None and piece.done >= most:
            return


def _convert(pool, window, sources, given, output, progress, most):
    """Converts all text; with @most, up to the first piece that ends after so many bytes."""
    count = dataclasses.replace(output.done)
    read = columns.reader(given.column, output.run["dtype"]) if given.column else None
    pieces = documents.pieces(sources, given.field, count.input, count.offset, count.line, read)
    pieces = _until(most, pieces)
    for place, read, (data, number, empty, characters) in _results(pool, pieces, window):
        output.write(data, place, count)
        count.documents += number
        count.empty += empty
        count.tokens += len(data) // WIDTH[output.run["dtype"]]
        progress.add(read, count, characters)
    output.finish(count)


def _token(option, given, encoder, path):
    """Returns the token that --eos or --bos names. @path: of the tokenizer; None: of tokens."""
    if path is None:
        if not (given.isdecimal() and int(given) < 2**32):
            raise Error(f"{option} {given}: there is no tokenizer; pass the token's number")
        return int(given)
    if given.isascii() and given.isdigit():
        number = int(given)
        # a .tiktoken file does not contain its special tokens
        most = 2**32 if encoder.pattern else encoder.vocab
        if number >= most:
            raise Error(f"{option} {given}: {path} has no such token; pass a number below {most}")
        return number
    number = encoder.number(given)
    if number is None:
        raise Error(f"{option} {given}: {path} has no such token; pass its number, or another text")
    return number


def _bos(given, encoder, path):
    """Returns the tokens before each document."""
    if given is None or given == NONE:
        return [] if given else list(encoder.begin)
    return [_token("--bos", given, encoder, path)]


def _eos(given, encoder, path):
    """Returns the EOS token. @path: of the tokenizer. None: of tokens, for which it is optional."""
    if given is None:
        if path is None:
            return None
        ends = encoder.ends_of_text()
        if len(ends) != 1:
            known = (
                f"has several tokens that end a text ({', '.join(ends)})"
                if ends
                else "does not name the token that ends a text"
            )
            raise Error(f"--eos: {path} {known}; pass its number or its text")
        return next(iter(ends.values()))
    return _token("--eos", given, encoder, path)


def _dtype(given, vocab):
    if given == "u16" and vocab > 1 << 16:
        raise Error(f"--dtype u16: cannot hold the vocabulary's {vocab} tokens; pass u32")
    return ("u16" if vocab <= 1 << 16 else "u32") if given == "auto" else given


def noted_tokenizer(directory):
    """The tokenizer of the shards in a directory: BYTES, or a file that is still there. None: it is
    unknown.
    """
    try:
        with open(os.path.join(directory, RUN)) as file:
            noted = json.load(file)["file"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return noted if noted and (noted == BYTES or os.path.exists(noted)) else None


def label(name):
    """The name as a dataset may have it."""
    text = "".join(c for c in name if c.isprintable())
    return text.encode(errors="ignore")[:LABEL_BYTES].decode(errors="ignore") or "text"


def config(path, dtype, eos, vocab):
    """Returns a config that serves @path."""
    path = os.path.realpath(path)
    name = label(os.path.basename(path))
    known = "".join(
        f"    {key}: {value}\n"
        for key, value in (("eos", eos), ("vocab", vocab))
        if value is not None
    )
    if vocab is None:
        known += (
            "    # vocab: 50257  # set your tokenizer's: a token not below it stops the stream\n"
        )
    quoted = [json.dumps(text, ensure_ascii=False) for text in (name, path)]
    return f"""streams:
  train:
    seed: 42
    seq_len: 2048
{known}    datasets:
      - {{name: {quoted[0]}, path: {quoted[1]}, dtype: {dtype}}}
"""


def _say(text):
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # removes the line of progress
    print(f"{clear}tokend.tokenize: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass
class Made:
    """The shards of a run."""

    done: Done
    dtype: str
    bos: list
    eos: int
    vocab: int
    progress: Progress

    def ends(self):
        """The tokens added to each document, in words."""
        bos = f"BOS {', '.join(map(str, self.bos))}" if self.bos else "no BOS"
        return f"{bos}, {'no EOS' if self.eos is None else f'EOS {self.eos}'}"


def _tokenizer_file(tokenizer):
    if tokenizer is None:
        return None
    return BYTES if is_bytes(tokenizer) else os.path.realpath(tokenizer)


def _run(given, sources, encoder, bos, eos, dtype):
    return {
        "version": 1,
        "field": given.field,
        "column": given.column,
        "dtype": dtype,
        "shard_tokens": given.shard_tokens,
        "bos": bos,
        "eos": eos,
        "pattern": encoder.pattern,
        "tokenizer": encoder.digest,
        "package": encoder.package,
        "inputs": [
            [os.path.realpath(source.path), source.size, source.changed] for source in sources
        ],
        "file": _tokenizer_file(given.tokenizer),
    }


def make(given, sources, most=None):
    """Makes the shards. Returns Made, with the counts of documents and tokens. @most: the end is
    after so many bytes of input; default: all.
    """
    documents.check_packages(sources)
    encoder = load_encoder(given.tokenizer, given.pattern)
    bos = _bos(given.bos, encoder, given.tokenizer)
    eos = _eos(given.eos, encoder, given.tokenizer)
    least = max([-1, *bos, -1 if eos is None else eos]) + 1
    if given.column:  # the vocabulary is unknown
        vocab = None
        dtype = "u32" if given.dtype == "auto" else given.dtype
        _dtype(dtype, least)
    else:
        vocab = max(encoder.vocab, least)
        dtype = _dtype(given.dtype, vocab)
    if encoder.note and not given.resume:
        _say(encoder.note)
    output = Output(given.output, _run(given, sources, encoder, bos, eos, dtype), given.resume)
    size = sum(source.size for source in sources)
    most = most if most is not None and most < size else None
    progress = Progress(most or size, sys.stderr.isatty())
    if not output.done.finished:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's, in every worker
        # for a process that ends before its pool
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
        workers = (given.tokenizer, given.pattern, given.field, bos, eos, WIDTH[dtype])
        with concurrent.futures.ProcessPoolExecutor(
            given.workers, multiprocessing.get_context("spawn"), _begin_worker, workers
        ) as pool:
            try:
                _convert(pool, 4 * given.workers + 4, sources, given, output, progress, most)
            except concurrent.futures.process.BrokenProcessPool:
                _say(f"--workers: a worker died (out of memory?); pass fewer, and {phrases.RESUME}")
                # Python before 3.11.6 waits for ever to send work to dead workers
                os._exit(1)
            except BaseException:
                # Without waiting, its thread may wake a pipe that is closed at exit.
                pool.shutdown(cancel_futures=True)
                raise
    progress.say("")
    return Made(output.done, dtype, bos, eos, vocab, progress)


def _sources(given):
    if given.column:
        return columns.sources_of(given.inputs), []
    return documents.sources_of(given.inputs, given.text)


def tokenize(given):
    sources, skipped = _sources(given)
    if skipped:
        _say(f"{phrases.not_text(skipped)}; left out")
    made = make(given, sources)
    done, progress = made.done, made.progress
    empty = f" ({done.empty} of them empty)" if done.empty else ""
    print(
        f"tokend.tokenize: {done.documents} documents{empty}, {done.tokens} tokens in "
        f"{done.shards} shards of {made.dtype}"
        f" in {given.output}; {made.ends()}; {progress.seconds():.1f} s, "
        f"{progress.rate():.1f} MB/s",
        file=sys.stderr,
    )
    print(config(given.output, made.dtype, made.eos, made.vocab), end="")
    return 0


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


positive.__name__ = "number ≥ 1"


def _arguments(argv):
    parser = Parser(
        prog="python -m tokend.tokenize",
        description="Makes flat token shards from text, JSONL or parquet, with EOS after each "
        "document. Prints a config for them.",
        epilog="Names of special tokens in the text are encoded as ordinary text.",
    )
    parser.add_argument("--version", action="version", version=f"tokend {version}")
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="IN",
        help=".txt, .jsonl (also .gz, .zst), .parquet, or a directory of them",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="a new or empty directory"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json, .tiktoken or a SentencePiece model; or bytes: a token is a byte",
    )
    parser.add_argument(
        "--column",
        metavar="NAME",
        help="instead of --tokenizer: column of .parquet or .arrow with lists of tokens",
    )
    parser.add_argument(
        "--text",
        action="store_true",
        help="take files with any other ending too, if they contain UTF-8 text",
    )
    parser.add_argument(
        "--field",
        default="text",
        metavar="NAME",
        help="field of JSONL, column of parquet; default text",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "u16", "u32"),
        help="default: u16 if the vocabulary fits, u32 with --column",
    )
    parser.add_argument(
        "--shard-tokens",
        type=positive,
        default=1 << 28,
        metavar="N",
        help="tokens per shard; default 2^28",
    )
    parser.add_argument(
        "--eos",
        metavar="ID|TEXT",
        help="token after each document; default: the tokenizer's own, if it names one, and none "
        "with --column",
    )
    parser.add_argument("--bos", metavar="ID|TEXT", help=BOS_HELP)
    parser.add_argument(
        "--pattern", metavar="REGEX", help="splits text for a .tiktoken file; default GPT-2's"
    )
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="processes; default: one per core"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue after the last whole shard in DIR"
    )
    given = parser.parse_intermixed_args(argv)  # IN may follow options
    if (given.tokenizer is None) == (given.column is None):
        parser.error("pass --tokenizer for text, or --column for tokens")
    given.workers = given.workers or len(os.sched_getaffinity(0))
    return given


def main(argv=None):
    given = _arguments(argv)
    try:
        return tokenize(given)
    except Error as error:
        text, status = str(error), 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        more = f"; free some space, and {phrases.RESUME}" if full else ""
        text, status = f"{error.filename or given.output}: {error.strerror or error}{more}", 1
    except KeyboardInterrupt:
        text, status = f"interrupted; {phrases.RESUME}", 130
    _say(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
