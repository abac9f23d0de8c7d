"""A trainer of test_compat: one process that uses the package on its PYTHONPATH, old or new.

It reads commands as JSON lines, [name, argument], and answers each with a line.
"""

import json
import sys

import tokend


def rows_of(batch):
    return list(zip(batch["position"].tolist(), batch["input_ids"].tolist(), strict=True))


def main(socket):
    keys = {"run": "compat", "rank": 0, "world": 1, "slots": 4, "framework": "numpy"}
    with tokend.Loader("train", 4, socket=socket, deadline=60, **keys) as loader:
        print(json.dumps({"file": tokend.__file__}), flush=True)
        for line in sys.stdin:
            name, argument = json.loads(line)
            said = {}
            if name == "step":
                said["rows"] = []
                for _ in range(argument):
                    batch = next(loader)
                    said["rows"] += rows_of(batch)
            elif name == "control":
                request = loader.control()
                about = request is not None and [request.kind, request.acts_from, request.error]
                said["request"] = about or None
            elif name == "save":
                said["path"] = loader.checkpoint(argument)
            said["cursor"] = bytes(loader.cursor).hex()
            print(json.dumps(said), flush=True)


main(sys.argv[1])
