"""The pages: links lead somewhere, and every code block does what it says.

tests/README.md says how a page is written so that its blocks can be executed.
"""

import os
import subprocess

import pytest
from lib import REPO
from lib.page_runner import Runner
from lib.pages import anchors, blocks, links


def tracked(*patterns):
    done = subprocess.run(["git", "ls-files", *patterns], cwd=REPO, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [name for name in done.stdout.splitlines() if (REPO / name).is_file()]


PAGES = sorted(path for path in tracked("*.md"))


def text_of(page):
    return (REPO / page).read_text()


def is_there(path, files):
    return path in files or any(name.startswith(f"{path}/") for name in files) or path == "."


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    files, wrong = set(tracked()), []
    for path, anchor in links(text_of(page)):
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not is_there(target, files):
            wrong.append(f"{path}: no such file")
        elif anchor and (not target.endswith(".md") or anchor not in anchors(text_of(target))):
            wrong.append(f"{path}#{anchor}: no such heading")
    assert not wrong


@pytest.mark.limit(480)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_does_what_the_page_says(page, directory):
    found = blocks(page, text_of(page))
    runner = Runner(directory)
    try:
        for block in found:
            runner.execute(block)
    finally:
        runner.end()
