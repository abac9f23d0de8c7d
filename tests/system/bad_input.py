"""A daemon and a witness. Nothing that is sent to the daemon may harm either."""

import contextlib

from lib import Client, Daemon, Witness, datasets, rows_at, status, wait_for
from lib.wire import PROTOCOL


def without(message, *keys):
    return {k: v for k, v in message.items() if k not in keys}


class Bench:
    """A daemon and a witness, with checks that bad input has not harmed them."""

    def __init__(self, place):
        self.place = place
        for name, tokens in (("web/a.bin", 60_000), ("web/b.bin", 30_000), ("code/x.bin", 40_000)):
            place.shard(name, tokens)
        mix = datasets("web", weight=0.7)
        mix += datasets("code", weight=0.3, shuffle="block", block=8)
        self.train = {"seed": 7, "seq_len": 64, "datasets": mix}
        self.streams = {
            "train": self.train,
            "short": {"seed": 7, "seq_len": 64, "samples": 100, "datasets": datasets("web")},
            "wide": {"seed": 7, "seq_len": 16384, "datasets": datasets("web")},
        }
        self.limit = 8 << 20
        self.config = place.config(streams=self.streams, memory=self.limit)
        self.daemon = Daemon(place, self.config)
        self.witness = Witness(self.daemon, rows_at(self.config, "train", 0, 60_000))
        self.witness.step(8)
        for stream in self.streams:  # opens all shards
            client = Client(self.daemon.socket).attach(stream=stream)
            for _ in range(min(20, client.end())):
                client.next()
            client.close()
        wait_for(lambda: self.daemon.rings() == 1)
        self.start = status(self.daemon.socket)[1]
        self.fds = self.daemon.settled_fds()

    def unharmed(self):
        """The daemon lives, and the witness reads on."""
        return self.daemon.alive() and self.witness.step()

    def unchanged(self, name):
        """No session, memory or descriptor is left over."""
        wait_for(lambda: status(self.daemon.socket)[1]["sessions"] == 1)
        total = status(self.daemon.socket)[1]
        closed = wait_for(lambda: self.daemon.fds() == self.fds)
        assert closed and total["memory_bytes"] == self.start["memory_bytes"], (name, total)
        assert self.unharmed(), f"{name}: the witness read {self.witness.checked} batches, 0 wrong"

    def answers(self, raw, greeted=True):
        """Sends one packet. Returns the messages until the daemon closes the connection."""
        with contextlib.closing(Client(self.daemon.socket, hello=greeted)) as client:
            client.s.send(raw)
            return client.last_words()

    def refused(self, raw, field, part="", greeted=True):
        """None if the daemon replies with one error of one line, with this field and text, and
        closes the connection, otherwise what happened instead.
        """
        words = self.answers(raw, greeted)
        if len(words) != 1 or words[0]["op"] != "error" or words[0]["code"] != PROTOCOL:
            return f"answered {words!r}"
        if words[0]["field"] != field or part not in words[0]["text"] or not words[0]["text"]:
            return f"not {field}: …{part}: {words!r}"
        if "\n" in words[0]["text"]:
            return f"not one line: {words!r}"
        return None if self.unharmed() else "the daemon or the witness was harmed"
