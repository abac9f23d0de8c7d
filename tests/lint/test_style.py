"""The style of the tree: subjects of commits, lengths of lines and files, formatting, and that the
planted bugs still apply.
"""

import re
import subprocess
from pathlib import Path

import pytest

from lib.planted import bugs

ROOT = Path(__file__).resolve().parents[2]
FIRST = "58ab16e"  # commits after this one have short subjects
COLUMNS = 100
FILE_LINES = 900
SUBJECT = re.compile(r"[a-z0-9_./, -]+: \S.*")


def git(*arguments):
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines() if done.returncode == 0 else None


def tracked(*patterns):
    found = git("ls-files", *patterns)
    if found is None:
        pytest.skip("not a git checkout")
    return [name for name in found if (ROOT / name).is_file()]


def test_subjects_of_commits_are_short():
    subjects = git("log", "--no-merges", "--format=%s", f"{FIRST}..HEAD")
    if subjects is None:
        pytest.skip(f"no git history back to {FIRST}")
    wrong = [s for s in subjects if len(s) > 72 or not SUBJECT.fullmatch(s)]
    assert not wrong, "write `area: what changed`, at most 72 characters"


def too_long(name):
    """The lines longer than COLUMNS, with tabs of 8. Tables and links of prose are excepted."""
    text = (ROOT / name).read_text()
    for number, line in enumerate(text.splitlines(), 1):
        table = name.endswith(".md") and re.match(r"\s*\||.*\]\(\S+\)", line)
        if len(line.expandtabs(8)) > COLUMNS and not table:
            yield f"{name}:{number}"


def test_lines_are_short():
    names = tracked("*.c", "*.h", "*.py", "*.sh", "*.md", "tests/run")
    assert len(names) > 300
    wrong = [at for name in names for at in too_long(name)]
    assert not wrong, f"{len(wrong)} lines over {COLUMNS} columns"


def test_files_are_short():
    lines = {
        name: len((ROOT / name).read_text().splitlines()) for name in tracked("*.c", "*.h", "*.py")
    }
    wrong = {name: n for name, n in lines.items() if n > FILE_LINES}
    assert not wrong, f"over {FILE_LINES} lines: split where the subject splits"


def test_files_are_formatted():
    c = tracked("*.c", "*.h")
    done = subprocess.run(
        ["clang-format", "--dry-run", "-Werror", *c], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:] + "make format"
    ruff = ROOT / "build/venv/bin/ruff"
    for check in (["format", "--check", "-q"], ["check", "-q"]):
        done = subprocess.run([ruff, *check, "client", "tests", "bench", "tests/run"], cwd=ROOT)
        assert done.returncode == 0, "make format"


def test_planted_bugs_apply():
    apply = ["git", "apply", "--check", "-"]
    for bug in bugs():
        done = subprocess.run(apply, cwd=ROOT, input=bug.patch, capture_output=True, text=True)
        assert done.returncode == 0, f"{bug.what}: write it again: {done.stderr}"
