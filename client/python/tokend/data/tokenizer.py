"""Encodes and decodes text with the user's tokenizer file.

The file is a tokenizer.json of Hugging Face, a .tiktoken file (lines of base64 and rank) or a
SentencePiece model. Its contents decide which, because a .model may be one of the last two. BYTES
is the name of a tokenizer without a file: a token is a byte of UTF-8.
"""

import array
import base64
import binascii
import hashlib
import itertools
import os
import re

from .. import phrases
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
BYTES = "bytes"
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")


class Tokenizer:
    """Decodes tokens. A token without text is shown as <|NUMBER|>."""

    def __init__(self, decode, name):
        self._name = name  # token → its text as a special token, or None
        self._decode = decode  # tokens without such a name → text

    def text(self, tokens):
        parts = []
        for special, run in itertools.groupby(tokens, lambda token: self._name(token) is not None):
            numbers = list(run)
            parts += map(self._name, numbers) if special else [self._decode(numbers)]
        return "".join(parts)


class Encoder:
    """Encodes text. A special token's name in the text is encoded as ordinary characters."""

    vocab = 0  # all tokens are below
    package = ""  # name and version of the package that encodes
    pattern = None  # of a .tiktoken file, which does not contain it
    note = None  # a line for the user about this file
    begin = ()  # tokens that the file puts before each text

    def encode(self, texts):
        """Returns a sequence of tokens per text. Uses one thread."""
        raise NotImplementedError

    def number(self, text):
        """Returns the token of exactly this text, or None."""
        raise NotImplementedError

    def ends_of_text(self):
        """Returns the file's tokens that end a document, by their text."""
        numbers = {text: self.number(text) for text in ENDS_OF_TEXT}
        return {text: number for text, number in numbers.items() if number is not None}


def _package(name, path):
    try:
        return __import__(name)
    except ImportError:
        raise Error(
            f"--tokenizer {path}: needs the Python package {name}; {phrases.install(name)}"
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
        # tokenize runs a process per core; the variable is read at each call
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._tokenizer = _hugging_face(path)
        # a file made for inference may truncate texts to 512 tokens
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocab = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.package = _version("tokenizers")
        self.number = self._tokenizer.token_to_id
        self.begin, self._end = self._around()

    def _around(self):
        """Returns the tokens that the file's template puts before and after each text."""
        one = self._tokenizer.encode("a")
        added = "".join(map(str, one.special_tokens_mask))
        before = len(added) - len(added.lstrip("1"))
        return one.ids[:before], one.ids[len(added.rstrip("1")) :]

    def ends_of_text(self):
        if len(self._end) == 1:
            return {self._tokenizer.id_to_token(self._end[0]): self._end[0]}
        return super().ends_of_text()

    def encode(self, texts):
        return [
            encoding.ids
            for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]


# ---- tiktoken ----


def _ranks(path, data):
    """Returns the ranks by token."""
    ranks, used = {}, set()
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            encoded, rank = line.split()
            token, rank = base64.b64decode(encoded, validate=True), int(rank)
        except (ValueError, binascii.Error):
            raise Error(
                f"--tokenizer {path}:{number}: not a token in base64 and its rank; name another "
                "file"
            ) from None
        if token in ranks or rank in used:
            raise Error(
                f"--tokenizer {path}:{number}: token or rank was on an earlier line; remove one"
            )
        if rank >= 2**32:
            raise Error(
                f"--tokenizer {path}:{number}: rank {rank} is not below 2^32; name another file"
            )
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
        numpy, tiktoken = _package("numpy", path), _package("tiktoken", path)
        self._ranks = _ranks(path, data)
        missing = [byte for byte in range(256) if bytes([byte]) not in self._ranks]
        if missing:
            raise Error(
                f"--tokenizer {path}: has no token for byte {missing[0]:#04x}, so it cannot encode "
                "every text; name another file"
            )
        self.vocab = max(self._ranks.values()) + 1
        self.pattern = pattern or GPT2_PATTERN
        try:
            self._encoding = tiktoken.Encoding(
                "user", pat_str=self.pattern, mergeable_ranks=self._ranks, special_tokens={}
            )
        except Exception as error:
            line = " ".join(str(error).split())
            raise Error(f"--pattern {self.pattern}: {line}; pass another") from None
        self._lengths = numpy.zeros(self.vocab, numpy.int64)
        self._lengths[list(self._ranks.values())] = [len(token) for token in self._ranks]
        self.package = _version("tiktoken")
        if pattern is None and len(self._ranks) != GPT2_RANKS:
            self.note = (
                f"{path}: does not contain its pattern, and is not GPT-2's; GPT-2's pattern is "
                "used: pass --pattern if that is wrong"
            )

    def encode(self, texts):
        return [self._encode(text) for text in texts]

    def _encode(self, text):
        tokens = self._encoding.encode_to_numpy(text, disallowed_special=())
        if self._lengths[tokens].sum() != len(text.encode()):
            raise Error(
                f"--pattern {self.pattern}: does not match all of this text; pass one that does"
            )
        return tokens.tolist()

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


# ---- bytes ----


class _Bytes(Encoder):
    vocab, end = 257, "<|endoftext|>"
    package, digest = "tokend", BYTES

    def encode(self, texts):
        return [self._encode(text.encode()) for text in texts]

    def _encode(self, text):
        wide = bytearray(2 * len(text))
        wide[::2] = text
        return array.array("H", bytes(wide))

    def number(self, text):
        return 256 if text == self.end else None

    def text(self):
        return Tokenizer(
            lambda tokens: bytes(tokens).decode(errors="replace"),
            lambda token: None if token < 256 else self.end if token == 256 else f"<|{token}|>",
        )


def is_bytes(path):
    """A file of this name is a file."""
    return str(path) == BYTES and not os.path.exists(path)


class _Columns(Encoder):
    """For documents that are tokens already, as bytes of the shards' width."""

    package, digest = "tokend", "columns"

    def encode(self, texts):
        return texts


# ---- any of them ----

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
    except Exception as error:  # each package has its own errors
        line = " ".join(str(error).split())
        raise Error(
            f"--tokenizer {path}: not a tokenizer: {line}; name a tokenizer.json, a .tiktoken file "
            "or a SentencePiece model"
        ) from None


def load_tokenizer(path):
    """Returns the Tokenizer of a file, or that of BYTES. Raises Error."""
    if is_bytes(path):
        return _Bytes().text()
    data = _read(path)
    return _load(path, data, lambda: _KINDS[_kind(data)][0](path, data))


def load_encoder(path, pattern=None):
    """Returns the Encoder of a file, or that of BYTES. Raises Error.

    @path: None for documents that are tokens. @pattern: how a .tiktoken file splits text; default
    GPT-2's. Other files contain their own.
    """
    if path is None:
        return _Columns()
    if is_bytes(path):
        if pattern is not None:
            raise Error(f"--pattern: --tokenizer {BYTES} needs none; omit --pattern")
        return _Bytes()
    data = _read(path)
    kind = _kind(data)
    if pattern is not None and kind != "tiktoken":
        raise Error(f"--pattern: {path} contains its own; omit --pattern")
    encoder = _load(path, data, lambda: _KINDS[kind][1](path, data, pattern))
    encoder.digest = hashlib.sha256(data).hexdigest()
    return encoder
