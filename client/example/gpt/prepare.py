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

BUILD = pathlib.Path(__file__).resolve().parents[3] / "build"
MIB = 10  # at most, of each dataset
TOKEN_BYTES = 2


def package(name):
    """The directory of an installed package, which is not imported."""
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def prepare(data):
    """Makes the directory DATA, once. Returns {dataset: directory of shards}, and their tokens."""
    sources = {
        "python": pathlib.Path(sysconfig.get_path("stdlib")),
        "torch": package("torch") / "distributed",
        "headers": package("torch") / "include",
    }
    if not data.is_dir():
        part = data.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        # openai-whisper is installed for one file, GPT-2's vocabulary
        ranks = package("whisper") / "assets" / "gpt2.tiktoken"
        command = [sys.executable, "-m", "tokend", "init", *sources.values()]
        environment = {"PYTHONPATH": str(BUILD / "python"), "TOKEND_BIN": str(BUILD / "bin")}
        subprocess.run(
            [*command, "--tokenizer", ranks, "--most", str(MIB)],
            env={**os.environ, **environment},
            cwd=part,
            capture_output=True,
            text=True,
            check=True,
        )
        part.rename(data)
    made = {name: data / "tokens" / source.resolve().name for name, source in sources.items()}
    sizes = [path.stat().st_size for shards in made.values() for path in shards.glob("*.bin")]
    return made, sum(sizes) // TOKEN_BYTES
