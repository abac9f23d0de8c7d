"""Makes token shards from real text, in place of a team's own tokenising job.

The text is code from the Python standard library and prose from two Debian documentation packages;
the tokenizer is GPT-2's. `python -m tokend tokenize` makes the shards.

usage: prepare.py DATA_DIR        (reuses the shards of an earlier run)
"""

import gzip
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time

import numpy

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "build" / "python"
SHARD_TOKENS = 2_000_000
CHARACTERS = 40_000_000  # at most, per dataset
HELD_OUT = 1000  # every 1000th document goes into the validation set
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
    """GPT-2's byte pair encoding: a file with its published ranks."""
    missing = []
    for requirement in TOKENIZER:
        try:
            importlib.metadata.version(requirement.partition("==")[0])
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
    if missing:
        say("installing " + ", ".join(missing))
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
        done = subprocess.run(
            [*pip, "--disable-pip-version-check", *missing], stderr=subprocess.PIPE, text=True
        )
        if done.returncode:
            raise RuntimeError(
                f"pip could not install {', '.join(missing)}:\n{done.stderr.strip()}"
            )
        importlib.invalidate_caches()
    package_dir = importlib.util.find_spec("whisper").submodule_search_locations[0]
    return pathlib.Path(package_dir) / "assets" / "gpt2.tiktoken"


def unlike(documents):
    """Without duplicates and what is empty, up to CHARACTERS."""
    seen, size = set(), 0
    for text in documents:
        digest = hashlib.sha256(text.encode()).digest()
        if text and digest not in seen:
            seen.add(digest)
            size += len(text)
            yield text
        if size > CHARACTERS:
            return


def tokenise(lines, output):
    """Makes shards of a file of JSONL. Returns the number of their tokens."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "tokend", "tokenize", lines, "-o", output]
    command += ["--tokenizer", tokenizer(), "--shard-tokens", SHARD_TOKENS]
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    lines.unlink()
    return sum(path.stat().st_size for path in output.glob("*.bin")) // 2


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
    data.mkdir(parents=True, exist_ok=True)
    (data / "stamp.json").unlink(missing_ok=True)
    tokenizer()  # is installed now
    tokens, held_out = {}, data / "valid.jsonl"
    with open(held_out, "w") as valid:
        for name, documents in sources(data):
            began, lines = time.monotonic(), data / f"{name}.jsonl"
            with open(lines, "w") as rest:
                for number, text in enumerate(unlike(documents), 1):
                    file = rest if number % HELD_OUT else valid
                    file.write(json.dumps({"text": text}) + "\n")
            tokens[name] = tokenise(lines, data / name)
            say(
                f"{name:7} {number:6,} documents, {tokens[name] / 1e6:5.1f} M tokens, "
                f"{time.monotonic() - began:.1f} s"
            )
    tokens["valid"] = tokenise(held_out, data / "valid")
    shards = [path for name in tokens for path in (data / name).glob("*.bin")]
    digests = {str(path.relative_to(data)): digest(path) for path in shards}
    stamp = {"recipe": recipe, "tokens": tokens, "shards": digests}
    temporary = data / "stamp.json.tmp"
    temporary.write_text(json.dumps(stamp, indent=1))
    os.replace(temporary, data / "stamp.json")
    return tokens


if __name__ == "__main__":
    print(prepare(pathlib.Path(sys.argv[1])))
