#!/usr/bin/env python3
"""Plants each bug of tests/bugs in a copy of the tree, and runs the tests that must find it
(`make keepers`; lib/planted.py).

keepers.py [WORDS…]  only the bugs whose lines contain one of the WORDS.

Exit status: 1 if a test does not find its bug, fails without it, or a patch does not apply.
"""

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent / "lib")]

import planted  # noqa: E402


def outcome(scratch, bug, passes):
    """Plants a bug. Returns what was found, in a word, and prints why if it was not."""
    try:
        for command in bug.tests:
            if command not in passes:
                scratch.make(command)
                # no failure without the bug says its words
                passes[command] = bug.says or scratch.run(command)[0] == 0
            found, said = scratch.finds(bug, command)
            if not (found and passes[command]):
                print(said[-2000:])
                return f"{'not found by' if not found else 'also without it fails'}: {command}"
    except planted.Refused as why:
        print(why)
        return "REFUSED: " + str(why).splitlines()[0]
    return "found"


def main():
    words, passes, lost = sys.argv[1:], {}, []
    chosen = [
        bug
        for bug in planted.bugs()
        if not words or any(word in f"{bug.what} {bug.tests} {bug.patch}" for word in words)
    ]
    scratch = planted.Scratch()
    for bug in chosen:
        begin = time.monotonic()
        found = outcome(scratch, bug, passes)
        if found != "found":
            lost.append(bug.what)
        print(f"{time.monotonic() - begin:6.0f} s  {bug.what}: {found}", flush=True)
    print("\n  ".join([f"{len(chosen) - len(lost)} of {len(chosen)} bugs were found; not:", *lost]))
    return 1 if lost or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
