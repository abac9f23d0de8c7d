"""Reads documents that are already tokens: a column of .parquet or .arrow.

A list of integers is a document. In .arrow the column may be flat too: a batch is then a document.
"""

import os

from . import documents, phrases
from ._tokend import Error

ENDINGS = (".parquet", ".arrow")
_ROWS = 4096  # at most, of a batch of parquet


def sources_of(paths):
    """Returns the sources at @paths. A directory gives all .parquet and .arrow files below it."""
    found = []
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = [f for f in documents.below(path, True) if f.endswith(ENDINGS)]
            if not files:
                raise Error(f"{path}: contains no .parquet or .arrow files; name another directory")
        for file in files:
            if not file.endswith(ENDINGS):
                raise Error(f"{file}: --column takes .parquet and .arrow files; omit --column")
            found.append(documents.source_of(file, text=True))
            found[-1].kind = os.path.splitext(file)[1][1:]
            documents.package("pyarrow", file)
    return found


def reader(column, dtype):
    """As documents.pieces() takes it: makes pieces whose contents are bytes, tokens of @dtype."""

    def read(source, index, row, before):
        pyarrow = documents.package("pyarrow", source.path)
        batches = _parquet if source.kind == "parquet" else _arrow
        try:
            with open(source.path, "rb") as file:
                rows = 0
                for rows, values, share in batches(source, file, column, row):
                    yield documents.Piece(
                        index,
                        rows,
                        rows,
                        [source.path],
                        _tokens(source, column, values, rows, dtype),
                        "tokens",
                        before + int(source.size * share),
                    )
                    rows += len(values)
                if not rows and not row:
                    raise Error(f"{source.path}: {phrases.IS_EMPTY}")
                documents.check_unchanged(source, file)
        except pyarrow.ArrowException as error:
            line = " ".join(str(error).split())
            raise Error(
                f"{source.path}: the {source.kind} is damaged: {line}; fetch it again"
            ) from None

    return read


def _check(source, column, schema):
    import pyarrow.types as types

    names = ", ".join(schema.names[:8])
    if schema.names.count(column) != 1:
        raise Error(
            f'{source.path}: no column "{column}" (there are {names}); {phrases.PASS_COLUMN}'
        )
    kind = schema.field(column).type
    flat = types.is_integer(kind) and source.kind == "arrow"
    if not flat and not documents.is_tokens(types, kind):
        raise Error(
            f'{source.path}: column "{column}" is {kind}, not lists of integers; '
            f"{phrases.PASS_COLUMN}"
        )


def _parquet(source, file, column, row):
    """Yields (number of the first row, array, share of the file up to its end), from @row on."""
    import pyarrow.parquet

    first = 0
    with pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as opened:
        _check(source, column, opened.schema_arrow)
        for number in range(opened.metadata.num_row_groups):
            group = opened.metadata.row_group(number)
            if first + group.num_rows <= row:
                first += group.num_rows
                continue
            chunks = [group.column(i) for i in range(group.num_columns)]
            held = sum(
                c.total_uncompressed_size
                for c in chunks
                if c.path_in_schema.partition(".")[0] == column
            )
            share = held // max(group.num_rows, 1)
            size = max(1, min(_ROWS, documents.PIECE_BYTES // max(share, 1)))
            for batch in opened.iter_batches(
                size, row_groups=[number], columns=[column], use_threads=False
            ):
                skipped = min(max(row - first, 0), len(batch))
                first += len(batch)
                if skipped < len(batch):
                    values = batch.column(0).slice(skipped)
                    yield first - len(values), values, first / opened.metadata.num_rows


def _batches(opened):
    if hasattr(opened, "num_record_batches"):
        yield from map(opened.get_batch, range(opened.num_record_batches))
    else:
        yield from opened


def _arrow(source, file, column, row):
    """As _parquet(), for an IPC file or stream."""
    import pyarrow

    begin = file.read(6)
    file.seek(0)
    open_it = pyarrow.ipc.open_file if begin == b"ARROW1" else pyarrow.ipc.open_stream
    first = 0
    with open_it(file) as opened:
        _check(source, column, opened.schema)
        for batch in _batches(opened):
            skipped = min(max(row - first, 0), len(batch))
            first += len(batch)
            if skipped < len(batch):
                values = batch.column(column).slice(skipped)
                share = min(file.tell() / source.size, 1)
                yield first - len(values), values, share


def _tokens(source, column, lists, row, dtype):
    """The tokens of each list, as bytes. A null list is empty."""
    import pyarrow
    import pyarrow.compute as compute

    flat = pyarrow.types.is_integer(lists.type)
    lengths = [len(lists)] if flat else compute.list_value_length(lists).fill_null(0).to_pylist()
    where = f'{source.path}: rows {row} to {row + len(lists) - 1}: column "{column}"'
    values = lists if flat else lists.flatten()
    if values.null_count:
        raise Error(f"{where}: {values.null_count} tokens are null; remove these rows")
    width, kind = (2, pyarrow.uint16()) if dtype == "u16" else (4, pyarrow.uint32())
    try:
        values = values.cast(kind)
    except pyarrow.ArrowInvalid as error:
        line = " ".join(str(error).split())
        wider = "; pass --dtype u32" if dtype == "u16" else "; remove these rows"
        raise Error(f"{where}: not a token of {dtype}: {line}{wider}") from None
    data = values.buffers()[1]
    at, made = values.offset * width, []
    for length in lengths:
        made.append(data[at : at + length * width].to_pybytes() if length else b"")
        at += length * width
    return made
