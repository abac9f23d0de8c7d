"""client/example/trainers/README.md: what it shows is what the files beside it are, and those are
what make test-trainers runs.
"""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "client/example/trainers"
PAGE = (EXAMPLES / "README.md").read_text()
SHOWN = re.findall(r"^\[`(\S+\.py)`\]\(\1\)\n\n```python\n(.*?)^```$", PAGE, re.M | re.S)


def test_every_example_is_shown_or_named():
    assert [
        path.name for path in EXAMPLES.glob("*.py") if f"[`{path.name}`]({path.name})" not in PAGE
    ] == []
    assert len(SHOWN) == 8


@pytest.mark.parametrize("name, block", SHOWN, ids=[name for name, _ in SHOWN])
def test_a_block_is_the_file_beside_it_or_pieces_of_it(name, block):
    text, at = (EXAMPLES / name).read_text(), 0
    pieces = block.split("# …\n")
    if len(pieces) == 1 and block.startswith('"""'):
        assert block == text
    for piece in pieces:
        at = text.index(piece, at) + len(piece)


def test_links_within_lead_somewhere():
    for target in re.findall(r"\]\(([^)#h]+)\)", PAGE):
        assert (EXAMPLES / target).exists(), target
    titles = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^## (.*)$", PAGE, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= titles
