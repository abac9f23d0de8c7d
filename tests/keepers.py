#!/usr/bin/env python3
"""Plants each bug of BUGS.md, and other bugs, in a copy of the tree, and runs the test that must
find it (`make keepers`).

keepers.py [NAME…]  only the bugs whose name, commit or row contains a NAME.

A row's bug is planted by tests/bugs/COMMIT.patch; without one, the commit's changes of the product
are taken back. Then every file that the row names in its last column must have a test that fails;
a patch may name a shorter command, as other planted bugs do (lib/planted.py).

Exit status: 1 if a test does not find its bug, fails without it, or a patch does not apply.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/lib")]

import planted  # noqa: E402

RUN = "build/venv/bin/python tests/run"
NAMES = {  # of the tests in a folder, for tests/run
    "system": "test_{}",
    "python": "'python test_{}'",
    "objects": "--objects {}",
    "trainers": "--trainers {}",
}


def rows():
    """The rows of BUGS.md: (bug, [commit, …], cell that names the keeper)."""
    for line in (ROOT / "tests/BUGS.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        commits = re.findall(r"\b[0-9a-f]{7}\b", cells[-2] if len(cells) > 2 else "")
        if commits:
            yield cells[0], commits, cells[-1]


def commands(cell):
    """The commands that run the tests named in a cell."""
    for folder, name in re.findall(r"`(system|python|objects|trainers)/test_(\w+)\.py`", cell):
        yield f"{RUN} {NAMES[folder].format(name)}"
    for name in re.findall(r"`(?:unit/)?(test_power_cut|(?<=unit/)test_\w+)(?:\.c)?`", cell):
        yield f"build/gcc/check/{name}"
    for target in re.findall(r"`fuzz(?:/regressions/|_)(\w+)", cell):
        program = f"build/asan/check/fuzz-{target}"  # make() builds what is named
        yield f"build/venv/bin/python tests/fuzz/run.py --seconds 0 {target} # {program}"
    if cell.startswith("`sim`"):
        yield "build/asan/check/sim --seconds 300 --no-shrink --seed 1"


def reverted(commits):
    """A patch that takes back the commits' changes of the product."""
    show = ["git", "show", "-R", "--format=", *reversed(commits), "--", "proto", "daemon", "client"]
    done = subprocess.run(show, cwd=ROOT, capture_output=True, text=True)
    if done.returncode or not done.stdout:
        raise planted.Refused(f"no tests/bugs/{commits[0]}.patch, and no commit in this clone")
    return done.stdout


def bugs():
    """All bugs: {name: (bug, commits, [command that its rows name, …])}."""
    found = {}
    for bug, commits, cell in rows():
        if not cell.startswith(("none", "`bench/")):
            _, _, runs = found.setdefault(commits[0], (bug, commits, []))
            runs += [command for command in commands(cell) if command not in runs]
    for patch in sorted(planted.BUGS.glob("*.patch")):
        found.setdefault(patch.stem, ("", [], []))
    return found


def kept(scratch, name, commits, runs, passes):
    """Plants a bug. Returns what was found, in a word, and prints why if it was not."""
    path = planted.BUGS / f"{name}.patch"
    try:
        patch = path.read_text() if path.exists() else reverted(commits)
        runs = planted.header(patch, "test") or runs
        if not runs:
            return "no test is named"
        for command in runs:
            if command not in passes:
                scratch.make(command)
                words = planted.header(patch, "says")  # no failure without the bug says these
                passes[command] = words or scratch.run(command)[0] == 0
            found, said = scratch.finds(patch, command)
            if not (found and passes[command]):
                print(said[-2000:])
                return f"{'not found by' if not found else 'also without it fails'}: {command}"
    except planted.Refused as why:
        print(why)
        return "REFUSED: " + str(why).splitlines()[0]
    return "found"


def main():
    words, passes, lost = sys.argv[1:], {}, []
    chosen = {
        name: bug
        for name, bug in bugs().items()
        if not words or any(word in f"{name} {bug}" for word in words)
    }
    scratch = planted.Scratch()
    for name, (bug, commits, runs) in chosen.items():
        begin = time.monotonic()
        outcome = kept(scratch, name, commits, runs, passes)
        if outcome != "found":
            lost.append(name)
        print(f"{time.monotonic() - begin:6.0f} s  {name} {bug}: {outcome}", flush=True)
    print(f"{len(chosen) - len(lost)} of {len(chosen)} bugs were found; not: {' '.join(lost)}")
    return 1 if lost or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
