"""The fault proxy does to a real store's answers what its script says, and counts."""

import http.client
import time

import pytest

from lib.fault_proxy import Fault, FaultProxy
from lib.stores import Hadro

BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def proxy(shared):
    with open(shared.file("root/corpus/a.bin"), "wb") as file:
        file.write(BODY)
    with Hadro(shared, shared.file("root"), verify=False) as store:
        with FaultProxy(store.port) as proxy:
            yield proxy


def get(proxy, at=10, n=1000):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=2)
    connection.request("GET", "/corpus/a.bin", headers={"Range": f"bytes={at}-{at + n - 1}"})
    answer = connection.getresponse()
    try:
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_without_faults_it_changes_nothing(proxy):
    before = len(proxy.requests)
    status, headers, body = get(proxy)
    assert (status, body) == (206, BODY[10:1010])
    assert headers["Content-Range"] == f"bytes 10-1009/{len(BODY)}"
    assert proxy.count(since=before) == 1 and proxy.requests[-1].range == (10, 1000)


def test_faults_happen_as_often_as_the_script_says(proxy):
    proxy.inject("503", Fault(status=503, code="SlowDown", headers={"Retry-After": "1"}), times=2)
    assert [get(proxy)[0] for _ in range(3)] == [503, 503, 206]
    assert proxy.injected["503"] == 2


def test_answers_are_cut_and_changed(proxy):
    proxy.inject("cut", Fault(cut=100))
    with pytest.raises(http.client.IncompleteRead):
        get(proxy)
    proxy.inject("reset", Fault(reset=True))
    with pytest.raises(ConnectionResetError):
        get(proxy)
    proxy.inject("reset later", Fault(reset=True, cut=100))
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        get(proxy)
    proxy.inject("flip", Fault(flip=3))
    assert get(proxy)[2][:4] == BODY[10:13] + bytes([BODY[13] ^ 1])
    proxy.inject("etag", Fault(headers={"Etag": '"other"', "Content-Range": None}))
    headers = get(proxy)[1]
    assert headers["ETag"] == '"other"' and "Content-Range" not in headers
    proxy.inject("long", Fault(extra=b"more"))
    assert get(proxy)[2] == BODY[10:1010] + b"more"


def test_answers_wait(proxy):
    proxy.inject("hang", Fault(hang=True))
    with pytest.raises(TimeoutError):
        get(proxy)
    begin = time.monotonic()
    proxy.inject("drip", Fault(drip=0.02))
    assert get(proxy, n=10)[2] == BODY[10:20]
    assert time.monotonic() - begin >= 0.2


def test_it_refuses_and_comes_back(proxy):
    port = proxy.port
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        get(proxy)
    proxy.listen()
    assert proxy.port == port and get(proxy)[0] == 206
