"""Reads documents from .txt, .jsonl (both also .gz, .zst), .json.gz, .json.zst, .parquet and .arrow
files.
"""

import codecs
import functools
import glob
import gzip
import importlib
import io
import json
import os
import re
import typing
import zlib

from .. import _tokend, phrases
from ..errors import Error

LOOKED_AT_BYTES = 512 << 10
PART = 32 << 20  # characters of a text; tokenizers need up to a hundred times that
ROWS = 256  # of a table, in memory
TEXTS, TABLES = ("txt", "jsonl", "parquet"), ("parquet", "arrow")
ENDING = re.compile(r"\.(?:(txt|jsonl)(?:\.gz|\.zst)?|(parquet|arrow)|json\.(?:gz|zst))$")
MASKS = {*_tokend.COLUMNS_MASK}
TOKENIZERS = re.compile(r"tokenizer\.json|.*\.tiktoken")
WORDS = re.compile(r"(merges|vocab)\.txt|(tokenizer_config|vocab|(special|added)_tokens.*)\.json")
VALIDATION = {*_tokend.WORDS_VALIDATION.split()}  # in names
NOT_TEXT = "is not UTF-8 text"
MARKED = re.compile(r"\.(json\w*|ndjson|csv|tsv)(\.gz|\.zst)?$", re.I)  # texts with fields
POINTER = b"version https://git-lfs.github.com/"
UNUSED = {"__pycache__", "_temporary"}  # directories: of Python, and of jobs that did not commit
VERSIONS = "_delta_log", ".hoodie", "metadata/[0-9v]*.metadata.json"  # of Delta, Hudi and Iceberg
CONTINUED = b"\xff\xff\xff\xff"  # begins each message of Arrow 1.0
DAMAGED = OSError, EOFError, ValueError, NotImplementedError, zlib.error  # zlib's, pyarrow's


class Source(typing.NamedTuple):
    path: str
    kind: str  # in TEXTS or TABLES
    size: int
    changed: int  # mtime_ns


class Part(typing.NamedTuple):
    """A document, or a part of a long text that ends with a line."""

    where: str
    content: object  # a string, or a list of tokens
    begins: bool = True
    ends: bool = True


# ---- sources ----


def _raise(error):
    raise error


def is_pattern(path):
    return bool(set(path) & set("*?[")) and not os.path.exists(path)


def _matches(path):
    """The files and directories of a path or pattern, sorted. tokend reads the latter, too."""
    if not is_pattern(path):
        return [path]
    if "**" in path:
        raise Error(f"{path}: ** would match one level only; name the directory, all below is read")
    return [match for match in sorted(glob.glob(path)) if os.path.basename(match) not in UNUSED]


def _files(path):
    """The files at or below a path, sorted, without hidden and unused ones."""
    if not os.path.isdir(path):
        return [path]
    files, seen = [], set()
    for at, directories, names in os.walk(path, onerror=_raise, followlinks=True):
        real = os.path.realpath(at)
        if real in seen:  # links may lead to a directory above
            directories.clear()
            continue
        seen.add(real)
        directories[:] = [d for d in directories if d[0] != "." and d not in UNUSED]
        files += [os.path.join(at, name) for name in names if name[0] != "."]
    return sorted(files)


@functools.cache
def _has_versions(directory):
    """Is it in a table whose directory has the rows of older versions, too?"""
    above = os.path.dirname(directory)
    marks = (os.path.join(glob.escape(directory), mark) for mark in VERSIONS)
    return any(map(glob.glob, marks)) or (above != directory and _has_versions(above))


def words_of(path):
    return set(re.findall("[a-z]+", path.lower()))


def _is_held_out(path, kind):
    """Is it for validation by a word in its path, as c4-validation.jsonl? For text, a name must
    consist of such words, as val.txt or valid/: test_one.py may be about tests.
    """
    if kind != "txt":
        return VALIDATION & words_of(path)
    names = [words_of(name.partition(".")[0]) - {"of"} for name in path.split("/")]
    return any(words and words <= VALIDATION for words in names)


def _source(path, below, kinds, any_text):
    """Returns the Source, or why it is left out. @below: its path below what the user named."""
    status, ending = os.stat(path), ENDING.search(path)
    kind = ending and (ending[1] or ending[2] or "jsonl")
    if status.st_size == 0:
        return "is empty"
    if kind == "arrow" and os.path.basename(path).startswith("cache-"):
        return "is a cache of datasets"
    if kind not in kinds:
        if not any_text:
            return "its name ends in none of " + ", ".join(f".{kind}" for kind in kinds)
        if TOKENIZERS.fullmatch(os.path.basename(path)):
            return "is a tokenizer"
        kind = "txt"
    if below and WORDS.fullmatch(os.path.basename(path)):
        return "belongs to a tokenizer"
    if _is_held_out(below, kind):
        return "is for validation by its name"
    if any_text and kind not in TABLES and not _is_text(path):
        return NOT_TEXT
    if kind == "parquet" and _has_versions(os.path.dirname(os.path.realpath(path))):
        raise Error(f"{path}: its table has rows of older versions, too; write it as plain parquet")
    with open(path, "rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise Error(f"{path}: is a pointer of Git LFS; fetch the file (git lfs pull)")
    if path.endswith(".zst") or kind in TABLES:
        importlib.import_module("pyarrow")  # before an output is begun
    return Source(path, kind, status.st_size, status.st_mtime_ns)


def _is_text(path):
    """Does it begin with UTF-8 without NULs?"""
    with open(path, "rb") as file:
        try:
            block = _unpacked(path, file).read(LOOKED_AT_BYTES)
            decode = codecs.getincrementaldecoder("utf-8")().decode
            return "\0" not in decode(block, len(block) < LOOKED_AT_BYTES)
        except DAMAGED:
            return False


def _refuse_twice(sources):
    """No document may be taken twice: of a file next to its compressed copy, or of the parts of a
    dataset that was saved again in another number. web.parquet is a copy of web.jsonl, too.
    """
    files, saves = {}, {}
    for path in (source.path for source in sources):
        whole = re.sub(r"\.(gz|zst)$", "", ENDING.sub(".", os.path.realpath(path)))
        other = files.get(whole)
        if parts := re.search(r"\d+-of-(\d+)", whole):
            number, first = saves.setdefault(whole.replace(parts[0], ""), (parts[1], path))
            other = other or (first if number != parts[1] else None)
        if other:
            raise Error(f"{path}: {other} has the same documents, or some of them; leave one out")
        files[whole] = path


def sources_of(paths, kinds, any_text, say):
    """Returns the sources at @paths. Says which files of directories and patterns are left out.

    @any_text: files with any other ending are text if they begin with UTF-8.
    """
    sources, taken = [], {}
    for path in paths:
        found, binary = [], []
        for match, file in ((m, file) for m in _matches(path) for file in _files(m)):
            named, status = path if any_text else match, os.stat(file)
            below = "" if file == named else os.path.relpath(file, named)
            source = _source(file, below, kinds, any_text)
            if other := taken.get((status.st_dev, status.st_ino)):  # by a link of any kind
                source = f"is the same file as {other}"
            if isinstance(source, Source):
                found.append(source)
                taken[status.st_dev, status.st_ino] = file
            elif file == path:
                raise Error(f"{path}: {source}; leave it out")
            else:
                say(f"left out: {file}: {source}")
                binary += [file] if source == NOT_TEXT else []
        if not found:
            raise Error(f"{path}: has no documents; name other files")
        # zarr.json next to arrays, not the binaries in a directory of sources
        if sum(map(os.path.getsize, binary)) > 100 * sum(source.size for source in found):
            raise Error(
                f"{path}: nearly all of it, as {binary[0]}, {NOT_TEXT}; name the files of text, or "
                "a pattern in quotes"
            )
        for plain in [s.path for s in found if s.kind == "txt" and MARKED.search(s.path)][:1]:
            say(f"{plain}: is taken as plain text; for the texts in it alone, write them as .jsonl")
        sources += found
    _refuse_twice(sources)
    return sources


# ---- documents ----


def _unpacked(path, file):
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    if path.endswith(".zst"):
        return importlib.import_module("pyarrow").CompressedInputStream(file, "zstd")
    return file


def _text(source, stream):
    lines, begins = stream.readlines(PART), True
    while begins or lines:
        following = stream.readlines(PART)
        yield Part(source.path, "".join(lines), begins, not following)
        lines, begins = following, False


def _another(names):
    return f"pass another --field, or --column, of {phrases.few(names)} (not one inside another)"


def _jsonl(source, stream, field):
    def made(pairs):
        row = dict(pairs)
        if len(row) < len(pairs) and [name for name, _ in pairs].count(field) > 1:
            raise ValueError(f'"{field}" is there twice')
        return row

    decode = json.JSONDecoder(object_pairs_hook=made).decode
    for number, line in enumerate(stream, 1):
        if not line.strip(" \t\r\n"):
            continue
        where = f"{source.path}:{number}"
        try:
            row = decode(line)
            content = row[field]
        except (KeyError, TypeError):
            what = _another([*row]) if isinstance(row, dict) else "write one object a line"
            raise Error(f'{where}: no field "{field}"; {what}') from None
        except (ValueError, RecursionError) as error:
            raise Error(f"{where}: invalid JSON: {error}; write one object a line") from None
        yield Part(where, content)


def _opened(source, file, column):
    """Returns the names of a table's columns, and its batches."""
    if source.kind == "parquet":
        parquet = importlib.import_module("pyarrow.parquet")
        opened = parquet.ParquetFile(file, page_checksum_verification=True)
        return opened.schema_arrow.names, _all_rows(opened, column)
    ipc = importlib.import_module("pyarrow.ipc")
    if file.peek(6)[:6] == b"ARROW1":
        opened = ipc.open_file(file)
        batches = map(opened.get_batch, range(opened.num_record_batches))
    else:
        end = bytes(4) if file.peek(4)[:4] != CONTINUED else CONTINUED + bytes(4)
        opened = ipc.open_stream(file)
        batches = _to_end(file, opened, end)
    return opened.schema.names, batches


def _all_rows(opened, column):
    """Some versions of pyarrow leave out rows of some files."""
    rows, wanted = 0, opened.metadata.num_rows
    for batch in opened.iter_batches(ROWS, columns=[column]):
        rows += batch.num_rows
        yield batch
    if rows != wanted:
        raise ValueError(f"{rows} of {wanted} rows were read; or install another pyarrow")


def _to_end(file, batches, end):
    """pyarrow does not miss the end of an Arrow stream, and reads no second stream."""
    yield from batches
    file.seek(-len(end), os.SEEK_CUR)
    if file.read() != end:
        raise ValueError("the end marker of its Arrow stream is not at its end")


def _table(source, file, column, doubt):
    row, (names, batches) = 0, _opened(source, file, column)
    if names.count(column) != 1:
        many = f'has {names.count(column)} columns "{column}"'
        raise Error(f"{source.path}: {many}; {_another(names)}")
    doubt(source.path, {*names} - {column})
    for batch in batches:
        for value in batch.column(column).to_pylist():
            row += 1
            yield Part(f"{source.path}: row {row}", value)


def _parts(source, file, field, doubt):
    if source.kind in TABLES:
        return _table(source, file, field, doubt)
    stream = io.TextIOWrapper(_unpacked(source.path, file), "utf-8-sig", newline="\n")
    return _text(source, stream) if source.kind == "txt" else _jsonl(source, stream, field)


def read(sources, field, say, tokens=False):
    """Yields all documents as pairs of a Part and the bytes of sources up to its end. @field: of a
    line of JSONL, or a column. @tokens: documents are lists. @say: called once, if other columns
    exclude some of their tokens.
    """
    before, said = 0, not tokens

    def doubt(path, others):
        nonlocal said
        if not said and others & MASKS:
            said = True
            say(
                f"{path}: column {min(others & MASKS)} is not used: if there is padding or a "
                "prompt, it is trained on; write rows without it"
            )

    for source in sources:
        with open(source.path, "rb") as file:
            try:
                for part in _parts(source, file, field, doubt):
                    if not isinstance(part.content, list if tokens else str):
                        kind = "null" if part.content is None else type(part.content).__name__
                        wanted = "a list of tokens" if tokens else "a string"
                        raise Error(f'{part.where}: "{field}" is {kind}; must be {wanted}')
                    yield part, before + min(file.tell(), source.size)
            except UnicodeDecodeError as error:
                why = f"is not UTF-8 ({error}); convert it (iconv -t UTF-8)"
                raise Error(f"{source.path}: {why}") from None
            except DAMAGED as error:
                why = f"is damaged: {' '.join(str(error).split())}; fetch it again"
                raise Error(f"{source.path}: {why}") from None
        before += source.size
        status = os.stat(source.path)
        if (status.st_size, status.st_mtime_ns) != (source.size, source.changed):
            raise Error(f"{source.path}: was changed while it was read; start again")
