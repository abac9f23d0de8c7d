#!/usr/bin/env python3
"""Writes the pages' tables and plots anew from the figures of the last runs.

    build/venv/bin/python bench/pages.py [JSON…]

The figures are those of `make bench` in build/bench/results.json, and of the given files of single
parts, which win.
A table is between the lines `<!-- table: NAME -->` and `<!-- end of table -->` of a page. NAME is
one of TABLES, `printed PART…` for what parts of run.py print, or an axis of growth.py, whose plots
are drawn, too. A table without figures stays as it is. Texts are never touched.
"""

import json
import re
import statistics
import sys
import textwrap

import growth
from common import ROOT, medians

RESULTS = ROOT / "bench/results"
PAGES = (ROOT / "README.md", ROOT / "bench/RESULTS.md")
TABLE = re.compile(r"(<!-- table: ([^>]+) -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
COLUMNS = 100
# Of README.md's table: a column's head, and the names of a loader in the contest and in `steps`.
LOADERS = (
    ("tokend", "tokend", "tokend"),
    ("NumPy loop", "numpy.memmap", None),
    ("DataLoader + memmap", "torch DataLoader", "torch DataLoader, 0 workers"),
    ("litData {}", "litData TokensLoader", None),
    ("Megatron-core {}", "Megatron GPTDataset", None),
    ("Mosaic {}", "Mosaic Streaming", None),
)


def number(value, unit=""):
    if value is None:
        return "–"
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return shown if unit in ("", "×") else f"{shown} {unit}"


def markdown(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(
        f"|{'|'.join(line)}|\n" if line[0] == "---" else f"| {' | '.join(line)} |\n"
        for line in lines
    )


def contest_row(who, runs):
    name, workers = re.fullmatch(r"(.*?)(?:, (\d+) workers)?", who).groups()
    if not name.startswith("numpy"):
        name = f"{name} {runs[-1]['version'].split('+')[0]}".rstrip()
    rates, middle = [run["rate"] / 1e6 for run in runs], medians(runs)
    rate = f"{number(middle['rate'] / 1e6)} ({number(min(rates))}–{number(max(rates))})"
    cpu = (number(middle[key]) for key in ("all", "thread"))
    return [name, workers or "–", rate, number(middle["busy"] / 1e6), *cpu]


def contest_of(run):
    return {who: runs for who, runs in run["parts"]["contest"]["contest"].items() if runs}


def contest(run):
    heads = ["loader", "w", "M tokens/s", "busy", "CPU s, all", "trainer's thread"]
    return markdown(heads, [contest_row(*each) for each in contest_of(run).items()])


def readme(run):
    """The contest in short, for README.md."""
    found, waits = contest_of(run), run["parts"]["steps"]["waits"]

    def cells(key, scale, end):
        for _, name, _ in LOADERS:
            runs = found.get(name if name == "tokend" and end == ", 0 workers" else name + end, [])
            values = [each[key] / scale for each in runs]
            yield number(statistics.median(values)) if values else "–"

    wait = [number(waits[name]["p99"] / 1e3, "ms") if name else "" for *_, name in LOADERS]
    rows = [
        ["M tokens/s, one trainer", *cells("rate", 1e6, ", 0 workers")],
        ["the same with 2 workers", *cells("rate", 1e6, ", 2 workers")],
        ["CPU seconds per 10⁹ tokens", *cells("all", 1, ", 0 workers")],
        ["wait in steps of 20 ms, p99", *wait],
    ]
    heads = [""]
    for head, name, _ in LOADERS:
        release = found[name + ", 0 workers"][-1]["version"] if "{}" in head else ""
        heads.append(head.format(".".join(release.split(".")[:2])))
    return markdown(heads, rows)


def machine(run):
    about = run["machine"]
    day, gigabytes = about["date"].split("T")[0], int(about["memory"].split()[0]) / 1e6
    return (
        f"Measured on {day} in {about['minutes']:.0f} minutes, {about['rounds']} rounds of "
        f"{about['round_s']:g} s, commit {about['commit'][:7]}.\n"
        f"The machine: {about['cores']} cores of {about['cpu']}, {gigabytes:.0f} GB, "
        f"Linux {about['kernel'].split('-')[0]}, Python {about['python']}.\n"
        f"Its load average was {about['load']:.1f} before the run; in the run, its host took "
        f"{about['stolen']:.1%} of the cores' time.\n"
    )


def narrow(line):
    """A line of output that is not wider than the pages."""
    if len(line) > COLUMNS:
        line = re.sub(r"(?<=\S) {3,}", "  ", line)
    return (
        textwrap.fill(line, COLUMNS, subsequent_indent=" " * 6, break_on_hyphens=False)
        if line
        else ""
    )


def printed(run, names):
    """A block of what parts printed. None: one did not run."""
    if not run["printed"].keys() >= set(names):
        return None
    text = "\n".join(run["printed"][name].strip("\n") + "\n" for name in names)
    text = "".join(f"{narrow(line)}\n" for line in text.splitlines())
    when = sorted({run["when"][name] for name in names} - {run["when"][""]})
    return "".join(f"{each}\n\n" for each in when) + (
        f"<!-- test: picture -->\n\n```text\n{text}```\n"
    )


def curve(axis):
    """The plots of an axis."""
    return "\n".join(
        f"![{title}: {y} against {x}](results/{name}.svg)\n"
        for name, (of, x, title, y, _) in growth.PLOTS.items()
        if of == axis
    )


TABLES = {"contest": contest, "readme": readme, "machine": machine}


def made(run, name):
    """The text of table @name, or None if @run lacks its figures."""
    first, *others = name.split()
    try:
        if first == "printed":
            return printed(run, others)
        return TABLES[first](run) if first in TABLES else curve(first)
    except KeyError:
        return None


def main():
    run = {"parts": {}, "printed": {}, "when": {}}
    for name in ["build/bench/results.json", *sys.argv[1:]]:
        one = json.loads((ROOT / name).read_text())
        about = one["machine"]
        when = f"Measured on {about['date'][:10]}, commit {about['commit'][:7]}."
        run.setdefault("machine", about)
        run["when"].setdefault("", when)
        run["when"] |= dict.fromkeys(one["printed"], when)
        run["parts"] |= one["parts"]
        run["printed"] |= one["printed"]

    def table(found):
        text = made(run, found[2])
        print(f"  {found[2]}: {'written' if text else 'no figures, left as it is'}")
        return found[1] + text if text else found[0]

    if "growth" in run["parts"]:
        for name, svg in growth.plots(run["parts"]["growth"]["growth"]).items():
            (RESULTS / name).write_text(svg)
    for page in PAGES:
        print(page.relative_to(ROOT))
        page.write_text(TABLE.sub(table, page.read_text()))


if __name__ == "__main__":
    main()
