"""A directory of a test's own, with the shards, configs and processes in it."""

import json
import os
import shutil
import subprocess
import tempfile

import numpy

from .process import with_parent


class Place:
    """A temporary directory; everything started in it is gone when it is left."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="tokend-")
        os.chmod(self.path, 0o755)  # other uids must find the socket
        self.children = []
        return self

    def __exit__(self, *_):
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
        """A flat shard of random tokens: no window looks like another one."""
        path = self.file(name)
        rng = numpy.random.default_rng([seed, len(name), *name.encode()])
        rng.integers(0, 1 << 16, tokens, dtype=numpy.uint32).astype(dtype).tofile(path)
        return path

    def config(self, name="tokend.yaml", **keys):
        """JSON is YAML: the config is written as it is meant."""
        path = self.file(name)
        whole = {"socket": self.file("tokend.sock"), "state_dir": self.file("state"), **keys}
        with open(path, "w") as f:
            json.dump(whole, f, indent=1)
        return path

    def spawn(self, arguments, **keys):
        keys.setdefault("preexec_fn", with_parent)
        keys.setdefault("stdin", subprocess.DEVNULL)
        child = subprocess.Popen(arguments, **keys)
        self.children.append(child)
        return child


def datasets(*names, **keys):
    return [{"name": n, "path": n, **keys} for n in names]
