"""Clients of other users."""

import os

from .wire import Client


class As:
    """Within it, this process has another uid: the daemon sees the uid at the connect."""

    def __init__(self, uid):
        self.uid = uid

    def __enter__(self):
        os.seteuid(self.uid)

    def __exit__(self, *_):
        os.seteuid(0)


def client_of(daemon, uid):
    with As(uid):
        return Client(daemon.socket)
