"""Shards of many tokenizers, and how many of them tokend takes for something else: must be none.

    build/venv/bin/python bench/sample.py

Tokenizers are trained on text that a Linux system has: source code, manual pages, documentation,
translations. Prints one line a tokenizer; exits with 1 if a shard is refused or remarked.
"""

import gzip
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece
from common import BIN
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SHARD_TOKENS = 500, 4_000, 100_000
TEXTS = {
    "code": "usr/lib/python3*/**/*.py",
    "man": "usr/share/man/man[1-8]/*.gz",
    "doc": "usr/share/doc/*/copyright",
    "world": "usr/share/locale/*/LC_MESSAGES/*.mo",
}


def text_of(pattern):
    """At most 3 MB, of files that are spread over all."""
    out, paths = "", [path for path in sorted(Path("/").glob(pattern)) if path.is_file()]
    for path in paths[::17] if pattern.endswith(".mo") else paths:
        data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        if path.suffix == ".mo":
            data = data[len(data) // 2 :].replace(b"\0", b"\n")  # the translations
        out += data.decode("utf-8", "ignore")
        if len(out) > 3_000_000:
            break
    return out


def trained(model, trainer, vocab, text, before, normalizer=None, **more):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = before
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(
        text.splitlines(), trainer(vocab_size=vocab, show_progress=False, **more)
    )
    return lambda t: tokenizer.encode(t).ids


def pieces(text, vocab, kind):
    model, lines = io.BytesIO(), iter(text.splitlines())
    options = {"byte_fallback": kind == "bpe", "hard_vocab_limit": False, "minloglevel": 2}
    options |= {"input_sentence_size": 20000, "shuffle_input_sentence": True}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=vocab, model_type=kind, **options
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).encode


def tokenizers(text):
    """(name, vocabulary, text → ids)"""
    random, level = np.random.default_rng(1), pre_tokenizers.ByteLevel
    bytes_ = {"initial_alphabet": level.alphabet()}
    yield "bytes", 256, lambda t: list(t.encode())
    yield "characters", 65536, lambda t: [min(ord(c), 65535) for c in t]
    for vocab in 512, 4_096, 50_257:
        split = level(add_prefix_space=False)
        encode = trained(models.BPE(), trainers.BpeTrainer, vocab, text, split, **bytes_)
        yield f"byte-level BPE, {vocab}", vocab, encode
    for what, to in ("shuffled", vocab), ("of vocab 262,144", 262_144):
        ids = random.choice(to, vocab, replace=False)
        ids = ids if to == vocab else np.sort(ids)  # sorted: they keep their order by frequency
        yield f"the same, {what}", to, lambda t, ids=ids: ids[np.asarray(encode(t))]
    words = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()
    special, model = {"special_tokens": ["[UNK]", "[SEP]"]}, models.WordPiece(unk_token="[UNK]")
    encode = trained(model, trainers.WordPieceTrainer, 30_522, text, *words, **special)
    yield "WordPiece, 30,522", 30_522, encode
    yield "sentencepiece BPE with bytes, 32,000", 32_000, pieces(text, 32_000, "bpe")
    yield "sentencepiece unigram, 8,000", 8_000, pieces(text, 8_000, "unigram")


def write_shards(folder, texts, encode, vocab):
    random = np.random.default_rng(3)
    for kind, text in texts.items():
        ids = np.asarray(encode(text[:1_200_000]), "u4")
        for tokens in SHARD_TOKENS * 4:
            at = random.integers(max(1, len(ids) - tokens))
            for dtype in ("u2", "u4") if vocab <= 65536 else ("u4",):
                name = f"{kind}-{tokens}-{at}.{dtype}.bin"
                ids[at : at + tokens].astype(f"<{dtype}").tofile(Path(folder, name))


def main():
    texts, wrong, judged = {name: text_of(where) for name, where in TEXTS.items()}, 0, 0
    for name, vocab, encode in tokenizers("\n".join(texts.values())):
        bad = []
        with tempfile.TemporaryDirectory() as folder:
            write_shards(folder, texts, encode, vocab)
            for dtype, wide in ("u2", "u16"), ("u4", "u32"):
                if files := sorted(Path(folder).glob(f"*.{dtype}.bin")):
                    command = ("inspect", "--json", "--input-dtype", wide, *files)
                    said = subprocess.run([BIN / "tokctl", *command], capture_output=True)
                    lines = map(json.loads, said.stdout.splitlines())
                    lines = [line for line in lines if "path" in line]
                    bad += [line for line in lines if line["problems"] or line["notes"]]
                    judged += len(lines)
        wrong += len(bad)
        print(f"{name}: {len(bad)} wrong", *(line["path"] for line in bad[:4]))
    print(f"{judged} shards, {wrong} taken for something else")
    return 1 if wrong or not judged else 0


if __name__ == "__main__":
    sys.exit(main())
