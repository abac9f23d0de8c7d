"""Makes the man pages, DIRECTORY/PAGE from each PAGE.txt next to this file: pages.py BIN DIRECTORY.

A text is a summary and then blocks: titles in capitals, paragraphs, items `= TERM`, examples
indented by 4, roff from a line with a dot on, and what the programs in BIN print: @command NAME,
the head of a command; @options, those of the last command, otherwise of tokend; @keys NAME. Words
between backticks are bold.
"""

import re
import sys
from pathlib import Path
from subprocess import check_output

SPECIAL = {
    "\\": r"\(rs",
    "~": r"\(ti",
    "^": r"\(ha",
    "'": r"\(aq",
    "`": r"\(ga",
    "…": "...",  # ASCII terminals have no other
}


def escape(text, literal=True):
    """@literal: users type it, so '-' is a minus."""
    text = "".join(SPECIAL.get(c) or (c if c < "\x7f" else f"\\[u{ord(c):04X}]") for c in text)
    return text.replace("-", r"\-") if literal else text


def prose(text):
    parts = text.split("`")
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = rf"\fB{escape(part)}\fR"
        else:  # "-c" and "--to", but not "start-up"
            parts[i] = re.sub(r"(?<![A-Za-z0-9])-", r"\-", escape(part, literal=False))
    return "".join(parts)


def sentence(phrase):
    return f"{phrase[0].upper()}{phrase[1:]}."


def item(term, text):
    name, value = re.fullmatch(r"(-.*-\S+)(.*)|.*", term).groups()
    return [".TP", rf"\fB{escape(name or term)}\fI{escape(value or '')}\fR", prose(text)]


def example(lines):
    return [".PP", ".RS 4", ".EX", *map(escape, lines), ".EE", ".RE"]


def options(help_text):
    for term, phrase in re.findall(r"^ +(-.*?)(?:  +|\n +)(.*(?:\n {8,}.*)*)", help_text, re.M):
        if term != "-h, --help":
            yield from item(term, sentence(" ".join(phrase.split())))


def head(command, help_text):
    *usage, summary = help_text.split("\n\n")[0].split("\n")
    yield from (f".SS tokctl {command}", prose(sentence(summary)), ".HP")
    synopsis = escape(" ".join(" ".join(usage).split()[1:]))
    # no line break within brackets
    yield re.sub(r"\[[^]]*\]", lambda m: m[0].replace(" ", r"\ "), synopsis)


def page(name, text, said):
    title, section = name.rsplit(".", 1)
    version = said("tokctl", "--version").split()[1]
    keys = said("tokctl", "help", "--keys").split("@keys ")
    for table, items in (each.split("\n\n", 1) for each in keys[1:]):
        text = text.replace(f"@keys {table}", items.strip())
    yield ".nr HY 0"  # no hyphenation
    yield f'.TH {title.upper()} {section} "" "tokend {version}"'
    summary, *blocks = text.strip().split("\n\n")
    yield from (".ad l", ".ss 12 0", ".SH NAME", rf"{title} \- {summary}")
    help_text = said("tokend", "--help")
    for block in blocks:
        lines = block.split("\n")
        if block.isupper() and len(lines) == 1:
            yield f".SH {block}"
        elif block[0] == ".":
            yield block
        elif block == "@options":
            yield from options(help_text)
        elif block.startswith("@command "):
            help_text = said("tokctl", "help", *lines[0].split()[1:])
            yield from head(block[9:], help_text)
        elif block[0] == "=":
            yield from item(lines[0][2:], " ".join(lines[1:]))
        elif block[0] == " ":
            yield from example(line[4:] for line in lines)
        else:
            yield from (".PP", prose(" ".join(lines)))


def main():
    programs, directory = map(Path, sys.argv[1:])

    def said(program, *words):
        return check_output([programs / program, *words], text=True)

    for path in Path(__file__).parent.glob("*.txt"):
        lines = page(path.stem, path.read_text(), said)
        (directory / path.stem).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
