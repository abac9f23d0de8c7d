#!/usr/bin/env python3
"""Writes the tables of the pages in bench/results anew from the figures of the last run.

    build/venv/bin/python bench/pages.py [JSON…]

Each table is between the lines `<!-- table: NAME -->` and `<!-- end of table -->` of a page. The
figures are those of build/bench/results.json, or of the given files of run.py; later ones win,
and of build/bench/growth.json. A table without figures stays as it is. Texts are never touched.
"""

import json
import re
import statistics
import sys

import goals
from common import ROOT

FIGURES, PAGES = ROOT / "build/bench", ROOT / "bench/results"
TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
SIZE = ("start_ms", "attach_ms", "wait_us", "memory")
RATES = {"stored": "M tokens/s as stored", "int64": "int64", "cpu": "CPU s per 10⁹ tokens"}
NAMES = RATES | {
    "tokens": "tokens",
    "start_ms": "start, ms",
    "attach_ms": "attach, ms",
    "memory": "memory, MiB",
    "wait_us": "wait, µs",
    "torch": "torch, int64",
    "torch_start_ms": "torch: start, ms",
    "torch_memory": "torch: memory, MiB",
}


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
    release = runs[-1]["version"].split()[-1:] if workers or name.startswith("fio") else []
    if release and not name.startswith(("numpy", "nanoGPT")):
        name += " " + release[0].removeprefix("fio-").split("+")[0]
    rates = [run["rate"] / 1e6 for run in runs]
    middle = {
        key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "version"
    }
    rate = f"{number(middle['rate'] / 1e6)} ({number(min(rates))}–{number(max(rates))})"
    cpu = (number(middle[key]) for key in ("all", "thread"))
    return [name, workers or "–", rate, number(middle["busy"] / 1e6), *cpu]


def contest(parts):
    found = parts.get("contest", {}).get("contest", {})
    heads = ["loader", "w", "M tokens/s", "busy", "CPU s, all", "trainer's thread"]
    return (
        markdown(heads, [contest_row(*each) for each in found.items() if each[1]]) if found else ""
    )


def goals_table(parts):
    figures = {name: value for part in parts.values() for name, value in part.items()}
    rows = []
    for part, figure, text, unit, sense, limit in goals.GOALS:
        value = figures.get(figure)
        said = "not measured" if value is None else goals.verdict(value, sense, limit)
        if part == "gpu" and value is None:
            said = "needs a GPU"
        goal = f"{sense} {f'{limit:g} {unit}'.rstrip(' ×')}"
        rows.append(
            [text, number(value, unit), goal, said if said.find("way") < 0 else f"**{said}**"]
        )
    return markdown(["figure", "value", "goal", ""], rows) if figures else ""


def growth_table(axis, points, keys):
    keys = [key for key in keys if any(key in point for point in points.values())]
    rows = []
    for n, point in points.items():
        cells = (point.get(key) for key in keys)
        mega = ("stored", "int64", "torch")
        scaled = (c / 1e6 if c and k in mega else c for c, k in zip(cells, keys, strict=True))
        rows.append([f"{int(n):,}", *map(number, scaled)])
    return markdown([axis.replace("size", "tokens"), *(NAMES.get(key, key) for key in keys)], rows)


def growth(axis, found):
    if axis not in found:
        return ""
    if axis != "size":
        return growth_table(
            axis, found[axis], list(dict.fromkeys(k for p in found[axis].values() for k in p))
        )
    torch = found["size"]["torch"]
    points = {
        n: point | {f"torch_{key}": value for key, value in torch.get(n, {}).items()}
        for n, point in found["size"]["tokend"].items()
    }
    return growth_table(axis, points, [*SIZE, "torch_start_ms", "torch_memory"])


def load(name):
    return json.loads(name.read_text()) if name.exists() else {}


def main():
    names = sys.argv[1:] or [FIGURES / "results.json"]
    parts = {}
    for name in names:
        parts |= load(ROOT / name).get("parts", {})
    grown = load(FIGURES / "growth.json")

    def table(found):
        name = found[2]
        makers = {"contest": contest, "goals": goals_table}
        made = makers[name](parts) if name in makers else growth(name, grown)
        print(f"  {name}: {'written' if made else 'no figures, left as it is'}")
        return found[1] + made if made else found[0]

    for page in sorted(PAGES.glob("*.md")):
        print(page.relative_to(ROOT))
        page.write_text(TABLE.sub(table, page.read_text()))


if __name__ == "__main__":
    main()
