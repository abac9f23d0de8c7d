"""python -m tokend report: what a run was served, as one HTML file for people.

    python -m tokend report train records -c tokend.yaml -o report.html

It has the members of `tokctl verify --json` as tables. It needs no network and no scripts.
"""

import html
import json
import subprocess
import time

from .._tokend import program, version
from .parser import Parser

HEAD = """<!DOCTYPE html>
<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Stream {stream}</title>
<style>body{{font:15px/1.45 system-ui,sans-serif;max-width:800px;margin:2em auto;padding:0 1em}}
td,th{{padding:.15em .8em .15em 0;text-align:left}}tr{{break-inside:avoid}}</style>
<h1>Stream {stream}</h1>
<p>Windows of {seq_len} tokens. Written by tokend {version} on {time}.</p>
"""


def text(value):
    """As HTML. Control characters, and bytes that are not UTF-8, become question marks."""
    if isinstance(value, dict):
        value = ", ".join(f"{name} {one}" for name, one in value.items())
    whole = str(value).encode("utf-8", "replace").decode()
    return html.escape("".join(c if c.isprintable() else "?" for c in whole))


def table(rows):
    yield "<table>\n"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{text(cell)}' for cell in row)}\n"
    yield "</table>\n"


def utc(seconds):
    return time.strftime("%F %T UTC", time.gmtime(seconds))


def pass_of(said):
    """@said: a line of `tokctl verify --json`."""
    said["skips"] = [{"from": first, "to": end - 1} for first, end in said["skips"]]
    said["lives"] = [{"time": utc(life.pop("time_ns") // 10**9), **life} for life in said["lives"]]
    yield f"<h2>{text(said['verdict'])}</h2>\n"
    yield from table((name, value) for name, value in said.items() if not isinstance(value, list))
    for name, members in said.items():
        if isinstance(members, list) and members:
            yield f"<h2>{name}</h2>\n"
            head = dict.fromkeys(name for member in members for name in member)
            yield from table([head, *([m.get(name, "") for name in head] for m in members)])


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
    facts = {"stream": text(given.stream), "seq_len": passes[0]["seq_len"], "version": version}
    with open(given.output, "w", encoding="utf-8") as file:
        file.write(HEAD.format(**facts, time=utc(time.time())))
        for said in passes:
            file.writelines(pass_of(said))
    bad = next((said for said in passes if not said["verdict"].startswith("OK: ")), passes[-1])
    print(f"{given.output}: {bad['verdict']}")
    return done.returncode
