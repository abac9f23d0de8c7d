"""Texts that people read: comments, docstrings, messages and pages, taken out of the tree's files.
Code and links are left out.
"""

import re
from pathlib import Path

C = r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'"""
PYTHON = r'''#(?!!)[^\n]*|[rbf]*(?:""".*?"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')'''
SHELL = r"(?:(?<=\s)|^)#(?!!|:)[^\n]*"
ADJACENT = re.compile(r"\s*(?:PRI\w+\s*)?")  # between parts of one string
WORDS = re.compile(r"[A-Za-z]{2,}(?: [^ ]+)+ [A-Za-z]{2,}")  # at least three words: a message
ITEM = re.compile(r"(?:[-*•|@]|\d+\.|#+ ) ?\S|.{1,40}\S {3,}\S|\w+: |>>> |\.\.\. ")


def _paragraphs(lines):
    """Joins lines; an empty line, or one that begins an item or a table, ends a paragraph."""
    text, start = [], 0
    for offset, line in enumerate([*lines, ""]):
        if text and (not line or ITEM.match(line)):
            yield start, " ".join(text)
            text = []
        if line and not line.startswith(("|", "+--", ">>>", "...")):
            start = start if text else offset
            text.append(line)


def _source(source, lexer):
    """The comments and strings of a program. Lines of comments that follow each other, and adjacent
    strings, are one text.
    """
    texts, end = [], 0  # [kind, line, text]
    for found in re.finditer(lexer, source, re.DOTALL | re.MULTILINE):
        token, between = found[0], source[end : found.start()]
        whole = not source[source.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
        line = source.count("\n", 0, found.start()) + 1
        bare = token.lstrip("rbf")
        if bare.startswith('"""') and not whole or token.startswith("b"):
            continue  # data
        if bare.startswith(('"""', "/*")):
            kind, text = "block", re.sub(r'^("""|/\*+<?)|("""|\*/)$', "", bare)
        elif bare.startswith(("#", "//")):
            kind, text = "line", re.sub(r"^(#|//) ?", "", bare)
        else:
            kind, text = "string", re.sub(r"\{\w[^{}]*\}", "X", bare[1:-1])
        last = texts[-1][0] if texts else ""
        if kind == last == "line" and whole and re.fullmatch(r"\n\s*", between):
            texts[-1][2] += "\n" + text
        elif kind == last == "string" and ADJACENT.fullmatch(between):
            texts[-1][2] += text
        else:
            texts.append([kind if kind != "line" or whole else "end", line, text])
        end = found.end()
    for kind, line, text in texts:
        if kind == "string":
            yield from ((line, part) for part in text.split("\\n") if WORDS.search(part))
        else:
            lines = [re.sub(r"^\s*\*(?:\s|$)", "", each).strip() for each in text.splitlines()]
            yield from ((line + n, each) for n, each in _paragraphs(lines))


def _page(source):
    source = re.sub(r"<!--.*?-->", lambda c: "\n" * c[0].count("\n"), source, flags=re.S)
    lines, fenced = [], False
    for line in source.splitlines():
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        lines.append("" if fenced or fence else re.sub(r"\]\([^)]*\)", "]", line).strip())
    yield from ((1 + n, text) for n, text in _paragraphs(lines))
    for number, line in enumerate(lines, 1):
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in line.strip("|").split("|"))


def prose(path):
    """Yields (line, text) of the file; code in backquotes becomes `X`."""
    source = Path(path).read_text()
    suffix = Path(path).suffix or (".py" if "python" in source.split("\n", 1)[0] else "")
    lexer = {".c": C, ".h": C, ".py": PYTHON}.get(suffix, SHELL)
    for line, text in _page(source) if suffix in (".md", ".txt") else _source(source, lexer):
        yield line, re.sub(r"`[^`\n]*`", "`X`", text)


def sentences(text):
    """Splits at full stops, question marks, colons and semicolons."""
    return [part for part in re.split(r"(?<=[.?!:;])\s+(?=\S)", text) if part]
