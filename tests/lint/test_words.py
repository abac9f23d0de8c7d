"""Plain English: words and turns of phrase that need a second reading, and long sentences.

The rules and the glossary are in tests/README.md. `python tests/lint/test_words.py [PATH…]`
prints what breaks them.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from lib.prose import prose, sentences  # noqa: E402

SENTENCE_WORDS = 30  # the rule is 25; a name with dots or dashes counts as several here
PATTERNS = ("*.c", "*.h", "*.py", "*.sh", "*.md", "*.yaml", "*.service", "*.socket", "Makefile")
PATTERNS += ("client/ctl/man/*.txt",)
WORDS = {  # pattern: what to write instead
    r"(?<!falls )(?<!fall )(?<!lags )(?<!lag )(?<!lagging )(?<!left )\bbehind\b": "after",
    r"\bin front of\b": "before",
    r"\bbesides?\b": "next to; in addition to",
    r"\bstands?\b(?!-| (?:for|alone)\b)|\bstood\b": "is, contains",
    r"\bli(?:es?|ying)\b|\blay\b": "is, is stored",
    r"\b(?:is|are|be|was|were|been|being) told\b": "report, say who reports what",
    r"\b(?:held|hold|holds|holding) (?:to|against)\b": "compare with, verify against",
    r"\bno word of\b": "say what is",
    r"\bor else\b|[,;:] else\b|\b(?:may|would|could|might) else\b": "otherwise",
    r"\bone word too many\b": "unexpected argument",
    r"\bwhole numbers?\b": "integer",
    r"\b(?<![Tt]here )(?:is|are|was|were) no (?!longer|more|other|need|way|such)[a-z]": "is not a",
    r"\b(?:part(?:y|ies)|giveback|crew|doz(?:e|es|ing)|obeys?)\b(?!/)": "see the glossary",
    r"\bmemos?\b": "cache",
    r"(?<!question )(?<!quotation )\bmarks\b": "annotations",
    r"\b(?:there|where|here)(?:by|in|of|upon|with|after|to)\b(?<!hereafter)": "an ordinary word",
    r"(?:^|[.;] )What(?:ever)? (?!if )[^?]*?\b(?:is|are|was|were|has|have|does|do|did|goes|"
    r"comes|makes|takes|needs|can|may|must)\b[^?]*$": "a noun as the subject",
    r"(?:^|[.;] )(?:Who|Whoever|Whose) [^?]*$": "a noun as the subject",
    r"\bof others\b|\bothers' ": "someone else's",
    r"\bbade\b|\bshan't\b|\bought\b|\blest\b|\bnay\b": "an ordinary word",
    r"\bnot so\b(?! [a-z]+ (?:as|that))": "is false, a negative answer",
    r"\bas well\.": "too",
}
WRONG = [(re.compile(pattern), instead) for pattern, instead in WORDS.items()]


def problems(path):
    """Yields (line, what is wrong) for a file."""
    for line, text in prose(path):
        for pattern, instead in WRONG:
            found = pattern.search(text)
            if found:
                start = max(0, found.start() - 30)
                around = text[start : start + 70]
                yield line, f"'{found.group(0)[:30]}': write {instead}: …{around}…"
        for sentence in sentences(text):
            words = len(sentence.split())
            if words > SENTENCE_WORDS:
                yield line, f"a sentence of {words} words: {sentence[:60]}…"


def tracked(paths=()):
    names = subprocess.run(
        ["git", "ls-files", *(paths or PATTERNS)], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    skipped = {"tests/lint/test_words.py"}
    names = [n for n in names if n not in skipped and any(Path(n).match(p) for p in PATTERNS)]
    return [name for name in names if (ROOT / name).is_file()]


def test_plain_words_and_short_sentences():
    wrong = [f"{name}:{line}: {what}" for name in tracked() for line, what in problems(ROOT / name)]
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    count = Counter()
    for name in tracked(sys.argv[1:]):
        for line, what in problems(ROOT / name):
            count[str(Path(name).parent)] += 1
            print(f"{name}:{line}: {what}")
    for room, n in sorted(count.items()):
        print(f"{n:6} {room}")
    print(f"{sum(count.values()):6} together")
