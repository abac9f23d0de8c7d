"""Makes page.png: build/venv/bin/python bench/pictures/page.py, after make all.

A real daemon serves four trainers for a minute, a real browser shows its page, and the run's mix is
changed meanwhile.
"""

import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATHS = [str(ROOT / path) for path in ("tests", "tests/system", "build/python")]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = ":".join(PATHS)  # of the trainers
os.environ.setdefault("TOKEND_BIN", str(ROOT / "build/bin"))

from PIL import Image  # noqa: E402
from requesting import DONE, Operator, Trainer  # noqa: E402

from lib import Daemon, Place, datasets  # noqa: E402
from lib.browser import Browser  # noqa: E402
from lib.web import Web  # noqa: E402

SECONDS, SEQ_LEN, MICRO = 60, 2048, 8


class Bench:
    def __init__(self, place):
        self.place = place
        weights = {"web": 0.6, "code": 0.3, "law": 0.1}
        for name in (*weights, "held-out"):
            place.shard(f"{name}/0000.bin", 8_000_000)
        mix = [{**d, "weight": weights[d["name"]]} for d in datasets(*weights)]
        window = {"seed": 1, "seq_len": SEQ_LEN}
        streams = {
            "train": {**window, "datasets": mix},
            "valid": {**window, "datasets": datasets("held-out"), "samples": 4096},
        }
        config = place.config(streams=streams)
        self.daemon = Daemon(place, config)
        self.port = Web(place, self.daemon.socket).port


class Paced(threading.Thread):
    """Steps a trainer until told to stop, and carries out the requests of operators."""

    def __init__(self, bench, pause, **about):
        super().__init__()
        self.pause, self.going = pause, True
        self.trainer = Trainer(bench, micro=MICRO, **about)
        self.start()

    def run(self):
        while self.going:
            self.trainer.step(1)
            if self.trainer.number():
                request = self.trainer.fetch()
                self.trainer.obey(request["kind"], request["args"])
                self.trainer.answer(request["number"], DONE, "")
            time.sleep(self.pause)
        self.trainer.close()


def main():
    with Place() as place:
        bench = Bench(place)
        paced = [Paced(bench, 0.11, run="llama-1b", rank=0), Paced(bench, 0.2, run="ablation")]
        paced += [Paced(bench, 0.3, run="llama-1b", stream="valid")]
        with Browser(place, f"http://127.0.0.1:{bench.port}/", 900, 700) as page:
            time.sleep(SECONDS / 2)
            mixed = Operator(bench, "mix", "train", "web=2", "code=5", "law=3", "--run", "llama-1b")
            mixed.result()
            time.sleep(SECONDS / 2)
            os.truncate(place.file("held-out/0000.bin"), 4_000_000)
            page.shows("document.querySelector('#faults tbody tr') !== null")
            page.picture(place.file("page.png"))
            for one in paced:
                one.going = False
        picture = Image.open(place.file("page.png")).convert("RGB").quantize(32)
        picture.save(ROOT / "bench/pictures/page.png", optimize=True)


if __name__ == "__main__":
    main()
