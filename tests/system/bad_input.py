"""A daemon and a witness that must both be unharmed by whatever is sent to the daemon."""

import array
import socket

from lib import Client, Daemon, Witness, datasets, rows_at, status, wait_for


def without(message, *keys):
    return {k: v for k, v in message.items() if k not in keys}


class Bench:
    """A daemon, a witness, and what both must still be after each piece of bad input."""

    def __init__(self, place):
        self.place = place
        for name, tokens in (("web/a.bin", 60_000), ("web/b.bin", 30_000), ("code/x.bin", 40_000)):
            place.shard(name, tokens)
        self.train = {
            "seed": 7,
            "seq_len": 64,
            "datasets": [{"name": "web", "path": "web", "weight": 0.7}],
        }
        self.train["datasets"] += [
            {"name": "code", "path": "code", "weight": 0.3, "shuffle": "block", "block": 8}
        ]
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
        for stream in self.streams:  # all shards are open
            client = Client(self.daemon.socket).attach(stream=stream)
            for _ in range(min(20, client.end())):
                client.next()
            client.close()
        wait_for(lambda: self.daemon.rings() == 1)
        self.start = status(self.daemon.socket)[1]
        self.fds = self.daemon.settled_fds()

    def unharmed(self):
        """The daemon is there, the witness goes on, nobody else is attached."""
        return self.daemon.alive() and self.witness.step()

    def unchanged(self, name):
        """After all that, nothing is kept."""
        wait_for(lambda: status(self.daemon.socket)[1]["sessions"] == 1)
        total = status(self.daemon.socket)[1]
        seen = (
            total["sessions"],
            total["memory_bytes"],
            wait_for(lambda: self.daemon.fds() == self.fds) and self.fds,
        )
        assert seen == (1, self.start["memory_bytes"], self.fds), (
            f"{name}: sessions, memory and descriptors are what they were"
        )
        assert self.unharmed(), f"{name}: the witness read {self.witness.checked} batches, 0 wrong"

    def answers(self, raw, greeted=True, fds=()):
        """Sends one packet: what the daemon says until it closes."""
        client = Client(self.daemon.socket, hello=greeted)
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                client.s.sendmsg([raw], rights)
            else:
                client.s.send(raw)
            return client.last_words()
        finally:
            client.close()

    def refused(self, raw, greeted=True, fds=()):
        """NULL if the packet was answered with one error of one line, then the end; else what was
        seen.
        """
        words = self.answers(raw, greeted, fds)
        if len(words) != 1 or words[0]["op"] != "error" or words[0]["code"] != "protocol":
            return f"answered {words!r}"
        if not words[0]["text"] or "\n" in words[0]["field"] + words[0]["text"]:
            return f"not one line: {words!r}"
        return None if self.unharmed() else "the others were harmed"
