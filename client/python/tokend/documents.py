"""Reads documents from text files, in pieces of about PIECE_BYTES.

A piece contains whole documents, or a part of a long text that ends with a line, so memory does not
depend on the size of a file. It knows where it begins (input, offset, line): reading from there
gives the same documents again.
"""

import codecs
import dataclasses
import json
import os
import zlib

from . import phrases
from ._tokend import Error

PIECE_BYTES = 512 << 10
DOCUMENT_BYTES = 32 << 20  # tokenizers need up to a hundred times that
_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass
class Source:
    path: str
    kind: str  # text, jsonl or parquet
    packing: str  # "", gz or zst
    size: int
    changed: int  # mtime_ns


@dataclasses.dataclass
class Piece:
    input: int  # index of the first source
    offset: int  # in the unpacked file, in bytes; parquet: in rows
    line: int  # lines before it; parquet: rows
    paths: list  # text: one per document
    # text: a list of bytes; jsonl: bytes, whole lines; parquet: a list of strings; tokens: a list
    # of bytes
    contents: object
    kind: str
    done: int = 0  # bytes of the input files up to its end
    error: str = None  # instead of contents: the message
    goes_on: bool = False  # text: the next piece continues the document


def _kind_of(path):
    """Returns (kind, packing) by the name's ending. kind None: unknown."""
    name, packing = path, ""
    for ending in ("gz", "zst"):
        if name.endswith("." + ending):
            name, packing = name[: -len(ending) - 1], ending
    kind = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet"}.get(os.path.splitext(name)[1])
    return (None, packing) if kind == "parquet" and packing else (kind, packing)


def _stat(path):
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno())
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None


def source_of(path, text=False):
    """@text: a file of unknown kind is text."""
    status = _stat(path)
    kind, packing = _kind_of(path)
    if kind is None and not text:
        raise Error(
            f"{path}: the name's ending is unknown; it must be .txt or .jsonl, also with .gz or "
            ".zst, or .parquet; or pass --text"
        )
    if status.st_size == 0:
        raise Error(f"{path}: {phrases.IS_EMPTY}")
    return Source(path, kind or "text", packing, status.st_size, status.st_mtime_ns)


def is_wide(contents):
    """Is it UTF-16 or UTF-32, whose bytes are often UTF-8, too?"""
    return contents.count(b"\0") * 4 > len(contents)


def is_text(source, most=None):
    """Is the file UTF-8? If its name does not say text: without NULs. @most: read only so many
    bytes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    said = _kind_of(source.path)[0] == "text"
    length = 0
    check_packages([source])
    try:
        with open(source.path, "rb") as file:
            for block in _blocks(source, file, 0):
                if is_wide(block) or (not said and b"\0" in block):
                    return False
                decoder.decode(block)
                length += len(block)
                if most is not None and length >= most:
                    return True
        decoder.decode(b"", True)
    except (Error, UnicodeDecodeError):  # Error: damaged, so not .gz or .zst
        return False
    return True


def below(path, text):
    """The files below a directory, sorted. @text: without those in hidden directories."""
    found = []
    for at, directories, names in os.walk(path, onerror=_raise):
        if text:
            directories[:] = [name for name in directories if name[0] != "."]
        found += [os.path.join(at, name) for name in names if name[0] != "."]
    if not found:
        raise Error(f"{path}: contains no files; name another directory")
    return sorted(found)


def sources_of(paths, text=False):
    """Returns the sources at @paths, and the paths left out. A directory gives all files below it,
    sorted. @text: also those of unknown kind, and what is not text is left out.
    """
    found, left_out = [], []
    for path in paths:
        if not os.path.isdir(path):
            found.append(source_of(path, text))
            continue
        for file in below(path, text):
            if text and os.stat(file).st_size == 0:
                left_out.append(file)
                continue
            source = source_of(file, text)
            fits = not text or source.kind != "text" or is_text(source)
            (found if fits else left_out).append(source if fits else file)
    if not found:
        raise Error(f"{phrases.not_text(left_out)}; name other files")
    return found, left_out


def _raise(error):
    raise Error(f"{error.filename}: {error.strerror}")


def package(name, path):
    try:
        return __import__(name)
    except ImportError:
        raise Error(f"{path}: needs the Python package {name}; {phrases.install(name)}") from None


def check_packages(sources):
    """Fails now if a package is missing, not after hours of work."""
    for source in sources:
        if source.kind == "parquet":
            package("pyarrow", source.path)
        if source.packing == "zst":
            package("zstandard", source.path)


# ---- bytes ----


def _gunzipped(file, path):
    import gzip

    with gzip.GzipFile(fileobj=file) as unpacked:
        try:
            while block := unpacked.read(PIECE_BYTES):
                yield block
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise Error(f"{path}: the gzip is damaged: {error}; fetch it again") from None


def _unzstd(file, path):
    """Unpacks frame by frame: the package's own reader takes a truncated file for a whole one."""
    zstandard = package("zstandard", path)
    frame = None
    try:
        while packed := file.read(4096):  # unpacks to at most 128 MiB
            while packed:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(packed)
                packed = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise Error(f"{path}: the zstd is damaged: {error}; fetch it again") from None
    if frame:
        raise Error(f"{path}: the zstd is damaged: the file ends within a frame; fetch it again")


def _gathered(blocks):
    held, length = [], 0
    for block in blocks:
        held.append(block)
        length += len(block)
        if length >= PIECE_BYTES:
            yield b"".join(held)
            held, length = [], 0
    yield b"".join(held)


def _blocks(source, file, offset):
    """Yields the unpacked file from @offset on."""
    if not source.packing:
        file.seek(offset)
        while block := file.read(PIECE_BYTES):
            yield block
        return
    for block in _gathered((_gunzipped if source.packing == "gz" else _unzstd)(file, source.path)):
        skipped = min(offset, len(block))
        offset -= skipped
        if skipped < len(block):
            yield block[skipped:]


def check_unchanged(source, file):
    status = os.fstat(file.fileno())
    if (status.st_size, status.st_mtime_ns) != (source.size, source.changed):
        raise Error(f"{source.path}: was changed while it was read; {phrases.START_OVER}")


def _too_long(where, bytes_):
    return Error(
        f"{where}: a document of {bytes_} bytes or more is longer than {DOCUMENT_BYTES}; split it "
        "(split -C 16M)"
    )


# ---- pieces ----


def _text(source, index, offset, line, before):
    held, length = [], 0

    def piece(contents, goes_on):
        nonlocal offset, line
        done = min(file.tell(), source.size) if goes_on else source.size
        at = index, offset, line, [source.path], [contents], "text", before + done
        offset += len(contents)
        line += contents.count(b"\n")
        return Piece(*at, goes_on=goes_on)

    with open(source.path, "rb") as file:
        for block in _blocks(source, file, offset):
            held.append(block)
            length += len(block)
            while length > DOCUMENT_BYTES:
                whole = b"".join(held)
                # where it is cut depends only on its beginning, so a resumed run cuts there too
                cut = whole.rfind(b"\n", 0, DOCUMENT_BYTES) + 1
                if not cut:
                    raise _too_long(f"{source.path}:{line + 1}", length)
                yield piece(whole[:cut], True)
                held, length = [whole[cut:]], length - cut
        check_unchanged(source, file)
        if not length:
            raise Error(f"{source.path}: {phrases.IS_EMPTY}")
        yield piece(b"".join(held), False)


def _jsonl(source, index, offset, line, before):
    empty = offset == 0
    held, length = [], 0

    def piece(contents):
        nonlocal offset, line
        made = Piece(
            index,
            offset,
            line,
            [source.path],
            contents,
            "jsonl",
            before + min(file.tell(), source.size),
        )
        offset += len(contents)
        line += contents.count(b"\n")
        return made

    with open(source.path, "rb") as file:
        for block in _blocks(source, file, offset):
            empty = empty and not block.strip()
            cut = block.rfind(b"\n") + 1
            if cut:
                yield piece(b"".join([*held, block[:cut]]))
                held, length = [], 0
            held.append(block[cut:])
            length += len(block) - cut
            if length > DOCUMENT_BYTES:
                raise _too_long(f"{source.path}:{line + 1}", length)
        if length:
            yield piece(b"".join(held))
        check_unchanged(source, file)
    if empty:
        raise Error(f"{source.path}: {phrases.IS_EMPTY}")


def is_tokens(types, kind):
    """Is a column of this type one of lists of integers? @types: pyarrow.types."""
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return lists and types.is_integer(kind.value_type)


def _parquet_column(source, opened, field):
    pyarrow = package("pyarrow", source.path)
    schema = opened.schema_arrow
    tokens = [f.name for f in schema if is_tokens(pyarrow.types, f.type)]
    if tokens and (field not in schema.names or field in tokens):
        raise Error(
            f'{source.path}: column "{tokens[0]}" has tokens, not text; '
            f"{phrases.take_column(tokens[0], source.path)}"
        )
    if field not in schema.names:
        names = ", ".join(schema.names[:8])
        raise Error(f'{source.path}: no column "{field}" (there are {names}); {phrases.PASS_FIELD}')
    kind = schema.field(field).type
    value = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (
        pyarrow.types.is_string(value)
        or pyarrow.types.is_large_string(value)
        or str(value) == "string_view"
    ):
        raise Error(f'{source.path}: column "{field}" is {kind}, not strings; {phrases.PASS_FIELD}')


def _parquet(source, index, row, before, field):
    package("pyarrow", source.path)
    import pyarrow.parquet

    with open(source.path, "rb") as file:
        try:
            with pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as opened:
                _parquet_column(source, opened, field)
                rows = opened.metadata.num_rows
                if not rows:
                    raise Error(f"{source.path}: {phrases.IS_EMPTY}")
                for first, texts in _parquet_rows(source, opened, row, field):
                    done = before + source.size * (first + len(texts)) // rows
                    yield Piece(index, first, first, [source.path], texts, "parquet", done)
        except pyarrow.ArrowException as error:
            line = " ".join(str(error).split())
            raise Error(f"{source.path}: the parquet is damaged: {line}; fetch it again") from None
        check_unchanged(source, file)


def _parquet_rows(source, opened, row, field):
    """Yields (number of the first row, texts), from @row on."""
    first = 0
    for number in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(number)
        if first + group.num_rows <= row:
            first += group.num_rows
            continue
        names = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        share = names[field].total_uncompressed_size // max(group.num_rows, 1)
        size = max(1, min(4096, PIECE_BYTES // max(share, 1)))
        for batch in opened.iter_batches(
            size, row_groups=[number], columns=[field], use_threads=False
        ):
            skipped = min(max(row - first, 0), len(batch))
            if skipped < len(batch):
                yield (
                    first + skipped,
                    _strings(source, batch.column(0).slice(skipped), first + skipped),
                )
            first += len(batch)


def _strings(source, column, row):
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        for i, value in enumerate(column):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                raise Error(f"{source.path}: row {row + i}: {invalid(error)}") from None
        raise


def _of_source(source, index, offset, line, before, field, read):
    try:
        if read:
            yield from read(source, index, offset, before)
        elif source.kind == "text":
            yield from _text(source, index, offset, line, before)
        elif source.kind == "jsonl":
            yield from _jsonl(source, index, offset, line, before)
        else:
            yield from _parquet(source, index, offset, before, field)
    except OSError as error:
        raise Error(f"{source.path}: {error.strerror}") from None


def _together(pieces):
    """Joins the pieces of small text files."""
    held = None
    for piece in pieces:
        alone = piece.kind != "text" or piece.goes_on or piece.offset
        if held and (alone or sum(map(len, held.contents)) >= PIECE_BYTES):
            yield held
            held = None
        if alone:
            yield piece
        elif held is None:
            held = piece
        else:
            held.paths += piece.paths
            held.contents += piece.contents
            held.done = piece.done
    if held:
        yield held


def _pieces(sources, field, index, offset, line, read):
    before = sum(source.size for source in sources[:index])
    for number in range(index, len(sources)):
        yield from _of_source(sources[number], number, offset, line, before, field, read)
        before += sources[number].size
        offset = line = 0


def pieces(sources, field, index=0, offset=0, line=0, read=None):
    """Yields all pieces from there on. The last one may be an error, in its place. @read: makes
    the pieces of a source; see columns.reader().
    """
    try:
        yield from _together(_pieces(sources, field, index, offset, line, read))
    except Error as error:
        yield Piece(0, 0, 0, [], None, "", error=str(error))


# ---- documents of a piece: (where, text) ----


def invalid(error):
    byte = error.object[error.start]
    return f"byte {byte:#04x} is not UTF-8; convert the file (iconv -t UTF-8)"


def _decoded(path, contents, line):
    if is_wide(contents):
        raise Error(f"{path}: {phrases.NOT_UTF8}")
    try:
        return contents.decode()
    except UnicodeDecodeError as error:
        line += contents.count(b"\n", 0, error.start) + 1
        raise Error(f"{path}:{line}: {invalid(error)}") from None


def _kind(value):
    return {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


def _string(where, field, value):
    if not isinstance(value, str):
        raise Error(f'{where}: field "{field}" is {_kind(value)}, not a string')
    return value


def _of_line(where, line, field):
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise Error(
            f"{where}: invalid JSON at column {error.colno}: {error.msg}; write one object a line"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: invalid JSON: {error}; write one object a line") from None
    if not isinstance(value, dict):
        kind = "a string" if isinstance(value, str) else _kind(value)
        raise Error(f"{where}: {kind}, not a JSON object; write one object a line")
    if field not in value:
        names = ", ".join(list(value)[:8]) or "none"
        raise Error(f'{where}: no field "{field}" (there are {names}); {phrases.PASS_FIELD}')
    text = _string(where, field, value[field])
    if "\\ud" in line or "\\uD" in line:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Error(
                f'{where}: field "{field}" has half a surrogate pair, '
                f"\\u{ord(text[error.start]):04x}; remove it"
            ) from None
    return text


def documents(piece, field):
    """Yields (where, text or tokens) for each document of @piece. @where names it in messages."""
    if piece.kind == "text":
        for path, contents in zip(piece.paths, piece.contents, strict=True):
            contents = contents.removeprefix(_BOM) if piece.offset == 0 else contents
            yield path, _decoded(path, contents, piece.line)
    elif piece.kind == "jsonl":
        path = piece.paths[0]
        contents = piece.contents.removeprefix(_BOM) if piece.offset == 0 else piece.contents
        for number, line in enumerate(
            _decoded(path, contents, piece.line).split("\n"), piece.line + 1
        ):
            if line.strip(" \t\r"):
                yield f"{path}:{number}", _of_line(f"{path}:{number}", line, field)
    elif piece.kind == "tokens":
        for row, tokens in enumerate(piece.contents, piece.line):
            yield f"{piece.paths[0]}: row {row}", tokens
    else:
        for row, text in enumerate(piece.contents, piece.line):
            yield (
                f"{piece.paths[0]}: row {row}",
                _string(f"{piece.paths[0]}: row {row}", field, text),
            )
