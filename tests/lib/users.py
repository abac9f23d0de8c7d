"""Clients of other users."""

import os

from .wire import Client


class As:
    """A client of another user: the daemon sees the uid that a process has when it connects."""

    def __init__(self, uid):
        self.uid = uid

    def __enter__(self):
        os.seteuid(self.uid)

    def __exit__(self, *_):
        os.seteuid(0)


def client_of(daemon, uid):
    with As(uid):
        return Client(daemon.socket)
