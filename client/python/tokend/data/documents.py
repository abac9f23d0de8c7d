"""Reads documents from .txt, .jsonl (both also .gz, .zst), .parquet and .arrow files."""

import codecs
import dataclasses
import glob
import gzip
import importlib
import io
import json
import os
import re
import typing
import zlib

from .._tokend import Error, version

LOOKED_AT_BYTES = 512 << 10
LONGEST = 32 << 20  # characters of a document; tokenizers need up to a hundred times that
ROWS = 256  # of a table, in memory
KINDS = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
TEXTS, TABLES = ("text", "jsonl", "parquet"), ("parquet", "arrow")
TOKENIZERS = re.compile(r"tokenizer\.json|.*\.tiktoken")
NOT_TEXT = "is not UTF-8 text"
DAMAGED = OSError, EOFError, zlib.error


@dataclasses.dataclass
class Source:
    path: str
    kind: str  # as in KINDS; None: of another ending
    packing: str  # "", .gz or .zst
    size: int
    changed: int  # mtime_ns


class Part(typing.NamedTuple):
    """A document, or a part of a long text that ends with a line."""

    where: str
    content: object  # a string, or a list of tokens
    begins: bool = True
    ends: bool = True


def package(name, path):
    try:
        return importlib.import_module(name)
    except ImportError:
        name = name.partition(".")[0]
        raise Error(f"{path}: needs the Python package {name}; pip install {name}") from None


def made_by(sources):
    """The versions of what reads these files."""
    need = [s.path for s in sources if s.kind in TABLES or s.packing == ".zst"]
    arrow = {f"pyarrow {package('pyarrow', need[0]).__version__}"} if need else set()
    return {f"tokend {version}", *arrow}


# ---- sources ----


def _source(path):
    status = os.stat(path)
    name, packing = os.path.splitext(path)
    if packing not in (".gz", ".zst"):
        name, packing = path, ""
    kind = KINDS.get(os.path.splitext(name)[1])
    kind = None if packing and kind in TABLES else kind
    return Source(path, kind, packing, status.st_size, status.st_mtime_ns)


def _raise(error):
    raise error


def is_pattern(path):
    return bool(set(path) & set("*?[")) and not os.path.exists(path)


def _files(path):
    """The files that a path stands for, sorted, without hidden ones and Python's caches."""
    if not os.path.isdir(path):
        return sorted(filter(os.path.isfile, glob.glob(path))) if is_pattern(path) else [path]
    files = []
    for at, directories, names in os.walk(path, onerror=_raise):
        directories[:] = [d for d in directories if d[0] != "." and d != "__pycache__"]
        files += [os.path.join(at, name) for name in names if name[0] != "."]
    return sorted(files)


def sources_of(paths, kinds, any_text, say):
    """Returns the sources at @paths. Says which files of directories and patterns are left out.

    @any_text: files with any ending are text if they begin with UTF-8.
    """
    sources, left_out = [], {}
    for path in paths:
        for source in map(_source, _files(path)):
            if any_text and source.kind not in kinds:
                source.kind = "text"
            why = ""
            if source.size == 0:
                why = "is empty"
            elif source.kind not in kinds:
                why = "its name ends in none of " + ", ".join(k for k in KINDS if KINDS[k] in kinds)
            elif any_text and TOKENIZERS.fullmatch(os.path.basename(source.path)):
                why = "is a tokenizer"
            elif any_text and not _is_text(source):
                why = NOT_TEXT
            if why and source.path == path:
                raise Error(f"{path}: {why}; leave it out")
            if why:
                left_out[source.path] = why
                say(f"left out: {source.path}: {why}")
            else:
                sources.append(source)
    binary = [path for path, why in left_out.items() if why == NOT_TEXT]
    # JSON alone next to binary files describes these, as in zarr
    if not sources or (binary and all(source.path.endswith(".json") for source in sources)):
        one = "".join(f" ({path}: {left_out[path]})" for path in [*binary, *left_out][:1])
        raise Error(f"{', '.join(paths)}: has no documents{one}; name other files")
    return sources


def _is_text(source):
    """Does it begin with UTF-8 without NULs?"""
    if source.kind in TABLES:
        return True
    try:
        with open(source.path, "rb") as file:
            block = _unpacked(source, file).read(LOOKED_AT_BYTES)
        decode = codecs.getincrementaldecoder("utf-8")().decode
        return "\0" not in decode(block, len(block) < LOOKED_AT_BYTES)
    except (*DAMAGED, UnicodeDecodeError):
        return False


# ---- documents ----


def _unpacked(source, file):
    """A binary stream of its own, on the same descriptor."""
    own = open(file.fileno(), "rb", closefd=False)
    if source.packing == ".gz":
        return gzip.GzipFile(fileobj=own)
    if source.packing == ".zst":
        return package("pyarrow", source.path).CompressedInputStream(own, "zstd")
    return own


def _check_length(source, line):
    if len(line) > LONGEST:
        raise Error(
            f"{source.path}: has a line of more than {LONGEST} characters; split it, or leave the "
            "file out"
        )


def _text(source, stream):
    lines, begins = stream.readlines(LONGEST), True
    while begins or lines:
        _check_length(source, max(lines, key=len, default=""))
        following = stream.readlines(LONGEST)
        yield Part(source.path, "".join(lines), begins, not following)
        lines, begins = following, False


def _jsonl(source, stream, field):
    for number, line in enumerate(stream, 1):
        _check_length(source, line)
        if not line.strip(" \t\r\n"):
            continue
        where = f"{source.path}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Error(f"{where}: invalid JSON: {error}; write one object a line") from None
        if not isinstance(value, dict):
            raise Error(f"{where}: is not a JSON object; write one object a line")
        if field not in value:
            names = ", ".join(list(value)[:8]) or "none"
            raise Error(f'{where}: no field "{field}" (there are {names}); pass another --field')
        yield Part(where, value[field])


def _table(source, file, column):
    pyarrow, row = package("pyarrow", source.path), 1
    try:
        if source.kind == "parquet":
            parquet = package("pyarrow.parquet", source.path)
            opened = parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
            schema = opened.schema_arrow
            batches = opened.iter_batches(ROWS, columns=[column], use_threads=False)
        elif file.peek(6)[:6] == b"ARROW1":
            opened = pyarrow.ipc.open_file(file)
            schema, batches = opened.schema, map(opened.get_batch, range(opened.num_record_batches))
        else:
            batches = pyarrow.ipc.open_stream(file)
            schema = batches.schema
        if schema.names.count(column) != 1:
            raise Error(
                f'{source.path}: no column "{column}" (there are {", ".join(schema.names[:8])}); '
                "pass another --field, or with tokens in it --column"
            )
        for batch in batches:
            for value in batch.column(column).to_pylist():
                yield Part(f"{source.path}: row {row}", value)
                row += 1
    except pyarrow.ArrowException as error:
        line = " ".join(str(error).split())
        raise Error(f"{source.path}: is damaged: {line}; fetch it again") from None


def _parts(source, file, field):
    if source.kind in TABLES:
        return _table(source, file, field)
    stream = io.TextIOWrapper(_unpacked(source, file), "utf-8-sig", newline="\n")
    return _text(source, stream) if source.kind == "text" else _jsonl(source, stream, field)


def read(sources, field, tokens=False):
    """Yields all documents as pairs of a Part and the bytes of sources up to its end. @field: of a
    line of JSONL, or a column. @tokens: documents are lists; null is an empty one.
    """
    before = 0
    for source in sources:
        with open(source.path, "rb") as file:
            try:
                for part in _parts(source, file, field):
                    if tokens and part.content is None:
                        part = part._replace(content=[])
                    if not isinstance(part.content, list if tokens else str):
                        kind = type(part.content).__name__
                        kind = "null" if part.content is None else f"of type {kind}"
                        wanted = "; --column takes lists of tokens" if tokens else ", not a string"
                        raise Error(f'{part.where}: "{field}" is {kind}{wanted}')
                    yield part, before + min(file.tell(), source.size)
            except UnicodeDecodeError as error:
                why = f"is not UTF-8 ({error}); convert it (iconv -t UTF-8)"
                raise Error(f"{source.path}: {why}") from None
            except DAMAGED as error:
                raise Error(f"{source.path}: is damaged: {error}; fetch it again") from None
            status = os.fstat(file.fileno())
        before += source.size
        if (status.st_size, status.st_mtime_ns) != (source.size, source.changed):
            raise Error(f"{source.path}: was changed while it was read; start again")
