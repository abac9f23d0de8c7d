"""The user's own tokenizer file, both ways: a tokenizer.json of Hugging Face, a .tiktoken file
(lines of base64 and rank) or a SentencePiece model. Which one it is, its contents tell: a .model
may be SentencePiece's or lines of ranks.
"""

import base64
import binascii
import hashlib
import itertools
import os
import re

from .._tokend import Error

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT2_RANKS = 50256
ENDS_OF_TEXT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
)
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")


class Tokenizer:
    """Text of token numbers. Those that have none of their own are shown as <|NUMBER|>, never
    dropped.
    """

    def __init__(self, decode, name):
        self._decode = decode  # of numbers whose name is None
        self._name = name

    def text(self, tokens):
        parts = []
        for special, run in itertools.groupby(tokens, lambda token: self._name(token) is not None):
            numbers = list(run)
            parts += map(self._name, numbers) if special else [self._decode(numbers)]
        return "".join(parts)


class Encoder:
    """Token numbers of text. Text is only text: what looks like a special token in it is encoded as
    the characters it is made of.
    """

    vocab = 0  # tokens are below it
    package = ""  # what made them, with its version
    pattern = None  # of a .tiktoken file, which does not hold it
    note = None  # what the user should know of this file

    def encode(self, texts):
        """A sequence of numbers for each, in one thread."""
        raise NotImplementedError

    def number(self, text):
        """The token of exactly this text, or None."""
        raise NotImplementedError

    def ends_of_text(self):
        """The file's own tokens that end a document, by their text."""
        numbers = {text: self.number(text) for text in ENDS_OF_TEXT}
        return {text: number for text, number in numbers.items() if number is not None}


def _package(name, path):
    try:
        return __import__(name)
    except ImportError:
        raise Error(
            f"--tokenizer {path}: needs the Python package {name}: pip install {name}"
        ) from None


def _version(name):
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


# ---- Hugging Face ----


def _hugging_face(path):
    return _package("tokenizers", path).Tokenizer.from_file(path)


def _hugging_face_text(path, data):
    tokenizer = _hugging_face(path)
    return Tokenizer(
        lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False),
        lambda token: None if tokenizer.id_to_token(token) is not None else f"<|{token}|>",
    )


class _HuggingFace(Encoder):
    def __init__(self, path, data, pattern):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are; read at each call
        self._tokenizer = _hugging_face(path)
        # a file made for inference may cut every text at 512 tokens
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocab = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.package = _version("tokenizers")
        self.number = self._tokenizer.token_to_id

    def encode(self, texts):
        return [
            encoding.ids
            for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]


# ---- tiktoken ----


def _ranks(path, data):
    """Token to rank."""
    ranks, used = {}, set()
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            encoded, rank = line.split()
            token, rank = base64.b64decode(encoded, validate=True), int(rank)
        except (ValueError, binascii.Error):
            raise Error(
                f"--tokenizer {path}:{number}: must be a token in base64 and its rank"
            ) from None
        if token in ranks or rank in used:
            raise Error(
                f"--tokenizer {path}:{number}: token or rank stands there twice; each must be "
                "there once"
            )
        if rank >= 2**32:
            raise Error(f"--tokenizer {path}:{number}: rank {rank}: must be below 2^32")
        ranks[token] = rank
        used.add(rank)
    return ranks


def _tiktoken_text(path, data):
    tokens = {rank: token for token, rank in _ranks(path, data).items()}
    return Tokenizer(
        lambda numbers: b"".join(map(tokens.__getitem__, numbers)).decode(errors="replace"),
        lambda number: None if number in tokens else f"<|{number}|>",
    )


class _Tiktoken(Encoder):
    def __init__(self, path, data, pattern):
        import numpy

        tiktoken = _package("tiktoken", path)
        self._ranks = _ranks(path, data)
        missing = [byte for byte in range(256) if bytes([byte]) not in self._ranks]
        if missing:
            raise Error(
                f"--tokenizer {path}: has no token for byte {missing[0]:#04x}: not every text "
                "could be encoded with it"
            )
        self.vocab = max(self._ranks.values()) + 1
        self.pattern = pattern or GPT2_PATTERN
        try:
            self._encoding = tiktoken.Encoding(
                "user", pat_str=self.pattern, mergeable_ranks=self._ranks, special_tokens={}
            )
        except Exception as error:
            raise Error(f"--pattern: {' '.join(str(error).split())}") from None
        self._lengths = numpy.zeros(self.vocab, numpy.int64)
        self._lengths[list(self._ranks.values())] = [len(token) for token in self._ranks]
        self.package = _version("tiktoken")
        if pattern is None and len(self._ranks) != GPT2_RANKS:
            self.note = (
                f"{path} does not say how it splits text, and is not GPT-2's: "
                "GPT-2's pattern is used; else give --pattern"
            )

    def encode(self, texts):
        return [self._encode(text) for text in texts]

    def _encode(self, text):
        tokens = self._encoding.encode_to_numpy(text, disallowed_special=())
        if self._lengths[tokens].sum() != len(text.encode()):
            raise Error(
                f"--pattern {self.pattern}: it matches only parts of this text, the others would "
                "be lost"
            )
        return tokens

    def number(self, text):
        return self._ranks.get(text.encode())

    def ends_of_text(self):
        return {"<|endoftext|>": GPT2_RANKS} if len(self._ranks) == self.vocab == GPT2_RANKS else {}


# ---- SentencePiece ----


def _model(path):
    return _package("sentencepiece", path).SentencePieceProcessor(model_file=path)


def _sentencepiece_text(path, data):
    model = _model(path)

    def name(token):
        if token >= model.vocab_size():
            return f"<|{token}|>"
        return (
            model.id_to_piece(token) if model.is_control(token) or model.is_unknown(token) else None
        )

    return Tokenizer(model.decode, name)


class _SentencePiece(Encoder):
    def __init__(self, path, data, pattern):
        self._model = _model(path)
        self.vocab = self._model.vocab_size()
        self.package = _version("sentencepiece")

    def encode(self, texts):
        return self._model.encode(texts, num_threads=1)

    def number(self, text):
        number = self._model.piece_to_id(text)
        return number if self._model.id_to_piece(number) == text else None

    def ends_of_text(self):
        end = self._model.eos_id()
        return {self._model.id_to_piece(end): end} if end >= 0 else super().ends_of_text()


# ---- which it is ----

_KINDS = {
    "tokenizer.json": (_hugging_face_text, _HuggingFace),
    "tiktoken": (_tiktoken_text, _Tiktoken),
    "sentencepiece": (_sentencepiece_text, _SentencePiece),
}


def _kind(data):
    if data.lstrip()[:1] == b"{":
        return "tokenizer.json"
    return "tiktoken" if _RANK_LINE.match(data) else "sentencepiece"


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Error(f"--tokenizer {path}: {error.strerror}") from None


def _load(path, data, make):
    try:
        return make()
    except Error:
        raise
    except Exception as error:  # each package has its own
        line = " ".join(str(error).split())
        raise Error(
            f"--tokenizer {path}: {line}; must be a tokenizer.json, a .tiktoken file or a "
            "SentencePiece model"
        ) from None


def load_tokenizer(path):
    data = _read(path)
    return _load(path, data, lambda: _KINDS[_kind(data)][0](path, data))


def load_encoder(path, pattern=None):
    """@pattern: how a .tiktoken file splits text; default GPT-2's. The others have their own."""
    data = _read(path)
    kind = _kind(data)
    if pattern is not None and kind != "tiktoken":
        raise Error(f"--pattern: goes with a .tiktoken file; {path} has its own")
    encoder = _load(path, data, lambda: _KINDS[kind][1](path, data, pattern))
    encoder.digest = hashlib.sha256(data).hexdigest()
    return encoder
