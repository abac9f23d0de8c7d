"""Bugs that are planted to show that a test finds them. tests/bugs/ROOM.patch has those of a room,
one after another. Each begins with these lines, and goes on with a diff:

bug: what goes wrong
test: a shell command, which must fail
says: words, one of which the command must then print (any number of lines; none: any failure)

A diff that does not apply exactly is an error: write it again when its code is rewritten.
"""

import dataclasses
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUGS = ROOT / "tests/bugs"
KEYS = ("bug", "test", "says")
LIMIT_S = 900
SHARED = ("venv", "trainers", "python3.10", "wheel-venv", "llhttp")  # of build/, not built by make


class Refused(Exception):
    """A patch does not apply, or the program with it does not build."""


@dataclasses.dataclass
class Bug:
    what: str
    tests: list[str]  # shell commands; each must find it
    says: list[str]
    patch: str


def bugs():
    """All planted bugs."""
    for path in sorted(BUGS.glob("*.patch")):
        for part in re.split(r"^(?=bug: )", path.read_text(), flags=re.M)[1:]:
            head = part.partition("\n--- ")[0]
            what, tests, says = (re.findall(rf"^{key}: (.*)", head, re.M) for key in KEYS)
            assert len(what) == 1 and tests, f"{path.name}: {head}"
            yield Bug(what[0], tests, says, part[len(head) + 1 :].rstrip("\n") + "\n")


class Scratch:
    """A copy of this tree with what is built, in which one patch at a time is applied."""

    def __init__(self):
        self.tree = ROOT / "build/scratch"
        self.lock = open(ROOT / "build/scratch.lock", "w")  # another run would see these bugs
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        shutil.rmtree(self.tree, ignore_errors=True)
        (self.tree / "build").mkdir(parents=True)
        listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(lambda name: (ROOT / name).is_file(), names.stdout.splitlines()):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.tree / name)
        self.copy("python")
        for name in filter(lambda name: (ROOT / "build" / name).exists(), SHARED):
            (self.tree / "build" / name).symlink_to((ROOT / "build" / name).resolve())

    def copy(self, built):
        """Takes over what is built of a variant, so that make only builds what changes."""
        if (ROOT / "build" / built).exists() and not (self.tree / "build" / built).exists():
            subprocess.run(["cp", "-a", ROOT / "build" / built, self.tree / "build"], check=True)

    def run(self, command, **options):
        """(exit status, output) of a shell command in the tree. One that hangs has failed."""
        names = ("TOKEND_FAULTS", "TOKEND_BIN", "MAKEFLAGS", "MAKELEVEL")
        environment = {key: value for key, value in os.environ.items() if key not in names}
        environment |= {"CFLAGS": "-Wno-error", "GIT_CEILING_DIRECTORIES": str(ROOT / "build")}
        with tempfile.TemporaryDirectory() as place:
            os.chmod(place, 0o755)  # for tests that act as another user
            done = subprocess.run(
                ["timeout", "-k", "9", str(LIMIT_S), "bash", "-c", command], cwd=self.tree,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                env={**environment, "TMPDIR": place}, **options,
            )  # fmt: skip
        return done.returncode, done.stdout

    def make(self, command):
        """Builds what a command of a patch runs."""
        variant = (re.findall(r"build/(asan|tsan)/", command) or ["gcc"])[0]
        self.copy(variant)
        self.copy("gcc")  # the fuzzers' first inputs need its programs
        targets = re.findall(r"build/\w+/check/\S+", command)
        if not targets:
            built = "all" if variant == "gcc" else "programs"
            targets = ["wheel"] if "--trainers" in command else [built, "helpers"]
        status, said = self.run(f"make VARIANT={variant} {' '.join(targets)}")
        if status:
            raise Refused(f"does not build:\n{said[-3000:]}")

    def plant(self, patch):
        """Applies the patch. Returns its files, for restore()."""
        for check in ("--check ", ""):
            status, said = self.run(f"git apply {check}-", input=patch)
            if status:
                raise Refused(f"does not apply:\n{said}")
        return re.findall(r"^\+\+\+ [ab]/(\S+)", patch, re.M)

    def restore(self, files):
        for name in files:  # newer than the objects that were built with the patch
            shutil.copyfile(ROOT / name, self.tree / name)

    def finds(self, bug, command):
        """(whether the command fails with the bug and says the right words, its output)"""
        files = self.plant(bug.patch)
        try:
            self.make(command)
            status, said = self.run(command)
        finally:
            self.restore(files)
        right = not bug.says or any(words in said for words in bug.says)
        return status != 0 and right, said
