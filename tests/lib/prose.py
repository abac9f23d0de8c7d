"""What people read in the tree: comments, docstrings, messages and pages, taken out of the files.

`prose(path)` yields (line, kind, text); kind is "comment", "message" or "page". A comment of
several lines, and a paragraph of a page, is one text. Code, tables and links are left out.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

C_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'""", re.DOTALL)
ADJACENT = re.compile(r"[\s]*|[\s]*PRI\w+[\s]*")  # between parts of one string
CODE = re.compile(r"`[^`\n]*`")
WORDS = re.compile(r"[A-Za-z]{2,}(?: [^ ]+)+ [A-Za-z]{2,}")  # at least three words: a message


def _comment(text):
    text = re.sub(r"^/\*+<?|\*/$", "", text)
    lines = [re.sub(r"^\s*(?:\*|//)(?:\s|$)", "", line).strip() for line in text.splitlines()]
    return _paragraphs(lines)


def _paragraphs(lines):
    """Joins lines; an empty line, or one that begins an item or a table, ends a paragraph."""
    text, offset, start = [], 0, 0
    for offset, line in enumerate(lines):
        ends = not line or re.match(r"(?:[-*•|@]|\d+\.|#+ ) ?\S|.{1,40}\S {3,}\S|\w+: ", line)
        if ends and text:
            yield start, " ".join(text)
            text = []
        if line and not line.startswith(("|", "+--")):
            if not text:
                start = offset
            text.append(line)
    if text:
        yield start, " ".join(text)


def _c(source):
    line, last = 1, 0
    string, string_line, string_end = "", 0, 0
    comment, comment_line, comment_end = [], 0, 0

    def flush_string():
        for part in string.split("\\n"):
            if WORDS.search(part):
                yield string_line, "message", part

    for found in C_TOKEN.finditer(source):
        token = found.group(0)
        line += source.count("\n", last, found.start())
        last = found.start()
        if token.startswith("//"):
            if not (comment and re.fullmatch(r"\n\s*", source[comment_end : found.start()])):
                yield from ((comment_line + n, "comment", t) for n, t in _paragraphs(comment))
                comment, comment_line = [], line
            comment.append(token[2:].strip())
            comment_end = found.end()
        elif token.startswith("/*"):
            yield from ((line + n, "comment", text) for n, text in _comment(token))
        elif token.startswith('"'):
            if string and ADJACENT.fullmatch(source[string_end : found.start()]):
                string += token[1:-1]
            else:
                yield from flush_string()
                string, string_line = token[1:-1], line
            string_end = found.end()
    yield from flush_string()
    yield from ((comment_line + n, "comment", text) for n, text in _paragraphs(comment))


def _hash_comments(source):
    block, start = [], 0
    for number, line in enumerate(source.splitlines(), 1):
        found = re.match(r"\s*#(?!!|:) ?(.*)", line) or re.match(r".*?\s#\s(.*)", line)
        whole = bool(re.match(r"\s*#", line))
        if block and not (whole and found):
            yield from ((start + n, "comment", text) for n, text in _paragraphs(block))
            block = []
        if found and whole:
            start = start if block else number
            block.append(found.group(1).strip())
        elif found:
            yield number, "comment", found.group(1)
    yield from ((start + n, "comment", text) for n, text in _paragraphs(block))


def _python(source):
    block, start, last = [], 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith("#!"):
            continue
        whole = not token.line[: token.start[1]].strip()
        if block and not (whole and token.start[0] == last + 1):
            yield from ((start + n, "comment", text) for n, text in _paragraphs(block))
            block = []
        start = start if block else token.start[0]
        block.append(token.string[1:].strip())
        last = token.start[0]
        if not whole:
            last = -1
    yield from ((start + n, "comment", text) for n, text in _paragraphs(block))
    tree = ast.parse(source)
    documents, inside = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documents.add(first.value)
        if isinstance(node, ast.JoinedStr):
            inside.update(ast.walk(node))
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
            if WORDS.search(text):
                yield node.lineno, "message", text
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if node in documents:
            lines = [line.strip() for line in node.value.splitlines()]
            lines = [re.sub(r"^(>>>|\.\.\.) .*", "", line) for line in lines]
            yield from ((node.lineno + n, "comment", text) for n, text in _paragraphs(lines))
        elif node not in inside and WORDS.search(node.value) and "\n" not in node.value.strip():
            yield node.lineno, "message", node.value


def _page(source):
    fenced, lines = False, []
    source = re.sub(r"<!--.*?-->", lambda c: "\n" * c[0].count("\n"), source, flags=re.S)
    for line in source.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        lines.append("" if fenced else re.sub(r"\]\([^)]*\)", "]", line).strip())
    yield from ((1 + n, "page", text) for n, text in _paragraphs(lines))
    for number, line in enumerate(lines, 1):
        if line.startswith("|"):
            for cell in line.strip("|").split("|"):
                yield number, "page", cell.strip()


READERS = {".c": _c, ".h": _c, ".py": _python, ".md": _page, ".sh": _hash_comments}
READERS |= {".yaml": _hash_comments, ".yml": _hash_comments, ".service": _hash_comments}


def prose(path):
    """Yields (line, kind, text) of the file; code in backquotes becomes `X`."""
    path = Path(path)
    source = path.read_text()
    reader = READERS.get(path.suffix)
    if reader is None:
        reader = _python if "python" in source.split("\n", 1)[0] else _hash_comments
    for line, kind, text in reader(source):
        yield line, kind, CODE.sub("`X`", text)


def sentences(text):
    """Splits at full stops, question marks, colons and semicolons."""
    return [part for part in re.split(r"(?<=[.?!:;])\s+(?=\S)", text) if part]
