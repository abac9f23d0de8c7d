"""python -m tokend report: one HTML file that shows what a run was served, from its records."""

import html.parser
import os
import sys

from verifying import Scene

from lib import TOKCTL, run


class Page(html.parser.HTMLParser):
    """The tables and texts of a page. Fails if the page needs anything else."""

    def __init__(self, path):
        super().__init__()
        self.words, self.rows, self.row = [], {}, None
        self.feed(open(path, encoding="utf-8").read())
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href", "onclick", "onload"} & set(attributes)
        if tag == "tr":
            self.row = []
        elif tag in ("td", "th"):
            self.row.append("")

    def handle_endtag(self, tag):
        if tag == "table":
            self.row = None

    def handle_data(self, data):
        self.words.append(data)
        if self.row:
            self.row[-1] += data.strip()
            self.rows[self.row[0]] = self.row


def report(scene, stream, *records, code=0):
    path = scene.place.file("report.html")
    command = sys.executable, "-m", "tokend", "report", stream, *records, "-c", scene.config
    status, out, err = run(*command, "-o", path)
    assert (status, err) == (code, ""), (status, out, err)
    return out.decode(), Page(path)


def test_a_run_with_restarts_and_another_mix(place):
    scene = Scene(place)
    records = scene.directory("job")
    scene.phase("job", 2, 4, 150, to="one")  # to 1200
    scene.phase("job", 2, 4, 50, "one", to="two")  # to 1600
    mixed = scene.cursor("mixed")
    code, _, err = run(TOKCTL, "cursor", "mix", scene.cursor("one"), "web=1", "code=3", "-o", mixed)
    assert code == 0, err
    last = scene.phase("job", 4, 2, 200, "mixed")  # from 1200, on another world, to 2800
    verdict, page = report(scene, "train", records)
    assert "report.html: OK: every sample from 0 to 2799 once; 400 rows are void" in verdict
    assert "Stream train" in page.text and "Windows of 30 tokens" in page.text
    assert "OK: every sample from 0 to 2799 once" in page.text
    assert page.rows["samples"][1] == "2800"
    assert page.rows["void"][1] == "400", "rows that the restart undid"
    web, code = page.rows["web"], page.rows["code"]
    windows = (20_000 - 1) // 30 + (10_000 - 1) // 30
    assert int(web[1]) + int(code[1]) == 2800 and web[3] == code[3] == str(windows)
    assert page.rows["0"][1] == "web 0.7, code 0.3"
    assert page.rows["2048"][1] == "web 0.25, code 0.75", "the mix of the records"
    lives = [row for row in page.rows.values() if " UTC" in row[0]]
    assert lives[-1][1:] == ["1200", "1200", "4", "2", "4", "1600"], "it went back by 400"
    os.unlink(f"{last}-1.record")
    verdict, page = report(scene, "train", records, code=1)
    assert "lost" in verdict and verdict.split(": ", 1)[1].strip() in page.text
    assert page.rows["lost"][1] != "0"
    few = scene.phase("few", 1, 4, 4) + "-0.record"
    odd = scene.place.file("<script>alert(1)<&'\x1b[1m.record")
    with open(few, "rb") as file, open(odd, "wb") as other:
        other.write(file.read()[:-8] + bytes(8))
    verdict, page = report(scene, "train", odd, code=1)
    assert "<script>alert(1)<&'?[1m.record" in page.text
    for arguments, code, message in (
        (["trian", records], 1, "train"),
        (["train", "/proc/none"], 1, "/proc/none: No such"),
        (["train", records, "-o", "/proc/none"], 1, "/proc/none: No such"),
        (["train"], 2, "RECORD"),
    ):
        more = [] if "-o" in arguments else ["-o", scene.place.file("x")]
        command = "-m", "tokend", "report", "-c", scene.config, *arguments, *more
        status, out, err = run(sys.executable, *command)
        assert (status, out) == (code, b"") and message in err.splitlines()[0], (status, err)
