"""A trainer of test_compat: one process that uses the package on its PYTHONPATH, old or new.

It reads commands as JSON lines, [name, argument], and answers each with a line.
"""

import json
import sys

import tokend


def main(socket):
    with tokend.Loader(
        "train",
        4,
        socket=socket,
        run="compat",
        rank=0,
        world=1,
        slots=4,
        framework="numpy",
        deadline=60,
    ) as loader:
        print(json.dumps({"file": tokend.__file__}), flush=True)
        for line in sys.stdin:
            name, argument = json.loads(line)
            said = {}
            if name == "step":
                said["rows"] = []
                for _ in range(argument):
                    batch = next(loader)
                    tokens = batch["input_ids"].tolist()
                    said["rows"] += zip(batch["position"].tolist(), tokens, strict=True)
            elif name == "control":
                request = loader.control()
                said["request"] = request and [request.kind, request.acts_from, request.error]
            elif name == "save":
                said["path"] = loader.checkpoint(argument)
            said["cursor"] = bytes(loader.cursor).hex()
            print(json.dumps(said), flush=True)


main(*sys.argv[1:])
