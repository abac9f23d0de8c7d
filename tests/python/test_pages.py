"""The pages: links lead somewhere, none is long, and every code block does what it says.

tests/README.md says how a page is written so that its blocks can be executed.
"""

import inspect
import os
import re
import subprocess

import pytest
import tokend
from lib import REPO
from lib.page_runner import Runner
from lib.pages import anchors, blocks, links, prose_of, words, wrong_command

README_WORDS = 900  # outside code blocks
LAST = re.compile(r"#* ?\W*(Where to go on|See also|Next)\b")
NOT_HERE = {"order.md"}  # the order's definition, which is not in the tree


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


def test_pages_that_the_sources_name_exist():
    files = set(tracked())
    names = {os.path.basename(file) for file in files}
    wrong = []
    for source in tracked("*.c", "*.h", "*.py", "*.yaml", "*.sh", "Makefile", "systemd/*"):
        for name, anchor in re.findall(
            r"(?<![\w/*.}])([\w/-]+\.md)\b(?:#([\w-]+))?", text_of(source)
        ):
            in_folder = os.path.normpath(os.path.join(os.path.dirname(source), name))
            found = next((path for path in (name, in_folder) if path in files), None)
            if found is None and ("/" in name or name not in names | NOT_HERE):
                wrong.append(f"{source}: {name}")
            elif found and anchor and anchor not in anchors(text_of(found)):
                wrong.append(f"{source}: {name}#{anchor}")
    assert not wrong


def test_the_readme_is_short():
    assert words(text_of("README.md")) <= README_WORDS


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_with_a_paragraph_and_ends_with_links(page):
    parts = [part.strip() for part in re.split(r"\n\s*\n", prose_of(text_of(page))) if part.strip()]
    assert re.match(r"# \S", parts[0]), "no title"
    assert re.match(r"[\w*`<]", parts[1]), "no paragraph after the title"
    headings = [part for part in parts if part.startswith("#")]
    last = parts[parts.index(headings[-1]) :] if LAST.match(headings[-1]) else parts[-1:]
    assert LAST.match(last[0]) and "](" in "\n".join(last), "say at the end where to go on"


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_arguments_in_the_prose_exist(page):
    wrong, helps = [], {}
    known = set(inspect.signature(tokend.Loader.__init__).parameters)
    for span in re.findall(r"`([^`\n]+)`", prose_of(text_of(page))):
        problem = wrong_command(span, helps)
        if problem:
            wrong.append(f"{span}: {problem}")
        if span.startswith("Loader("):
            given = re.findall(r"[(,] ?(\w+)=", span)
            wrong += [f"{span}: no argument {name}" for name in given if name not in known]
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
    print(f"{page}: {len(found)} blocks; not executed: {runner.excepted or 'nothing'}")


def test_every_example_is_named():
    pages = ["client/example/trainers/README.md", "client/example/trainers/LOOPS.md"]
    text = "".join(map(text_of, pages))
    examples = tracked(*(f"client/example/trainers/*.{kind}" for kind in ("py", "c", "yaml")))
    names = [os.path.basename(path) for path in examples]
    assert [name for name in names if f"[`{name}`]({name})" not in text] == []


WRONG = {
    "a command fails": "```sh\nfalse\n```\n",
    "a command succeeds": "<!-- test: fails -->\n\n```sh\ntrue\n```\n",
    "no such make target": "```sh\nmake coffee\n```\n",
    "not what is printed": "```console\n$ echo 12 windows\n13 shards\n```\n",
    "not the output": "```sh\necho a\n```\n<!-- test: output -->\n\n```text\nb\n```\n",
    "nothing to execute": "```text\na\n```\n",
    "no language": "```\na\n```\n",
    "no command": "```console\n```\n",
    "Python": "```python\nLoader\n```\n",
    "a config": "```yaml\nseq_lenn: 3\n```\n",
    "C": "```c\nint x = ;\n```\n",
    "a file": "[`a.py`](lib/text.py)\n\n```python\nother = 1\n```\n",
    "an indented block": "Run\n\n    make test\n",
    "a note for nothing": "<!-- test: output -->\n\nwords\n",
    "an unknown note": "<!-- test: skip -->\n\n```sh\nfalse\n```\n",
    "an open block": "```sh\ntrue\n",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_the_runner_refuses(text, directory):
    runner = Runner(directory)
    try:
        with pytest.raises((AssertionError, ValueError)):
            for block in blocks("tests/README.md", text):
                runner.execute(block)
    finally:
        runner.end()
