"""python -m tokend report: what a run was served, as one HTML file for people.

    python -m tokend report train records -c tokend.yaml -o report.html

All facts are those of `tokctl verify --json`. The page needs no network and no scripts.
"""

import html
import json
import subprocess
import time

from .._tokend import program, version
from .parser import Parser

ROWS = 200  # of a table
STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:800px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:1.8em;border-bottom:1px solid #ccc}
table{border-collapse:collapse;margin:.6em 0}td,th{padding:.15em .8em .15em 0;text-align:left}
th{border-bottom:1px solid #ccc}.n{text-align:right;font-variant-numeric:tabular-nums}
.ok,.bad{padding:.5em .8em;font-weight:600}.ok{background:#e2f2e4}.bad{background:#fbdede}
*{print-color-adjust:exact}tr{break-inside:avoid}
"""


def text(value):
    """As HTML. Control characters, and bytes that are not UTF-8, become question marks."""
    whole = str(value).encode("utf-8", "replace").decode()
    return html.escape("".join(c if c.isprintable() else "?" for c in whole))


def table(head, rows):
    """@head: of each column; "#": it has numbers. Rows after ROWS are only counted."""
    yield "<table>\n<tr>" + "".join(f"<th>{text(name.lstrip('#'))}" for name in head) + "\n"
    for row in rows[:ROWS]:
        yield "<tr>"
        for name, cell in zip(head, row, strict=True):
            yield f"<td{' class=n' if name[:1] == '#' else ''}>{text(cell)}"
        yield "\n"
    yield "</table>\n"
    if len(rows) > ROWS:
        yield f"<p>… and {len(rows) - ROWS} more.</p>\n"


def served(said):
    rows = [
        ("samples", said["samples"], "each position once"),
        ("tokens", said["samples"] * said["seq_len"], "samples × seq_len"),
        ("from", said["from"], "first position"),
        ("to", said["to"], "position after the last"),
        ("repeated", said["repeated"], ""),
        ("lost", said["lost"], ""),
        ("altered", said["altered"], ""),
        ("skipped", said["skipped"], "by request"),
        ("void", said["void"], "rows undone by restarts"),
    ]
    yield "<h2>Served</h2>\n"
    yield from table(("", "#", ""), rows)
    if said["skips"]:
        skips = ", ".join(f"{first} to {last - 1}" for first, last in said["skips"])
        yield f"<p>Skipped: positions {skips}.</p>\n"


def datasets_of(said, datasets):
    samples = max(said["samples"], 1)
    rows = [
        (
            d["name"], d["samples"], f"{100 * d['samples'] / samples:.1f} %", d["windows"],
            f"{d['samples'] / d['windows']:.2f}", d["epochs"],
        )
        for d in datasets
    ]  # fmt: skip
    head = "dataset", "#samples", "#share", "#windows", "#epochs served", "#epochs begun"
    yield "<h2>Datasets</h2>\n"
    yield from table(head, rows)
    rows = []
    for mix in said["mixes"]:
        named = sorted(mix["shares"].items(), key=lambda item: -item[1])
        rows.append(
            (mix["from"], ", ".join(f"{name} {100 * share:.3g} %" for name, share in named))
        )
    yield "<h2>Mixes</h2>\n"
    yield from table(("#from position", "mix"), rows)


def utc(seconds):
    return time.strftime("%F %T UTC", time.gmtime(seconds))


def restarts(lives):
    rows, before = [], None
    for life in lives:
        how = "start" if before is None else "went on"
        if before and life["position"] < life["reached"]:
            how = f"went back by {life['reached'] - life['position']}"
        elif before and life["position"] > life["left"]:
            how = f"skipped {life['position'] - life['left']}"
        if before and life["world"] != before["world"]:
            how += ", another world"
        numbers = (life[name] for name in ("position", "world", "micro_batch", "ranks"))
        rows.append((utc(life["time_ns"] // 10**9), *numbers, how))
        before = life
    yield "<h2>Restarts</h2>\n"
    yield from table(("time", "#position", "#world", "#micro_batch", "#ranks", "how"), rows)


def page(stream, passes):
    """@passes: the lines of `tokctl verify --json`."""
    title = f"Stream {text(stream)}"
    yield (
        "<!DOCTYPE html>\n<html lang=en><meta charset=utf-8>\n"
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f'<meta name=viewport content="width=device-width">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n<h1>{title}</h1>\n<p>Windows of {passes[0]['seq_len']} tokens. "
        f"Written by tokend {version} on {utc(time.time())}.</p>\n"
    )
    for said in passes:
        if len(passes) > 1:
            yield f"<h2>Peer {said['peer']}, pass {said['pass']}</h2>\n"
        kind = "ok" if said["verdict"].startswith("OK: ") else "bad"
        yield f"<p class={kind}>{text(said['verdict'])}</p>\n"
        yield from served(said)
        yield from datasets_of(said, sorted(said["datasets"], key=lambda d: -d["samples"]))
        yield from restarts(said["lives"])
    yield "</html>\n"


def main(argv):
    parser = Parser(
        prog="python -m tokend report",
        description="Writes what a run was served as an HTML page: the verdict of `tokctl verify`, "
        "the epochs of each dataset, the mix, and restarts. The exit status is 1 if any position "
        "was repeated, lost or altered.",
    )
    add = parser.add_argument
    add("stream", metavar="STREAM")
    add("records", nargs="+", metavar="RECORD", help="a file, or a directory with *.record files")
    add("-c", "--config", metavar="FILE", help="the daemon's config; default: as for tokctl")
    add("-o", "--output", metavar="FILE", required=True, help="the page; it is replaced")
    given = parser.parse_args(argv)
    verify = [program("tokctl"), "verify", "--json"]
    verify += ["-c", given.config] if given.config else []
    done = subprocess.run([*verify, "--", given.stream, *given.records], stdout=-1, check=False)
    if not done.stdout:
        return done.returncode or 1
    passes = [json.loads(line) for line in done.stdout.splitlines()]
    with open(given.output, "w", encoding="utf-8") as file:
        file.writelines(page(given.stream, passes))
    bad = next((said for said in passes if not said["verdict"].startswith("OK: ")), passes[-1])
    print(f"{given.output}: {bad['verdict']}")
    return done.returncode
