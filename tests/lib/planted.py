"""Programs with a planted bug, to show that a test finds it: `program()` builds one from changed
copies of its sources, in build/planted/NAME, with the commands that make would use.
"""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build/planted"


def _commands(target, sources):
    """The commands that make would run to build @target if @sources were newer."""
    changed = [word for source in sources for word in ("-W", source)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", "V=1", *changed, target],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("-Werror ", "").splitlines()


def _one(commands, pattern):
    (command,) = [line for line in commands if re.search(pattern, line)]
    return command


def change(source, changes):
    """The text of @source with each (old, new) replaced, each once."""
    text = (ROOT / source).read_text()
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{source} contains {text.count(old)} times: {old}")
        text = text.replace(old, new)
    return text


def program(name, target, changes):
    """Builds @target, e.g. build/gcc/check/sim, with {source: [(old, new), …]} changed. Returns its
    path.
    """
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    commands = _commands(target, changes)
    built = folder / Path(target).name
    link = _one(commands, rf"-o {re.escape(target)} ").replace(f"-o {target} ", f"-o {built} ")
    for source, pairs in changes.items():
        copy, planted = folder / Path(source).name, folder / (Path(source).stem + ".o")
        copy.write_text(change(source, pairs))
        compile_ = _one(commands, rf" -c {re.escape(source)} ")
        object_ = re.search(r" -o (\S+)", compile_)[1]
        compile_ = compile_.replace(f" -c {source} ", f" -c {copy} ")
        subprocess.run(compile_.replace(object_, str(planted)), shell=True, cwd=ROOT, check=True)
        if f" {object_} " in link:
            link = link.replace(f" {object_} ", f" {planted} ")
        else:  # a member of the archive: the first definition counts
            link = re.sub(r" (\S+/all\.a)", rf" {planted} \1", link, count=1)
    subprocess.run(link, shell=True, cwd=ROOT, check=True)
    return built
