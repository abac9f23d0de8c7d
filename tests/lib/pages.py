"""The parts of a page (*.md): its blocks, links and anchors, and the commands in them.

tests/README.md says how a page describes its blocks; page_runner.py executes them.
"""

import dataclasses
import re

from .process import REPO

FENCE = re.compile(r"(\s*)(```+)(\w*)\s*")
NOTE = re.compile(r"<!-- test: (\w+) ?(\S*) -->")
HIDDEN = re.compile(r"<!-- test: (sh|python|yaml)")
SHOWN = re.compile(r"\[`(\S+)`\]\(([^)#]+)\)")
NOTES = {"output", "picture", "fails", "file"}

# Commands that a page shows and the runner does not execute: what they match, and why.
EXCEPTED = {
    r"(sudo )?apt(-get)? ": "installs packages",
    r"(\S*python3? -m )?pip install ": "installs packages",
    r"git clone ": "needs the network",
    r"(sudo |systemctl |journalctl )": "needs root and systemd: tests/system/systemd.sh does it",
    r"(docker|podman) ": "needs a container engine",
    r"(\w+=\S+ )*make( |$)": "a build: the runner checks that the target exists",
}


@dataclasses.dataclass
class Block:
    page: str
    line: int
    kind: str  # the fence's language, or that of a hidden block
    text: str
    note: str = ""  # one of NOTES
    argument: str = ""  # of the note
    shown: str = ""  # the file that the block shows, if the line before is only a link to it

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(page, text):
    """All blocks of @text in order, hidden ones too. Raises ValueError for what is not a block
    and looks like one.
    """
    found, lines, at = [], text.splitlines(), 0
    note, before = ("", ""), ""
    while at < len(lines):
        line, start = lines[at], at + 1
        at += 1
        fence, hidden, noted = FENCE.fullmatch(line), HIDDEN.fullmatch(line), NOTE.fullmatch(line)
        if fence or hidden:
            end = re.compile(rf"\s*{fence[2]}\s*" if fence else r"-->")
            body = []
            while at < len(lines) and not end.fullmatch(lines[at]):
                body.append(lines[at].removeprefix(fence[1] if fence else ""))
                at += 1
            if at == len(lines):
                raise ValueError(f"{page}:{start}: a block without an end")
            at += 1
            shown = fence and SHOWN.fullmatch(before)
            kind, text = fence[3] if fence else hidden[1], "\n".join([*body, ""])
            found.append(Block(page, start, kind, text, *note, shown[2] if shown else ""))
            note, before = ("", ""), ""
        elif noted:
            if noted[1] not in NOTES:
                raise ValueError(f"{page}:{start}: {noted[1]} is none of {', '.join(NOTES)}")
            note = noted.groups()
        elif line.startswith("<!-- test"):
            raise ValueError(f"{page}:{start}: {line}: not a note that the runner knows")
        elif re.match(r" {4,}\S", line) and not re.match(r"\s*([-*]|\d+\.) ", line) and not before:
            raise ValueError(f"{page}:{start}: a block by indentation; write ``` around it")
        else:
            if line.strip() and note != ("", ""):
                raise ValueError(f"{page}:{start}: a note without a block after it")
            if line.strip():
                before = line
            elif not SHOWN.fullmatch(before):
                before = ""
    return found


def prose_of(text):
    """@text without its code blocks and comments."""
    text = re.sub(r"^(\s*)(```+).*?^\s*\2\s*$", "", text, flags=re.M | re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def anchors(text):
    """The anchors that GitHub makes of the headings."""
    found = set()
    for title in re.findall(r"^#+ +(.*?)\s*$", prose_of(text), re.M):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        unique, n = name, 0
        while unique in found:
            n += 1
            unique = f"{name}-{n}"
        found.add(unique)
    return found


def links(text):
    """The relative links of a page: (path, anchor)."""
    text = re.sub(r"(``?)(?!`).*?\1", "", prose_of(text))
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    found += re.findall(r"(?:src|srcset|href)=\"([^\"\s]+)", text)
    return [
        (target.partition("#")[0], target.partition("#")[2])
        for target in found
        if not re.match(r"\w+:", target)
    ]


def commands(script):
    """The commands of a script, one a line, that the runner executes, and those excepted."""
    kept, excepted = [], []
    for line in re.sub(r"\\\n\s*", "", script).splitlines():
        parts = re.split(r"\s*&&\s*", line)
        left = [part for part in parts if not re.match("|".join(EXCEPTED), part.strip())]
        excepted += [part.strip() for part in parts if part not in left]
        kept.append(" && ".join(left))
    return "\n".join(kept), excepted


def console(text):
    """The (command, output) pairs of a block that shows commands after `$ `."""
    pairs = []
    for line in text.splitlines():
        if line.startswith("$ "):
            pairs.append([line[2:], ""])
        elif pairs and pairs[-1][0].endswith("\\"):
            pairs[-1][0] += "\n" + line
        elif pairs:
            pairs[-1][1] += line + "\n"
        elif line.strip():
            raise AssertionError(f"a line before the first command: {line}")
    return pairs


def pattern_of(line):
    """A shown line of output: numbers, digests and … match any other."""
    pattern = ""
    for part in re.split(r"(\s*(?:…|\.\.\.)\s*|\b[0-9a-f]{8,}\b|\d[\d.,]*|\s+)", line.strip()):
        kinds = ((r"\s*(…|\.\.\.)\s*", ".*"), (r"[0-9a-f]{8,}", "[0-9a-f]+"))
        kinds += ((r"\d.*", r"\d[\d.,]*"), (r"\s+", r"\s+"))
        found = (other for kind, other in kinds if re.fullmatch(kind, part))
        pattern += next(found, re.escape(part))
    return re.compile(pattern)


def missing(shown, actual, in_order=True):
    """The first line of @shown that is not in @actual; None if all are, in this order or in any."""
    if not in_order:
        shown = filter(str.strip, shown.splitlines())
        return next((line for line in shown if not pattern_of(line).search(actual)), None)
    lines = iter(actual.splitlines())
    for line in filter(str.strip, shown.splitlines()):
        if not any(pattern_of(line).search(other) for other in lines):
            return line
    return None


def missing_target(command):
    """The target of a make command that the Makefile does not have; None if it has all."""
    words_ = re.sub(r"\s#.*", "", command).split()
    if "make" not in words_ or any(word in ("sudo", "-C") for word in words_[1:]):
        return None
    makefile = (REPO / "Makefile").read_text()
    targets = [w for w in words_[words_.index("make") :][1:] if re.fullmatch(r"[a-z][a-z-]*", w)]
    return next((t for t in targets if not re.search(rf"^{t}:", makefile, re.M)), None)
