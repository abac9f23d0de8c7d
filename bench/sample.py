"""Shards of many tokenizers, and how many of them tokend takes for something else: must be none.

    build/venv/bin/python bench/sample.py [TOKCTL]

Tokenizers are trained on text that a Linux system has: source code, manual pages, documentation,
translations. Prints one line a tokenizer; exits with 1 if a shard is refused or remarked.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SHARD_TOKENS = 500, 4_000, 100_000


def texts():
    """Of each kind at most 3 MB."""
    kinds = {
        "code": ("/usr/lib/python3*", "**/*.py", None),
        "man": ("/usr/share/man", "man[1-8]/*.gz", gzip.open),
        "doc": ("/usr/share/doc", "*/copyright", None),
        "world": ("/usr/share/locale", "*/LC_MESSAGES/*.mo", open),
    }
    for name, (root, pattern, opener) in kinds.items():
        out, size = [], 0
        for folder in sorted(Path("/").glob(root[1:])):
            for i, path in enumerate(sorted(folder.glob(pattern))):
                if size > 3_000_000:
                    break
                if name == "world" and i % 17:
                    continue  # spread over the languages
                try:
                    data = gzip.open(path).read() if opener is gzip.open else path.read_bytes()
                except OSError:
                    continue
                if name == "world":
                    data = data[len(data) // 2 :].replace(b"\0", b"\n")  # the translations
                text = data.decode("utf-8", "ignore")
                out.append(text)
                size += len(text)
        yield name, "\n".join(out)


def bpe(text, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        text.splitlines(),
        trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False),
    )
    return lambda t: tokenizer.encode(t).ids


def wordpiece(text, vocab):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    return lambda t: tokenizer.encode(t).ids


def pieces(text, vocab, kind):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text").write_text(text)
        sentencepiece.SentencePieceTrainer.train(
            input=f"{folder}/text",
            model_prefix=f"{folder}/m",
            vocab_size=vocab,
            model_type=kind,
            byte_fallback=kind == "bpe",
            hard_vocab_limit=False,
            input_sentence_size=20000,
            shuffle_input_sentence=True,
            minloglevel=2,
        )
        model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    return model.encode


def spread(encode, vocab, to):
    """The same tokenizer with a larger vocabulary: ids keep their order by frequency."""
    rng = np.random.default_rng(1)
    new = np.sort(rng.choice(to, vocab, replace=False, p=zipf(to)))
    return lambda t: new[np.asarray(encode(t))].tolist()


def zipf(n):
    p = 1 / np.arange(1, n + 1) ** 0.5
    return p / p.sum()


def shuffled(encode, vocab):
    ids = np.random.default_rng(2).permutation(vocab)
    return lambda t: ids[np.asarray(encode(t))].tolist()


def tokenizers(text):
    yield "bytes", 256, lambda t: list(t.encode())
    yield "characters", 65536, lambda t: [min(ord(c), 65535) for c in t]
    all_text = "\n".join(text.values())
    for vocab in 512, 4_096, 32_000, 50_257:
        encode = bpe(all_text, vocab)
        yield f"byte-level BPE, {vocab}", vocab, encode
    yield "the same ids shuffled", vocab, shuffled(encode, vocab)
    yield "the same, vocab 65,536", 65536, spread(encode, vocab, 65536)
    yield "the same, vocab 100,277", 100277, spread(encode, vocab, 100277)
    yield "the same, vocab 262,144", 262144, spread(encode, vocab, 262144)
    yield "WordPiece, 30,522", 30_522, wordpiece(all_text, 30_522)
    yield "sentencepiece BPE with bytes, 32,000", 32_000, pieces(all_text, 32_000, "bpe")
    yield "sentencepiece unigram, 8,000", 8_000, pieces(all_text, 8_000, "unigram")


def shards(folder, text, encode, vocab):
    rng = np.random.default_rng(3)
    for kind, t in text.items():
        ids = np.asarray(encode(t[:1_200_000]), "u4")
        assert ids.max() < vocab + 300
        for n in SHARD_TOKENS:
            for i in range(4):
                at = rng.integers(max(1, len(ids) - n))
                some = ids[at : at + n]
                for dtype in ("<u2", "<u4") if vocab <= 65536 else ("<u4",):
                    some.astype(dtype).tofile(folder / f"{kind}-{n}-{i}-{dtype[1:]}.bin")


def main(tokctl="build/gcc/bin/tokctl"):
    text, false, judged = dict(texts()), 0, 0
    print({kind: len(t) for kind, t in text.items()}, "characters")
    for name, vocab, encode in tokenizers(text):
        with tempfile.TemporaryDirectory() as folder:
            shards(Path(folder), text, encode, vocab)
            bad = []
            for dtype in "u2", "u4":
                some = sorted(map(str, Path(folder).glob(f"*-{dtype}.bin")))
                if not some:
                    continue
                option = [] if dtype == "u2" else ["--input-dtype", "u32"]
                said = subprocess.run(
                    [tokctl, "inspect", "--json", *option, *some], capture_output=True, text=True
                )
                lines = [json.loads(line) for line in said.stdout.splitlines()]
                lines = [line for line in lines if "path" in line]
                bad += [line for line in lines if line["problems"] or line["notes"]]
                judged += len(lines)
        false += len(bad)
        print(f"{name}: {len(bad)} wrong")
        for line in bad[:4]:
            print("  ", Path(line["path"]).name, line["problems"], line["notes"])
    print(f"{judged} shards, {false} taken for something else")
    return 1 if false or not judged else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
