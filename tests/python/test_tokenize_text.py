"""python -m tokend.tokenize of directories with files of all kinds, of long texts, and by bytes."""

from dataclasses import replace

import numpy
from tokenizing import refused, shards, tokenize

from tokend.data.tokenize import main
from tokend.documents import pieces, sources_of

EOS = 256
LEFT_OUT = {
    "image.png": b"\x89PNG\r\n\x1a\n\0\0",
    "latin-1.py": "# \xe9t\xe9".encode("latin-1"),
    "latin-1.txt": "\xe9t\xe9\n".encode("latin-1"),
    "empty.txt": b"",
    "packed.tar.gz": b"\x1f\x8b\x08 damaged",
}
TEXTS = {
    "README.md": "# Žluťoučký kůň\n",
    "deep/er/a.py": "print()\n",
    "deep/b": "no ending",
    "z.txt": "a NUL \0 in a .txt file",
}


def documents(directory):
    """The texts of the shards in @directory, without their EOS."""
    tokens = numpy.frombuffer(b"".join(shards(directory).values()), "<u2")
    assert tokens[-1] == EOS
    parts = numpy.split(tokens, numpy.flatnonzero(tokens == EOS) + 1)[:-1]
    return [part[:-1].astype("u1").tobytes().decode() for part in parts]


def test_any_text_below_a_directory(directory):
    source = directory / "all"
    for name, contents in {**LEFT_OUT, **TEXTS, ".git/config": "hidden"}.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    ask = ("-o", directory / "out", "--tokenizer", "bytes")
    assert "the name's ending is unknown" in refused(source, *ask)
    config, said = tokenize(source, *ask, "--text")
    assert documents(directory / "out") == [text for _, text in sorted(TEXTS.items())]
    assert "empty.txt and 4 more files: empty, or not UTF-8 text; left out\n" in said
    assert "eos: 256\n" in config and "vocab: 257\n" in config
    for name in LEFT_OUT:
        (source / name).rename(directory / name)
    (directory / "only").mkdir()
    (directory / "image.png").rename(directory / "only/image.png")
    assert refused(directory / "only", *ask, "--text") == (
        f"{directory}/only/image.png: empty, or not UTF-8 text; name other files"
    )


def test_a_long_text_is_one_document(directory, monkeypatch):
    """It is read in parts that end with a line, and a run can resume at each of them."""
    monkeypatch.setattr("tokend.documents.DOCUMENT_BYTES", 1 << 20)  # for a quick test
    text = "".join(f"line {i} of žluťoučký kůň\n" for i in range(130_000))
    assert len(text.encode()) > 3 << 20
    (directory / "long.txt").write_text(text)
    (directory / "short.txt").write_text("after it")
    paths = [str(directory / name) for name in ("long.txt", "short.txt")]
    assert main([*paths, "-o", str(directory / "out"), "--tokenizer", "bytes"]) == 0
    assert documents(directory / "out") == [text, "after it"]
    sources, _ = sources_of(paths)

    def rest(*at):
        return [replace(piece, done=0) for piece in pieces(sources, "text", *at)]

    whole = rest()
    assert [piece.goes_on for piece in whole] == [True] * (len(whole) - 2) + [False, False]
    assert len(whole) > 4
    for i, piece in enumerate(whole):
        assert rest(piece.input, piece.offset, piece.line) == whole[i:]
