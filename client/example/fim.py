"""Fill-in-the-middle as a transform: python fim.py CONFIG [WORKERS].

Half of all documents are cut into three parts and reordered as <pre> prefix <suf> suffix <mid>
middle, so that a model learns to fill a gap. The row keeps its length: the document's last three
tokens make room for the special tokens.
"""

import sys

import numpy
import tokend
from numpy.typing import NDArray

EOS, PRE, SUF, MID = 0, 50257, 50258, 50259  # set those of your tokenizer
RATE = 0.5


def cut(document: NDArray[numpy.int64], rng: numpy.random.Generator) -> NDArray[numpy.int64]:
    """Reorders one document without its eos."""
    a, b = numpy.sort(rng.integers(0, len(document) - 2, 2))
    prefix, middle, suffix = document[:a], document[a:b], document[b : len(document) - 3]
    return numpy.concatenate(([PRE], prefix, [SUF], suffix, [MID], middle))


def fim(
    tokens: NDArray[numpy.int64], position: int, rng: numpy.random.Generator
) -> NDArray[numpy.int64]:
    begin = 0
    for end in [*numpy.flatnonzero(tokens == EOS), len(tokens)]:
        if end - begin > 8 and rng.random() < RATE:
            tokens[begin:end] = cut(tokens[begin:end], rng)
        begin = end + 1
    return tokens


if __name__ == "__main__":  # worker processes import this file
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tokend.Loader(
        "train", 4, config=sys.argv[1], documents=True, transform=fim, workers=workers
    ) as data:
        for _, batch in zip(range(3), data):
            special = [int((batch["input_ids"] == token).sum()) for token in (PRE, SUF, MID)]
            print("samples", batch["position"].tolist(), "special", special)
