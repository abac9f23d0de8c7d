"""The user's tokenizer: a tokenizer.json of Hugging Face, a .tiktoken file (lines of base64 and
rank), or BYTES, whose tokens are bytes of UTF-8.
"""

import base64
import hashlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import re

from ..errors import Error

BYTES = "bytes"
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT2_RANKS = 50256
ENDS = "<|endoftext|> <|end_of_text|> </s> <eos> <|eos|> [EOS] <｜end▁of▁sentence｜>".split()


class Tokenizer:
    """The base of all kinds; itself, documents are tokens already.

    A special token's name in a text is encoded as ordinary characters. Kinds have decode(tokens),
    for tokens below `shown`.
    """

    vocab = shown = 0  # all tokens are below; all with a text are
    file = None  # from anywhere
    made_by = digest = "column"  # name and version of the package that encodes; of the content
    content = None  # of the file, however it is written
    pattern = None  # of a .tiktoken file, which does not contain it
    note = None  # a line for the user about this file
    begin = ()  # tokens that the file puts before each text

    def encode(self, texts):
        """Returns a sequence of tokens per text. Several threads call it at once."""
        return texts

    def number(self, text):
        """Returns the token of exactly this text, or None."""
        return None

    def text(self, tokens):
        """Returns the text of tokens. One without text is shown as <|NUMBER|>."""
        parts = []
        for known, run in itertools.groupby(tokens, lambda token: token < self.shown):
            numbers = list(run)
            parts.append(self.decode(numbers) if known else "".join(f"<|{n}|>" for n in numbers))
        return "".join(parts)

    def ends_of_text(self):
        """Returns the tokens that end a document, by their text."""
        numbers = {text: self.number(text) for text in ENDS}
        return {text: number for text, number in numbers.items() if number is not None}


class HuggingFace(Tokenizer):
    def __init__(self, data):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tokenize has its own threads
        import tokenizers

        self._made = tokenizers.Tokenizer.from_str(data.decode())
        self._made.no_truncation()  # a file for inference may truncate texts to 512 tokens
        self._made.no_padding()
        if getattr(self._made.model, "dropout", None):  # of BPE: other tokens each time
            self._made.model.dropout = None
        self.content = self._made.to_str().encode()
        self._made.encode_special_tokens = True
        self.number, file = self._made.token_to_id, json.loads(data)
        for token in file.get("added_tokens", []):
            name, number = token["content"], self.number(token["content"])
            if number != token["id"]:  # the file has gaps, which the package closes
                self.note = f"{name}: is {token['id']} in the tokenizer, but is used as {number}"
        self._split_names(tokenizers, file["model"].get("byte_fallback"))
        known = self._made.get_vocab(with_added_tokens=True).values()
        self.vocab = self.shown = max(known, default=-1) + 1
        self.made_by = f"tokenizers {tokenizers.__version__}"
        # The file's template puts tokens before and after a text. Here the text is another
        # tokenizer's: this one may have no token for any text of ours.
        text = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).encode("a")
        whole = self._made.post_process(text)
        before = whole.special_tokens_mask.index(0)
        self.begin, self._end = whole.ids[:before], whole.ids[before + 1 :]

    def ends_of_text(self):
        if self._end:
            return {str(self._made.id_to_token(number)): number for number in self._end}
        return super().ends_of_text()

    def _takes(self, name, number):
        try:
            return [word.id for word in self._made.model.tokenize(name)] == [number]
        except Exception:  # it has no token for this name, nor one for unknown words
            return False

    def _split_names(self, tokenizers, has_bytes):
        """A model, as Unigram, may take a special token's name for that token, or <0x41> for the
        byte: it is split.
        """
        added = self._made.get_added_tokens_decoder().values()
        names = [token.content for token in added if token.special and len(token.content) > 1]
        names += [f"<0x{byte:02X}>" for byte in range(256)] if has_bytes else []
        parts = [
            f"{re.escape(name[0])}(?={re.escape(name[1:])})"
            for name in names
            if self._takes(name, self.number(name))
        ]
        if parts:
            kinds, before = tokenizers.pre_tokenizers, self._made.pre_tokenizer
            split = kinds.Split(tokenizers.Regex("|".join(parts)), "merged_with_previous")
            self._made.pre_tokenizer = kinds.Sequence([before, split]) if before else split

    def encode(self, texts):
        made = self._made.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in made]

    def decode(self, tokens):
        return self._made.decode(tokens, skip_special_tokens=False)


class Tiktoken(Tokenizer):
    def __init__(self, path, data, pattern):
        self._ranks = {
            base64.b64decode(token, validate=True): int(rank)
            for token, rank in map(bytes.split, data.splitlines())
        }
        self._tokens = {rank: token for token, rank in self._ranks.items()}
        every = {bytes([byte]) for byte in range(256)}
        if not every <= self._ranks.keys() or len(self._tokens) != len(self._ranks):
            raise ValueError("has a rank twice, or no token for some byte")
        self.vocab = self.shown = max(self._tokens) + 1
        self.pattern = pattern or GPT2_PATTERN
        self._encoding = importlib.import_module("tiktoken").Encoding(
            "user", pat_str=self.pattern, mergeable_ranks=self._ranks, special_tokens={}
        )
        self.made_by = "tiktoken " + importlib.metadata.version("tiktoken")
        if pattern is None and len(self._ranks) != GPT2_RANKS:
            self.note = (
                f"{path}: does not contain its pattern, and is not GPT-2's; GPT-2's pattern is "
                "used: pass --pattern if that is wrong"
            )

    def encode(self, texts):
        made = [self._encoding.encode_ordinary(text) for text in texts]
        if list(map(self._encoding.decode_bytes, made)) != [text.encode() for text in texts]:
            raise ValueError(f"--pattern {self.pattern}: does not match all; pass one that does")
        return made

    def number(self, text):
        return self._ranks.get(text.encode())

    def ends_of_text(self):
        return {"<|endoftext|>": GPT2_RANKS} if len(self._ranks) == self.vocab == GPT2_RANKS else {}

    def decode(self, tokens):
        return b"".join(self._tokens.get(token, b"?") for token in tokens).decode(errors="replace")


class Bytes(Tokenizer):
    vocab, shown = 257, 256
    file = made_by = digest = BYTES

    def encode(self, texts):
        return [text.encode() for text in texts]

    def number(self, text):
        return 256 if text == "<|endoftext|>" else None

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")


def load(path, pattern=None):
    """Returns the Tokenizer of a file, that of BYTES, or for None that of tokens.

    @pattern: how a .tiktoken file splits text; default GPT-2's. Other files contain their own.
    """
    data = b"" if path in (None, BYTES) else pathlib.Path(path).read_bytes()
    is_ranks = re.match(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n", data)
    if pattern is not None and not is_ranks:
        raise Error(f"--pattern: is for .tiktoken files, and {path} is none; omit --pattern")
    if path in (None, BYTES):
        return Bytes() if path else Tokenizer()
    try:
        tokenizer = Tiktoken(path, data, pattern) if is_ranks else HuggingFace(data)
    except ImportError:
        raise
    except Exception as error:  # each package has its own errors
        line = " ".join(str(error).split())
        raise Error(
            f"--tokenizer {path}: not a tokenizer: {line}; name a tokenizer.json or a .tiktoken "
            "file, and --pattern must be a regex"
        ) from None
    tokenizer.file = os.path.realpath(path)
    tokenizer.digest = hashlib.sha256(tokenizer.content or data).hexdigest()
    return tokenizer
