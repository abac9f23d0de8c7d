"""Makes token shards from real text, in place of a team's own tokenising job.

The text is code from the Python standard library and prose from two Debian documentation packages;
the tokenizer is GPT-2's. A shard is a flat file of u16 tokens; each document ends with EOS.

usage: prepare.py DATA_DIR        (reuses the shards of an earlier run)
"""

import base64
import gzip
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tarfile
import time

import numpy

VOCABULARY, EOS = 50257, 50256
SHARD_TOKENS = 2_000_000
DATASET_TOKENS = 12_000_000  # at most, per dataset
HELD_OUT = 1000  # every 1000th document goes into the validation set
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
# openai-whisper is needed for one file, GPT-2's vocabulary. It is not imported.
TOKENIZER = ("tiktoken==0.14.0", "regex", "openai-whisper==20250625")


def say(text):
    print("  " + text, flush=True)


# ---- text: (name, iterator of documents) for each dataset ----


def python_files(*roots):
    for root in roots:
        for path in sorted(pathlib.Path(root).rglob("*.py")):
            try:
                yield path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                pass  # a test file in another encoding, or a dangling link


def deb_files(deb, wanted):
    """The texts of a .deb, without unpacking it to disk."""
    unpack = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
    with unpack.stdout, tarfile.open(fileobj=unpack.stdout, mode="r|") as tar:
        for member in tar:
            if member.isfile() and wanted(member.name):
                data = tar.extractfile(member).read()
                if member.name.endswith(".gz"):
                    data = gzip.decompress(data)
                yield data.decode("utf-8", "replace")
    if unpack.wait():
        raise RuntimeError(f"{deb}: dpkg-deb cannot read it; remove it and try again")


def local_prose(roots):
    """Documentation that is already on the machine, if a package cannot be downloaded."""
    for root in roots:
        for path in sorted(pathlib.Path(root).rglob("*")):
            if path.is_file() and path.suffix in (".gz", ".txt", ".md", ".rst", ""):
                try:
                    data = path.read_bytes()
                    yield (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
                except (UnicodeDecodeError, OSError, EOFError):
                    pass  # not text


def package(name, downloads):
    """The .deb of a Debian package, downloaded once. None: the download failed."""
    found = sorted(downloads.glob(name + "_*.deb"))
    if not found:
        say(f"{name}: apt-get download")
        try:
            subprocess.run(
                ["apt-get", "download", name],
                cwd=downloads,
                check=True,
                timeout=120,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        found = sorted(downloads.glob(name + "_*.deb"))
    return found[-1] if found else None


def sources(data):
    downloads = data / "packages"
    downloads.mkdir(parents=True, exist_ok=True)
    yield (
        "code",
        python_files(
            sysconfig.get_path("stdlib"), "/usr/lib/python3", pathlib.Path(numpy.__file__).parent
        ),
    )
    for name, deb_name, wanted, instead in (
        ("manual", "python3.11-doc", lambda path: path.endswith(".txt"), ["/usr/share/man"]),
        (
            "kernel",
            "linux-doc-6.1",
            lambda path: path.endswith((".rst.gz", ".txt.gz")) and "translations" not in path,
            ["/usr/share/doc", "/usr/share/common-licenses"],
        ),
    ):
        deb = package(name=deb_name, downloads=downloads)
        if deb is None:
            say(f"{name}: cannot download {deb_name}; using {', '.join(instead)}")
        yield name, deb_files(deb, wanted) if deb else local_prose(instead)


# ---- tokens ----


def tokenizer():
    """GPT-2's byte pair encoding, from its published ranks."""
    missing = []
    for requirement in TOKENIZER:
        try:
            importlib.metadata.version(requirement.partition("==")[0])
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
    if missing:
        say("installing " + ", ".join(missing))
        pip = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--disable-pip-version-check",
                *missing,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        if pip.returncode:
            raise RuntimeError(f"pip could not install {', '.join(missing)}:\n{pip.stderr.strip()}")
        importlib.invalidate_caches()
    import tiktoken

    package_dir = pathlib.Path(importlib.util.find_spec("whisper").submodule_search_locations[0])
    ranks = {}
    for line in (package_dir / "assets" / "gpt2.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    assert len(ranks) == VOCABULARY - 1  # all but EOS
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


def tokenise(encoding, documents):
    """A u16 array per document, ending with EOS. Duplicates are dropped."""
    seen, batch, size = set(), [], 0

    def encode():
        for tokens in encoding.encode_ordinary_batch(batch, num_threads=2):
            yield numpy.array([*tokens, EOS], dtype="<u2")

    for text in documents:
        digest = hashlib.sha256(text.encode()).digest()
        if text and digest not in seen:
            seen.add(digest)
            batch.append(text)
            size += len(text)
        if size > 2_000_000:
            yield from encode()
            batch, size = [], 0
    yield from encode()


class Shards:
    """Writes documents to numbered files of about SHARD_TOKENS."""

    def __init__(self, root):
        self.root, self.pending, self.pending_tokens, self.tokens, self.files = root, [], 0, 0, []
        root.mkdir(parents=True, exist_ok=True)
        for old in root.iterdir():
            old.unlink()

    def add(self, tokens):
        self.pending.append(tokens)
        self.pending_tokens += len(tokens)
        if self.pending_tokens >= SHARD_TOKENS:
            self.flush()

    def flush(self):
        if self.pending:
            path = self.root / f"{len(self.files):03d}.bin"
            numpy.concatenate(self.pending).tofile(path)
            self.files.append(path)
            self.tokens += self.pending_tokens
            self.pending, self.pending_tokens = [], 0


# ---- preparing, once ----


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def intact(data, recipe):
    """The token counts of an earlier run with this recipe, if its shards are unchanged."""
    try:
        stamp = json.loads((data / "stamp.json").read_text())
        if stamp["recipe"] == recipe and all(
            digest(data / path) == was for path, was in stamp["shards"].items()
        ):
            return stamp["tokens"]
    except (OSError, ValueError, KeyError):
        pass
    return None


def prepare(data):
    """Fills DATA/{code,manual,kernel,valid}; returns {dataset: tokens}."""
    recipe = digest(pathlib.Path(__file__))
    tokens = intact(data, recipe)
    if tokens:
        say("reusing the shards of an earlier run")
        return tokens
    (data / "stamp.json").unlink(missing_ok=True)
    encoding = tokenizer()
    valid, tokens, files = Shards(data / "valid"), {}, []
    for name, documents in sources(data):
        shards, began, shown = Shards(data / name), time.monotonic(), time.monotonic()
        for number, document in enumerate(tokenise(encoding, documents)):
            (valid if number % HELD_OUT == HELD_OUT - 1 else shards).add(document)
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                say(
                    f"{name:7} {number + 1:6,} documents, "
                    f"{(shards.tokens + shards.pending_tokens) / 1e6:5.1f} M tokens ..."
                )
            if shards.tokens >= DATASET_TOKENS:
                break
        shards.flush()
        tokens[name] = shards.tokens
        files += shards.files
        say(
            f"{name:7} {number + 1:6,} documents, {shards.tokens / 1e6:5.1f} M tokens in "
            f"{len(shards.files)} shards, "
            f"{time.monotonic() - began:.1f} s"
        )
    valid.flush()
    tokens["valid"] = valid.tokens
    stamp = {
        "recipe": recipe,
        "tokens": tokens,
        "shards": {str(path.relative_to(data)): digest(path) for path in files + valid.files},
    }
    temporary = data / "stamp.json.tmp"
    temporary.write_text(json.dumps(stamp, indent=1))
    os.replace(temporary, data / "stamp.json")
    return tokens


if __name__ == "__main__":
    print(prepare(pathlib.Path(sys.argv[1])))
