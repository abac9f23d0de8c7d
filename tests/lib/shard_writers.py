"""Writers of shards in every format: (path without ending, tokens) → file. Formats with a writer
of their own use that. Those that keep documents also take a list of them, and @dtype.
"""

import functools
import io
import os
import warnings

import numpy
import pyarrow
import pyzstd
import torch
from datatrove.pipeline.tokens.tokenizer import TokenizedFile

from .mosaic import import_without_init


def npy(tokens):
    file = io.BytesIO()
    numpy.save(file, tokens)
    return file.getvalue()


def llmc(tokens):
    header = numpy.zeros(256, "<i4")
    header[:2] = (20240520, 1) if tokens.dtype.itemsize == 2 else (20240801, 7)
    header[2] = len(tokens)
    return header.tobytes() + tokens.tobytes()


def raw(tokens):
    return tokens.tobytes()


def put(ending, content):
    def write(path, tokens):
        with open(path + ending, "wb") as f:
            f.write(content(tokens))

    return write


def seekable(ending, content, frame, options=None):
    def write(path, tokens):
        with pyzstd.SeekableZstdFile(
            path + ending, "w", level_or_option=options, max_frame_content_size=frame
        ) as f:
            f.write(content(tokens))

    return write


def documents_of(tokens):
    if isinstance(tokens, list):
        return tokens
    return numpy.array_split(tokens, 5) if len(tokens) else []


def datatrove(path, tokens, dtype=None, masks=None, **how):
    file = TokenizedFile(
        os.path.dirname(path),
        os.path.basename(path) + ".ds",
        token_size=(dtype or tokens.dtype).itemsize,
        save_loss_metadata=masks is not None,
        **{"save_final_metadata": True, "tokenizer_name_or_path": "gpt2", **how},
    )
    for i, document in enumerate(documents_of(tokens)):
        file.write(document.tolist(), masks[i] if masks else None)
    file.close()


def megatron(path, tokens, dtype=None):
    with warnings.catch_warnings():  # it misses Transformer Engine and Apex, which it needs not
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    builder = IndexedDatasetBuilder(path + ".bin", dtype=(dtype or tokens.dtype).type)
    for document in documents_of(tokens):
        builder.add_item(torch.from_numpy(document.copy()))
        builder.end_document()
    builder.finalize(path + ".idx")


def arrow(path, tokens, dtype=None, column="tokens"):
    schema = pyarrow.schema([(column, pyarrow.from_numpy_dtype(dtype or tokens.dtype))])
    with pyarrow.ipc.new_file(path + ".arrow", schema) as writer:
        for document in documents_of(tokens):
            writer.write(pyarrow.record_batch([pyarrow.array(document)], schema=schema))


@functools.cache
def mds_writer():
    """Mosaic's writer."""
    import_without_init()
    from streaming.base.format.mds.writer import MDSWriter

    return MDSWriter


def mds(directory, rows, size_limit, **how):
    """Writes a directory of shards whose samples are the rows, which may differ in length."""
    with mds_writer()(
        columns={"tokens": f"ndarray:{numpy.asarray(rows[0] if len(rows) else rows).dtype.name}"},
        out=str(directory),
        size_limit=size_limit,
        **how,
    ) as writer:
        for row in rows:
            writer.write({"tokens": row})
