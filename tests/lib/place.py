"""A temporary directory for one test, with its shards, configs and processes."""

import json
import os
import shutil
import subprocess
import tempfile

import numpy


class Place:
    """A temporary directory. On exit its daemons must end with 0, other processes are killed, and
    it is removed.
    """

    def __init__(self):
        self.children, self.daemons = [], []

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="tokend-")
        os.chmod(self.path, 0o755)  # other users must reach the socket
        return self

    def __exit__(self, *_):
        try:
            for daemon in self.daemons:
                assert not daemon.alive() or daemon.stop() == 0, daemon.log()
        finally:
            for child in self.children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
            shutil.rmtree(self.path, ignore_errors=True)

    def file(self, *parts):
        path = os.path.join(self.path, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def shard(self, name, tokens, seed=1, dtype="<u2"):
        """Writes a flat shard of random tokens: no two windows are alike."""
        path = self.file(name)
        rng = numpy.random.default_rng([seed, len(name), *name.encode()])
        rng.integers(0, 50000, tokens, dtype=numpy.uint32).astype(dtype).tofile(path)
        return path

    def config(self, name="tokend.yaml", **keys):
        """Writes a config, as JSON, which is YAML."""
        path = self.file(name)
        whole = {"socket": self.file("tokend.sock"), "state_dir": self.file("state"), **keys}
        with open(path, "w") as f:
            json.dump(whole, f, indent=1)
        return path

    def spawn(self, arguments, **keys):
        keys.setdefault("stdin", subprocess.DEVNULL)
        child = subprocess.Popen(arguments, **keys)
        self.children.append(child)
        return child


def datasets(*names, **keys):
    return [{"name": n, "path": n, **keys} for n in names]
