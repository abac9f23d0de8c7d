"""python -m tokend report: what a run was served, as one HTML file for people.

    python -m tokend report train records -c tokend.yaml -o report.html

All facts are those of `tokctl verify --json`. The page needs no network and no scripts.
"""

import html
import itertools
import json
import math
import subprocess
import sys
import time

from .._tokend import Error, program, version
from .parser import Parser

ROWS = 200  # of a table
# Distinct also for people who see few colours. They repeat.
COLOURS = "4477aa ee6677 228833 ccbb44 66ccee aa3377 999933 882255 44aa99 bbbbbb".split()
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 220, 56, 12, 8, 34
STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:800px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:1.8em;border-bottom:1px solid #ccc}
table{border-collapse:collapse;margin:.6em 0}td,th{padding:.15em .8em .15em 0;text-align:left}
th{border-bottom:1px solid #ccc}.n{text-align:right;font-variant-numeric:tabular-nums}
.ok,.bad{padding:.5em .8em;font-weight:600}.ok{background:#e2f2e4}.bad{background:#fbdede}
figure{margin:1.2em 0 .4em;break-inside:avoid}figcaption{font-weight:600}svg{width:100%}
svg text{font-size:11px;fill:#444}.r{text-anchor:end}.m{text-anchor:middle}.g{stroke:#ddd}
.k{stroke:#000;stroke-dasharray:2 3}polyline{fill:none;stroke-width:1.6}
.key{white-space:nowrap;margin-right:.8em}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
*{print-color-adjust:exact}tr{break-inside:avoid}
"""


def text(value):
    """As HTML. Control characters, and bytes that are not UTF-8, become question marks."""
    whole = str(value).encode("utf-8", "replace").decode()
    return html.escape("".join(c if c.isprintable() else "?" for c in whole))


def table(head, rows):
    """@head: of each column, with a leading "#" if it has numbers. Rows after ROWS are counted."""
    numbers = [name.startswith("#") for name in head]
    kinds = ["<{} class=n>" if number else "<{}>" for number in numbers]
    lines = [head, *rows[:ROWS]] if any(head) else rows[:ROWS]
    yield "<table>\n"
    for i, line in enumerate(lines):
        tag = "th" if i == 0 and any(head) else "td"
        cells = (
            kind.format(tag) + text(c).lstrip("#") for kind, c in zip(kinds, line, strict=True)
        )
        yield f"<tr>{''.join(cells)}\n"
    yield "</table>\n"
    if len(rows) > ROWS:
        yield f"<p>… and {len(rows) - ROWS} more.</p>\n"


# ---- charts ----


def short(value):
    for unit in " kMGT":
        if value < 999.5 or unit == "T":
            return f"{value:.3g} {unit}".strip()
        value /= 1000


def round_up(value):
    """The least number at or above it that has round quarters."""
    unit = 10 ** math.floor(math.log10(value))
    steps = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
    return next(step for step in steps if step * unit >= value * 0.999) * unit


def chart(title, axis, span, top, lines=(), areas=(), bars=()):
    """An SVG. @span: the first and the last x; y is from 0 to @top. @lines, @areas: points (x, y)
    of each dataset; @bars: x of vertical lines.
    """
    first, last = span

    def at(x, y):
        wide = (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        return LEFT + wide, HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    yield (
        f"<figure><figcaption>{title}</figcaption>\n"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="{title}">\n'
    )
    for part in (0, 0.25, 0.5, 0.75, 1):
        value = first + part * (last - first)
        x, y = at(value, part * top)
        yield (
            f'<path class=g d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/><text class=r x={LEFT - 5} '
            f"y={y + 4:.1f}>{short(part * top)}</text><text class={'m' if part < 1 else 'r'} "
            f"x={x:.1f} y={HEIGHT - BOTTOM + 15}>{short(value)}</text>\n"
        )
    yield f"<text class=m x={WIDTH // 2} y={HEIGHT - 4}>{axis}</text>\n"
    for shapes, tag, style in ((areas, "polygon", "fill"), (lines, "polyline", "stroke")):
        for points, colour in zip(shapes, itertools.cycle(COLOURS), strict=False):
            placed = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in points)
            yield f'<{tag} style="{style}:#{colour}" points="{placed}"/>\n'
    for x in bars:
        yield f'<path class=k d="M{at(x, 0)[0]:.1f} {TOP}V{HEIGHT - BOTTOM}"/>\n'
    yield "</svg></figure>\n"


def draw_datasets(said, datasets):
    """The mix, and the epochs that were served of each dataset, over the positions."""
    mixes, span = said["mixes"], (said["from"], said["to"])
    starts = [mix["from"] for mix in mixes]
    stretches = list(zip(starts, [*starts[1:], said["to"]], mixes, strict=True))
    areas, lines, below = [], [], [0.0] * len(mixes)
    for dataset in datasets:
        upper, lower, above, total = [], [], [], 0.0
        points = [(said["from"], 0.0)]
        for (first, last, mix), base in zip(stretches, below, strict=True):
            share = mix["shares"].get(dataset["name"], 0)
            above.append(base + 100 * share)
            upper += [(first, above[-1]), (last, above[-1])]
            lower += [(first, base), (last, base)]
            total += share * (last - first) / dataset["windows"]
            points.append((last, total))
        areas.append(upper + lower[::-1])
        lines.append(points)
        below = above
    top = round_up(max(points[-1][1] for points in lines) or 1)
    yield from chart("Mix, % of the samples", "position", span, 100, (), areas, starts[1:])
    yield from chart("Epochs served", "position", span, top, lines, (), starts[1:])
    yield "<p>"
    for dataset, colour in zip(datasets, itertools.cycle(COLOURS), strict=False):
        name = text(dataset["name"])
        yield f'<span class=key><i style="background:#{colour}"></i>{name}</span> '
    yield "</p>\n"


def draw_lives(lives):
    """A line from where processes began to the position that was reached when others did."""
    begin, seconds = lives[0]["time_ns"], (lives[-1]["time_ns"] - lives[0]["time_ns"]) / 1e9
    if seconds <= 0:
        return
    days, hours = seconds > 2 * 86400, seconds > 2 * 3600
    unit, name = (86400, "days") if days else (3600, "hours") if hours else (1, "seconds")
    points = []
    for i, life in enumerate(lives):
        x = (life["time_ns"] - begin) / 1e9 / unit
        points += [(x, life["reached"] if i else life["position"]), (x, life["position"])]
    top = round_up(max(y for _, y in points) or 1)
    title = "Positions reached when processes began"
    yield from chart(title, name, (0, seconds / unit), top, [points])


# ---- the page ----


def put_served(said, seq_len):
    rows = [
        ("samples", said["samples"], "each position once"),
        ("tokens", said["samples"] * seq_len, "samples × seq_len"),
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


def put_datasets(said, datasets):
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
    if said["mixes"]:
        yield from draw_datasets(said, datasets)


def describe(life, before):
    if before is None:
        return "start"
    if life["position"] < life["reached"]:
        what = f"went back by {life['reached'] - life['position']}"
    elif life["position"] > life["left"]:
        what = f"skipped {life['position'] - life['left']}"
    else:
        what = "went on"
    return what + (", another world" if life["world"] != before["world"] else "")


def utc(seconds):
    return time.strftime("%F %T UTC", time.gmtime(seconds))


def put_lives(lives):
    back = sum(life["position"] < life["reached"] for life in lives[1:])
    times = len(lives) - 1
    yield (
        f"<h2>Restarts</h2>\n<p>Ranks began anew {times} time{'' if times == 1 else 's'}, {back} "
        "of them at a position that had been passed. Waits are not in records: see the daemon's "
        "metrics.</p>\n"
    )
    yield from draw_lives(lives)
    rows = [
        (
            utc(life["time_ns"] // 10**9), life["position"], life["world"], life["micro_batch"],
            life["ranks"], describe(life, before),
        )
        for life, before in zip(lives, [None, *lives], strict=False)
    ]  # fmt: skip
    head = "time", "#position", "#world", "#micro_batch", "#ranks", "how"
    yield from table(head, rows)


def put_mixes(said):
    rows = []
    for mix in said["mixes"]:
        shares = sorted(mix["shares"].items(), key=lambda item: -item[1])
        named = ", ".join(f"{name} {100 * share:.3g} %" for name, share in shares)
        rows.append((mix["from"], named))
    yield "<h2>Mixes</h2>\n"
    yield from table(("#from position", "mix"), rows)


def put_page(stream, passes):
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
        datasets = sorted(said["datasets"], key=lambda d: -d["samples"])
        if len(passes) > 1:
            yield f"<h2>Peer {said['peer']}, pass {said['pass']}</h2>\n"
        kind = "ok" if said["verdict"].startswith("OK: ") else "bad"
        yield f"<p class={kind}>{text(said['verdict'])}</p>\n"
        yield from put_served(said, said["seq_len"])
        yield from put_datasets(said, datasets)
        yield from put_lives(said["lives"])
        yield from put_mixes(said)
    yield "</html>\n"


# ---- the command line ----


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
    try:
        with open(given.output, "w", encoding="utf-8") as page:
            page.writelines(put_page(given.stream, passes))
    except OSError as error:
        raise Error(f"{given.output}: {error.strerror}") from None
    bad = next((said for said in passes if not said["verdict"].startswith("OK: ")), passes[-1])
    print(f"{given.output}: {bad['verdict']}")
    sys.stdout.flush()
    return done.returncode
