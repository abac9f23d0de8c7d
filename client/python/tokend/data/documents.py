"""Reads documents from .txt, .jsonl (both also .gz, .zst), .parquet and .arrow files.

They come in pieces for the workers of tokenize.py. Which pieces a file has depends on its bytes and
on the versions of tokend and pyarrow, so an interrupted run skips those that are done by counting
them.
"""

import codecs
import dataclasses
import glob
import gzip
import json
import os
import re
import sys
import zlib

from .._tokend import Error

PIECE_BYTES = 512 << 10
DOCUMENT_BYTES = 32 << 20  # tokenizers need up to a hundred times that
KINDS = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
TEXTS, TABLES = ("text", "jsonl", "parquet"), ("parquet", "arrow")
TOKENIZERS = re.compile(r"tokenizer\.json|.*\.tiktoken")


@dataclasses.dataclass
class Source:
    path: str
    kind: str  # as in KINDS; None: of another ending
    packing: str  # "", .gz or .zst
    size: int
    changed: int  # mtime_ns


@dataclasses.dataclass
class Piece:
    path: str
    kind: str
    contents: object  # text: bytes; jsonl: bytes, whole lines; tables: an Arrow array
    number: int  # of its first line or row, from 1
    begins: bool = True  # a long text is a document of several pieces
    ends: bool = True
    read: int = 0  # bytes of all sources up to its end


def package(name, path):
    try:
        return __import__(name)
    except ImportError:
        raise Error(f"{path}: needs the Python package {name}; pip install {name}") from None


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


def _files(path):
    """The files that a directory or a pattern has, sorted, without hidden ones."""
    if not os.path.isdir(path):
        return sorted(filter(os.path.isfile, glob.glob(path)))
    files = []
    for at, directories, names in os.walk(path, onerror=_raise):
        directories[:] = [name for name in directories if name[0] != "."]
        files += [os.path.join(at, name) for name in names if name[0] != "."]
    return sorted(files)


def is_pattern(path):
    return bool(set(path) & set("*?[")) and not os.path.exists(path)


def sources_of(paths, kinds, any_text=False, most=sys.maxsize):
    """Returns the sources at @paths, the bytes of all, and {path: why} of the files of directories
    and patterns that are left out.

    @any_text: files with any ending are text if they are UTF-8. @most: after so many bytes, the
    other sources are only counted.
    """
    sources, left_out, size = [], {}, 0
    for path in paths:
        several = os.path.isdir(path) or is_pattern(path)
        for source in map(_source, _files(path) if several else [path]):
            if several and any_text and TOKENIZERS.fullmatch(os.path.basename(source.path)):
                continue
            if any_text and source.kind not in kinds:
                source.kind = "text"
            why = ""
            if source.size == 0:
                why = "is empty"
            elif source.kind not in kinds:
                why = "its name ends in none of " + ", ".join(k for k in KINDS if KINDS[k] in kinds)
            elif any_text and source.kind not in TABLES and not _is_text(source, most - size):
                why = "is not UTF-8 text"
            if why and not several:
                raise Error(f"{source.path}: {why}; leave it out")
            if why:
                left_out[source.path] = why
                continue
            if size < most:
                sources.append(source)
            size += source.size
    return sources, size, left_out


def _is_text(source, most):
    """Is it UTF-8 without NULs? Looks at @most bytes."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        with open(source.path, "rb") as file:
            for block in _blocks(source, file) if most > 0 else ():
                if "\0" in decode(block):
                    return False
                most -= len(block)
                if most <= 0:
                    return True
        return most <= 0 or decode(b"", True) is not None
    except (Error, UnicodeDecodeError):  # Error: it is damaged
        return False


# ---- pieces ----


def _unzstd(file, path):
    """Frame by frame: the package's own reader takes a truncated file for a whole one."""
    zstandard, frame = package("zstandard", path), None
    while packed := file.read(4096):  # unpacks to at most 128 MiB
        while packed:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(packed)
            except zstandard.ZstdError as error:
                raise EOFError(error) from None
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame:
        raise EOFError("it ends within a frame")


def _blocks(source, file):
    """Yields the unpacked file."""
    if source.packing == ".gz":
        file = gzip.GzipFile(fileobj=file)
    try:
        if source.packing == ".zst":
            yield from _unzstd(file, source.path)
        else:
            yield from iter(lambda: file.read(PIECE_BYTES), b"")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Error(f"{source.path}: is damaged: {error}; fetch it again") from None


def _lines(source, file, size):
    """Yields the unpacked file in parts of about @size bytes that end with a line."""
    held = bytearray()
    for block in _blocks(source, file):
        held += block
        while len(held) > size:
            end = held.rfind(b"\n", 0, size) + 1 or held.find(b"\n", size) + 1
            if not end:
                break
            yield bytes(held[:end])
            del held[:end]
        if len(held) > max(size, DOCUMENT_BYTES):
            raise Error(
                f"{source.path}: has a line of more than {DOCUMENT_BYTES} bytes; split it, or "
                "leave the file out"
            )
    yield bytes(held)


def _text(source, file, field):
    parts = _lines(source, file, DOCUMENT_BYTES)
    held, begins = next(parts), True
    for part in parts:
        yield Piece(source.path, "text", held, 1, begins, False)
        held, begins = part, False
    yield Piece(source.path, "text", held, 1, begins)


def _jsonl(source, file, field):
    line = 1
    for part in filter(None, _lines(source, file, PIECE_BYTES)):
        yield Piece(source.path, "jsonl", part, line)
        line += part.count(b"\n")


def _row_groups(opened, column):
    for number in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(number)
        rows = PIECE_BYTES * group.num_rows // max(group.total_byte_size, 1)
        keys = {"row_groups": [number], "columns": [column], "use_threads": False}
        yield from opened.iter_batches(max(16, min(rows, 4096)), **keys)


def _table(source, file, column):
    pyarrow, row = package("pyarrow", source.path), 1
    try:
        if source.kind == "parquet":
            import pyarrow.parquet

            opened = pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
            schema, batches = opened.schema_arrow, _row_groups(opened, column)
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
            yield Piece(source.path, source.kind, batch.column(column), row)
            row += len(batch)
    except pyarrow.ArrowException as error:
        line = " ".join(str(error).split())
        raise Error(f"{source.path}: is damaged: {line}; fetch it again") from None


READERS = {"text": _text, "jsonl": _jsonl, "parquet": _table, "arrow": _table}


def pieces(sources, field):
    """Yields all pieces. @field: of a line of JSONL, or a column."""
    before = 0
    for source in sources:
        with open(source.path, "rb") as file:
            for piece in READERS[source.kind](source, file, field):
                piece.read = before + min(file.tell(), source.size)
                yield piece
            status = os.fstat(file.fileno())
        before += source.size
        if (status.st_size, status.st_mtime_ns) != (source.size, source.changed):
            raise Error(f"{source.path}: was changed while it was read; start again")


# ---- documents of a piece ----


def _string(where, field, value):
    if not isinstance(value, str):
        kind = "null" if value is None else f"of type {type(value).__name__}"
        raise Error(f'{where}: "{field}" is {kind}, not a string')
    return value


def _of_line(where, line, field):
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: invalid JSON: {error}; write one object a line") from None
    if not isinstance(value, dict):
        raise Error(f"{where}: is not a JSON object; write one object a line")
    if field not in value:
        names = ", ".join(list(value)[:8]) or "none"
        raise Error(f'{where}: no field "{field}" (there are {names}); pass another --field')
    return _string(where, field, value[field])


def texts(piece, field):
    """Yields the documents of a piece, as strings."""
    path = piece.path
    try:
        if piece.kind in TABLES:
            for row, text in enumerate(piece.contents.to_pylist(), piece.number):
                yield _string(f"{path}: row {row}", field, text)
            return
        first = piece.begins and piece.number == 1
        whole = piece.contents.decode("utf-8-sig" if first else "utf-8")
        if piece.kind == "text":
            yield whole
            return
        for number, line in enumerate(whole.split("\n"), piece.number):
            if line.strip(" \t\r"):
                yield _of_line(f"{path}:{number}", line, field)
    except UnicodeDecodeError as error:
        raise Error(f"{path}: is not UTF-8 ({error}); convert it (iconv -t UTF-8)") from None


def tokens(piece):
    """Returns the documents of a piece, as lists of tokens. A null list is empty. In .arrow the
    column may be flat, too: then a record batch is a document.
    """
    lists = piece.contents.to_pylist()
    flat = piece.kind == "arrow" and lists and isinstance(lists[0], int)
    return [lists] if flat else [[] if one is None else one for one in lists]
