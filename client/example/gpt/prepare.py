"""Makes token shards from text, in place of a team's own tokenising job.

The text is what each machine with torch has: code of Python's library and of torch. The tokenizer
is GPT-2's.
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

PYTHON = pathlib.Path(__file__).resolve().parents[3] / "build" / "python"
CHARACTERS = 10_000_000  # about, per dataset
TOKEN_BYTES = 2


def package(name):
    """The directory of an installed package, which is not imported."""
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def documents(directory, suffix):
    size = 0
    for path in sorted(directory.rglob("*" + suffix)):
        if path.is_file() and path.stat().st_size and size < CHARACTERS:
            size += path.stat().st_size
            yield path


def tokenize(files, output):
    # openai-whisper is installed for one file, GPT-2's vocabulary
    ranks = package("whisper") / "assets" / "gpt2.tiktoken"
    part = output.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    command = [sys.executable, "-m", "tokend", "tokenize", "--text", *files, "-o", part]
    subprocess.run(
        [*command, "--tokenizer", ranks, "--shard-tokens", "2000000"],
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
        capture_output=True,
        text=True,
        check=True,
    )
    part.rename(output)


def prepare(data):
    """Fills DATA/{python,torch,headers}, once. Returns {dataset: tokens}."""
    sources = {
        "python": (pathlib.Path(sysconfig.get_path("stdlib")), ".py"),
        "torch": (package("torch"), ".py"),
        "headers": (package("torch") / "include", ".h"),
    }
    data.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        if not (data / name).is_dir():
            tokenize(documents(*source), data / name)
    shards = {name: (data / name).glob("*.bin") for name in sources}
    return {n: sum(path.stat().st_size for path in s) // TOKEN_BYTES for n, s in shards.items()}
