"""The page at the metrics port in a real browser: live, read-only, back after a restart."""

import http.client
import json
import os
import re
import shutil
import signal

import pytest
from requesting import DONE, Bench, Operator, Trainer

from lib import free_port, status, wait_for
from lib.browser import Browser

ODD = "<b>bold & 'odd'"  # a run's name

needs_browser = pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium")


class Served(Bench):
    def __init__(self, place):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        config = place.config
        place.config = lambda **keys: config(**keys, metrics=f"127.0.0.1:{self.port}")
        super().__init__(place)

    def ask(self, path, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path)
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        return reply, text

    def status(self):
        return json.loads(self.ask("/status.json")[1])


@pytest.fixture(scope="module")
def bench(shared):
    bench = Served(shared)
    yield bench
    assert bench.daemon.stop() == 0


@pytest.mark.asan
@pytest.mark.parametrize(
    "path, kind", [("/", "html"), ("/page.js", "javascript"), ("/page.css", "css")]
)
def test_files_need_no_other_site(bench, path, kind):
    reply, text = bench.ask(path)
    assert (reply.status, kind in reply.headers["Content-Type"]) == (200, True)
    name = {"/": "page.html"}.get(path, path[1:])
    source = open(
        os.path.join(os.path.dirname(__file__), "../../daemon/control", name), "rb"
    ).read()
    assert text == source
    assert set(re.findall(rb"\w+://[^\"']*", text)) <= {b"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    head, nothing = bench.ask(path, "HEAD")
    assert (head.status, nothing) == (200, b"")
    assert head.headers["Content-Length"] == str(len(source))
    assert bench.ask(path, "POST")[0].status == 405


@pytest.mark.asan
def test_status_is_that_of_tokctl_without_places(bench):
    trainer = Trainer(bench, run=ODD)
    trainer.step(3)

    def agree():
        """The totals, if both say the same: not while the ring is being filled."""
        (ours,), ((theirs,), total) = bench.status()["sessions"], status(bench.daemon.socket)
        same = [ours[name] == theirs[name] for name in set(ours) - {"seq_len", "full_ms"}]
        return all(same) and len(same) > 12 and total

    total = wait_for(agree)
    assert total, "both say the same"
    said = bench.status()
    assert said["daemon"]["limit_bytes"] == total["limit_bytes"]
    text, published = json.dumps(said), said["sessions"][0]["published"]
    for place in (bench.place.path, str(trainer.process.pid), os.uname().nodename, "socket"):
        assert place not in text
    assert sum(d["samples"] for d in said["streams"][0]["datasets"]) == 64 * published
    assert said["runs"][0]["mixes"] == [{"from": 0, "mix": {"web": 0.5, "code": 0.5}}]
    trainer.close()
    assert wait_for(lambda: not bench.status()["sessions"])


@needs_browser
def test_browser_shows_what_happens(bench):
    trainers = [Trainer(bench, rank=rank, world=2) for rank in (0, 1)]
    odd = Trainer(bench, run=ODD)
    with Browser(bench.place, bench.url) as page:
        page.shows("document.querySelectorAll('#sessions tbody tr').length == 3")
        rows = page.rows("sessions")
        assert [row[:3] for row in rows[:2]] == [
            ["train", "job", "0 of 2"],
            ["train", "job", "1 of 2"],
        ]
        assert rows[2][1] == ODD and page.value("document.querySelector('b') === null")
        assert ["train", "job", "web 50 %, code 50 %", ""] in page.rows("runs")
        assert page.rows("faults") == [] and page.value("!document.getElementById('none').hidden")

        def moves():
            for trainer in trainers:
                trainer.step(1)
            rows = page.rows("sessions")
            return all(row[4] != "0" and int(row[3]) > 0 for row in rows[:2]) and page.value(
                "[...document.querySelectorAll('#mixes path')].every(p => p.getAttribute('d'))"
            )

        assert wait_for(moves), "rates, and the datasets' shares"
        assert page.rows("streams")[0][3] != "0"

        operator = Operator(bench, "mix", "train", "web=1", "code=3", "--run", "job")
        for trainer in trainers:
            trainer.sees()
            request = trainer.fetch()
            trainer.obey("mix", request["args"])
            trainer.answer(request["number"], DONE, "")
        assert operator.result()[0] == 0
        page.shows(
            "document.querySelector('#runs tbody').innerText.includes('web 25 %, code 75 %')"
        )

        shard = bench.place.file("web/a.bin")
        os.truncate(shard, 1000)
        wait_for(lambda: odd.step(1) is None or bench.status()["faults"])
        page.shows("document.querySelector('#faults tbody').innerText.includes('a.bin')")
        assert page.value("document.getElementById('none').hidden")
        assert bench.place.path not in page.value("document.documentElement.innerHTML")
        assert page.said == [], "no errors, and nothing that the policy forbids"

        bench.daemon.kill()
        page.shows("document.getElementById('state').textContent.startsWith('no answer for')")
        bench.place.shard("web/a.bin", 400_000)
        bench.daemon.start()
        page.shows("/, up \\d+ s, 0 sessions/.test(document.getElementById('state').textContent)")
        again = Trainer(bench, run="again")
        again.step(2)
        page.shows("document.querySelector('#sessions tbody').innerText.includes('again')")
        again.close()
    for trainer in [*trainers, odd]:
        trainer.process.kill()


@pytest.mark.asan
def test_faults_name_no_directories(bench):
    config = open(bench.config).read()
    with open(bench.config, "w") as file:
        file.write("streams: [")
    os.kill(bench.daemon.pid, signal.SIGHUP)
    assert wait_for(lambda: bench.status()["faults"]), "the broken config is a fault"
    with open(bench.config, "w") as file:
        file.write(config)
    fault = bench.status()["faults"][0]
    assert (fault["level"], fault["text"].startswith("tokend.yaml:")) == ("error", True), fault
    assert wait_for(lambda: f"{bench.config}:" in bench.daemon.log()), "the log has the whole path"
