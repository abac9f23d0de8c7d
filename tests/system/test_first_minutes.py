"""The README's first steps, by copy and paste: an unprivileged user, a fresh virtual environment,
text of one's own. It prints what a person would see, and when.
"""

import os
import subprocess
import time

from newcomer import end_daemons, home_of

from lib import REPO, run
from lib.pages import blocks, console, missing

HEADING = "\n## Start with your text"
MADE = "state/", "tokend.yaml", "tokens/", "train.py"  # all that git sees in the clone then


def section():
    text = (REPO / "README.md").read_text()
    return HEADING + text.partition(HEADING)[2].partition("\n## ")[0]


def steps():
    """The (command, output) pairs that the section shows."""
    pairs = []
    for block in blocks("README.md", section()):
        if block.kind == "console":
            pairs += console(block.text)
        elif block.kind == "sh" and "rm tokend.yaml" not in block.text:  # hidden, for the page
            pairs.append((block.text.rstrip(), ""))
    return pairs


def test_the_first_page_by_copy_and_paste(place, capsys):
    shown = steps()
    home, keys = home_of(place, built=True)
    begin = time.monotonic()
    try:
        for command, expected in shown:
            at = time.monotonic() - begin
            done = subprocess.run(
                ["bash", "-ec", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                **keys,
            )
            with capsys.disabled():  # into the log, also of a run that passes
                print(f"{at:6.2f} s  $ {command}\n{done.stdout}")
            assert done.returncode == 0, f"{command}:\n{done.stdout}"
            in_order = not command.startswith("torchrun ")
            line = missing(expected, done.stdout, in_order)
            assert line is None, f"{command}: not in its output: {line}\n{done.stdout}"
        with capsys.disabled():
            print(f"{time.monotonic() - begin:6.2f} s  to the end of the training")
    finally:
        end_daemons(home, keys)
    config = os.stat(f"{keys['cwd']}/tokend.yaml")
    assert len(shown) > 3 and config.st_uid == keys.get("user", os.getuid())
    code, out, err = run("git", "status", "--porcelain", **keys)
    changed = out.decode().splitlines()
    assert changed == [f"?? {name}" for name in MADE], (changed, err)
