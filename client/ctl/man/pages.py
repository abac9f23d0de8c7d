"""Makes the man pages, DIRECTORY/PAGE from each PAGE.txt next to this file.

Reads the tables of options, commands and config keys from stdin, as `tokctl help --tables` prints
them. A text is a summary and then blocks: titles in capitals, paragraphs, items `= TERM`, examples
indented by 4, roff from a line with a dot on, and tables: @command NAME, the head of a command;
@options, those of the last command, otherwise of tokend; @keys NAME. Words between backticks are
bold.
"""

import json
import re
import sys
from itertools import chain
from pathlib import Path

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


def paragraphs(text):
    for paragraph in filter(None, text.split("\n\n")):
        yield from (".PP", prose(" ".join(paragraph.split("\n"))))


def sentence(phrase, details="", end="."):
    return prose(phrase[0].upper() + phrase[1:] + (f" ({details})" if details else "") + end)


def term(name, value=""):
    value = rf" \fI{escape(value)}\fR" if value else ""
    return [".TP", rf"\fB{escape(name)}\fR{value}"]


def example(lines):
    return [".PP", ".RS 4", ".EX", *map(escape, lines), ".EE", ".RE"]


def options(rows):
    for o in rows:
        yield from term(f"-{o['letter']}, " * bool(o["letter"]) + f"--{o['name']}", o["value"])
        yield sentence(o["help"], o["range"])
        if o["required"]:
            yield "Required."


def head(command):
    yield from (f".SS tokctl {command['command']}", sentence(command["help"]), ".HP")
    # no line break within brackets
    yield re.sub(r"\[[^]]*\]", lambda m: m[0].replace(" ", r"\ "), escape(command["synopsis"]))


def keys(rows):
    for key in rows:
        yield from term(f"{key['name']}:")
        yield prose(key["help"])
        required = " Required." if key["required"] else ""
        default = f" Default: {key['default']}." if key["default"] else ""
        yield prose(f"Value: {key['value']}.{required}{default}")


def page(name, text, tables):
    title, section = name.rsplit(".", 1)
    yield ".nr HY 0"  # no hyphenation
    yield f'.TH {title.upper()} {section} "" "tokend {tables[0]["version"]}"'
    summary, *blocks = text.strip().split("\n\n")
    yield from (".ad l", ".ss 12 0", ".SH NAME", rf"{title} \- {summary}")
    commands = {row["command"]: row for row in tables if "command" in row}
    last = tables[0]
    for block in blocks:
        lines = block.split("\n")
        if block.isupper() and len(lines) == 1:
            yield f".SH {block}"
        elif block[0] == ".":
            yield block
        elif block == "@options":
            yield from options(last["options"])
        elif block.startswith("@command "):
            last = commands.pop(block[9:])
            yield from head(last)
        elif block[0] == "@":
            yield from chain(*(keys(t["keys"]) for t in tables if t.get("keys_of") == block[6:]))
        elif block[0] == "=":
            yield from term(lines[0][2:])
            yield prose(" ".join(lines[1:]))
        elif block[0] == " ":
            yield from example(line[4:] for line in lines)
        else:
            yield from paragraphs(block)
    assert last is tables[0] or not commands, f"{name}: lacks {', '.join(commands)}"


def main():
    tables = [json.loads(line) for line in sys.stdin]
    for path in Path(__file__).parent.glob("*.txt"):
        lines = page(path.stem, path.read_text(), tables)
        Path(sys.argv[1], path.stem).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
