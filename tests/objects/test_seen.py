"""A store as operators see it: status, metrics and the live page's figures agree with what a
proxy counts, and name what a session waits for.
"""

import json
import re

import pytest
from jobs import SEQ_LEN

from lib import TOKCTL, Client, run, status, wait_for
from lib.browser import Browser
from lib.fault_proxy import Fault
from lib.web import Web, metric

STORE, SLOW_DOWN = "lab://corpus", Fault(status=503, code="SlowDown")


class Seen:
    """A daemon that reads a store through a proxy."""

    def __init__(self, job):
        self.proxy, self.daemon = job.proxy, job.daemon(job.config())
        self.web = Web(self.daemon.place, self.daemon.socket)
        self.secrets = (job.store.access_key, job.store.secret_key)

    def get(self, path):
        text = self.web.ask(path)[1]
        assert not any(secret in text for secret in self.secrets)
        return text

    def metric(self, name, **labels):
        return metric(self.daemon.socket, name, **labels)

    def tokctl(self, *words):
        code, out, err = run(TOKCTL, *words, "--socket", self.daemon.socket)
        assert code == 0, err
        text = out.decode()
        assert not any(secret in text for secret in self.secrets)
        return text

    def store(self):
        (store,) = status(self.daemon.socket)[1]["stores"]
        return store


@pytest.fixture(scope="module")
def seen(job):
    seen = Seen(job)
    yield seen
    job.proxy.clear()
    assert seen.daemon.stop() == 0


def test_figures_are_those_of_the_proxy(seen):
    begin = seen.proxy.count()
    client = Client(seen.daemon.socket).attach(run="a", slots=4)
    assert wait_for(lambda: status(seen.daemon.socket)[0][0]["published"] == 4)
    store = seen.store()
    assert store["store"] == STORE and store["provider"] == "environment"
    assert store["requests"] == seen.proxy.count() - begin
    read = sum(request.range[1] for request in seen.proxy.requests[begin:])
    assert store["used_bytes"] == 8 * (SEQ_LEN + 1) * 2 <= store["bytes"] == read
    assert (store["retries"], store["faults"], store["last"]) == (0, {}, "")
    assert store["credentials_s"] is None and store["p50_ms"] is not None
    line = next(text for text in seen.tokctl("status").splitlines() if text.startswith(STORE))
    assert re.fullmatch(
        rf"{STORE}  \d\S* GET/s \d\S* MB/s  0 of \d+ in flight  p50 \d+ p99 \d+ ms  "
        r"retried 0\.0 %  credentials: environment",
        line,
    )
    page = json.loads(seen.get("/status.json"))["stores"][0]
    assert {key: page[key] for key in ("store", "requests", "bytes")} == {
        key: store[key] for key in ("store", "requests", "bytes")
    }
    assert seen.metric("tokend_store_requests_total", store=STORE) == store["requests"]
    assert seen.metric("tokend_store_bytes_total", store=STORE) == store["bytes"]
    assert seen.metric("tokend_store_seconds_count", store=STORE) == store["requests"]
    assert seen.metric("tokend_stream_store_wait_seconds", stream="train") == 0
    with Browser(seen.daemon.place, f"http://127.0.0.1:{seen.web.port}/") as page:
        page.shows("document.getElementById('storage')?.hidden === false")
        assert page.rows("stores")[0][0] == STORE and page.said == []
    client.close()


def test_a_session_says_what_it_waits_for(seen):
    seen.proxy.inject("503", SLOW_DOWN, times=1 << 30)
    client = Client(seen.daemon.socket).attach(run="b", position=2000, slots=4)

    def waits():
        of_run = [s for s in status(seen.daemon.socket)[0] if s["run"] == "b"]
        return of_run[0]["store_wait_ms"] and of_run[0]

    session = wait_for(waits)
    assert session["store_wait_ms"] >= 1000
    assert re.fullmatch(rf"{STORE}\S*: 503 SlowDown", session["store_wait"])
    assert re.search(
        rf"^  waiting \d+ s for {STORE}\S*: 503 SlowDown$", seen.tokctl("status"), re.M
    )
    assert re.search(r"  store \d+ s\b", seen.tokctl("status"), re.M)
    assert seen.metric("tokend_stream_store_wait_seconds", stream="train") >= 1
    store = seen.store()
    assert store["last"] == "503 SlowDown" and store["retries"] > 0 and store["retried"] > 0
    assert 0 < store["faults"]["503"] <= seen.proxy.injected["503"]
    assert seen.metric("tokend_store_faults_total", store=STORE, code="503") > 0
    assert json.loads(seen.get("/status.json"))["sessions"][-1]["store_wait"].startswith(STORE)
    seen.proxy.clear()
    assert wait_for(lambda: not waits())
    client.close()
