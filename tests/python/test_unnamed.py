"""An unnamed run of a second user: its loader uses the name that the daemon assigns."""

import contextlib
import os

import pytest
import tokend

FIRST, SECOND = 1001, 1002


@contextlib.contextmanager
def user(uid):
    """The uid that the daemon sees is that of the process when it connects."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def make(daemon, **options):
    return tokend.Loader("train", micro_batch=4, rank=0, world=1, socket=daemon.socket, **options)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")
def test_a_second_users_unnamed_run_has_its_own_snapshots_and_record(daemon):
    daemon.stop()
    daemon.config.write_text(f"allow_uids: [{FIRST}, {SECOND}]\n" + daemon.config.read_text())
    daemon.directory.chmod(0o755)
    daemon.start()
    records = daemon.directory / "records"
    records.mkdir()
    records.chmod(0o777)
    with user(FIRST):
        first = make(daemon)
    with user(SECOND):
        second = make(daemon, record=records)
    with first, second:
        assert f"/train/default@{SECOND}/" in second.checkpoint("best")
        assert "/train/default/" in first.checkpoint("best")
        for _ in range(10):
            next(second)
        daemon.kill()
        daemon.start()
        with user(SECOND):
            for _ in range(200):
                next(second)
            assert f"/train/default@{SECOND}/" in second.checkpoint("later")
        assert [path.name.split(".")[0] for path in records.iterdir()] == [f"default@{SECOND}"]
    with user(SECOND), make(daemon, start="later") as again:
        assert again.position == 4 * 210
