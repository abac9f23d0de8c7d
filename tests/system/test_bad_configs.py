"""Faulty configs and command lines get a message of one line and the right exit status."""

import os
import re

import pytest

from lib import TOKCTL, TOKEND, has, run
from lib.injected import injected

pytestmark = pytest.mark.asan  # no faulty config makes tokend touch memory out of bounds

GOOD = """socket: {place}/cli.sock
state_dir: {place}/state
streams:
  train:
    seed: 7
    seq_len: 64
    datasets:
      - {{name: web, path: web, weight: 0.7}}
"""


def scheduled(entry, words):
    """A config whose schedule has this one entry, on line 10."""
    return "weight: 0.7}\n", f"weight: 0.7}}\n    schedule:\n      - {entry}\n", 10, words


CONFIGS = {
    # fault: (text to replace, its replacement, line, words of the message)
    "an unknown key": ("seed: 7", "seed: 7\n    sead: 8", 6, ["sead"]),
    "a wrong type": ("seed: 7", "seed: seven", 5, ["seed", "seven"]),
    "seq_len 0": ("seq_len: 64", "seq_len: 0", 6, ["seq_len", "1"]),
    "a negative weight": ("weight: 0.7", "weight: -1", 8, ["weight", "-1"]),
    "a weight that is not a number": ("weight: 0.7", "weight: .nan", 8, ["weight"]),
    "a missing path": ("path: web", "path: nothing", 8, ["nothing"]),
    "shards shorter than a window": ("seq_len: 64", "seq_len: 1000000", 8, ["window"]),
    "a missing seed": ("    seed: 7\n", "", 4, ["seed"]),
    "invalid YAML": ("streams:", "streams: {[", None, []),
    "a schedule with an unknown dataset": scheduled(
        "{at: 1024, weights: {wab: 1}}", ["weights.wab", "did you mean web?"]
    ),
    "a schedule with a weight that is not a number": scheduled(
        "{at: 1024, weights: {web: .nan}}", ["weights.web", ".nan"]
    ),
    "a schedule with a negative weight": scheduled(
        "{at: 1024, weights: {web: -0.5}}", ["weights.web", "negative"]
    ),
    "a schedule with no weight above 0": scheduled(
        "{at: 1024, weights: {web: 0}}", ["weights", "above 0"]
    ),
    "a schedule without weights": scheduled("{at: 1024}", ["weights", "missing"]),
    "a schedule inside a block": scheduled(
        "{at: 1500, weights: {web: 1}}", ["at", "use 1024 or 2048"]
    ),
    "a schedule at 0": scheduled("{at: 0, weights: {web: 1}}", ["at", "must be later"]),
    "a schedule with at and from": scheduled(
        "{at: 1024, from: 1024, weights: {web: 1}}", ["at (line 10) and from"]
    ),
    "a ramp backwards": scheduled(
        "{from: 4096, to: 2048, steps: 1, weights: {web: 1}}", ["to", "not after from"]
    ),
    "a ramp of 0 steps": scheduled(
        "{from: 0, to: 2048, steps: 0, weights: {web: 1}}", ["steps", "0"]
    ),
    "a ramp of more steps than blocks": scheduled(
        "{from: 0, to: 2048, steps: 3, weights: {web: 1}}", ["steps", "1 to 2"]
    ),
    "a schedule with epochs": (
        "seq_len: 64",
        "seq_len: 64\n    epochs: 1\n    schedule: []",
        8,
        ["schedule", "epochs"],
    ),
    "a schedule with samples": (
        "seq_len: 64",
        "seq_len: 64\n    samples: 9\n    schedule: []",
        8,
        ["schedule", "samples"],
    ),
    "max_epochs of 0": ("weight: 0.7", "max_epochs: 0", 8, ["max_epochs", "1"]),
    "max_epochs with epochs": (
        "weight: 0.7}",
        "max_epochs: 2}\n    epochs: 1",
        8,
        ["max_epochs", "epochs"],
    ),
    "max_epochs of the only dataset": (
        "weight: 0.7",
        "max_epochs: 1",
        8,
        ["max_epochs", "no dataset is left"],
    ),
}


def parted(part, words, keys=""):
    """A dataset that is a part of its path, on line 8."""
    return "weight: 0.7}", f"part: {part}{keys}}}", 8, ["part", *words]


RIGHT = "must be two numbers, [P, Q] with 0 ≤ P < Q ≤ 1"

CONFIGS |= {
    "a part backwards": parted("[0.9, 0.1]", ["[0.9, 0.1] is not a part", RIGHT]),
    "a part of nothing": parted("[0.5, 0.5]", [RIGHT]),
    "a part above 1": parted("[0.5, 1.5]", [RIGHT]),
    "a part below 0": parted("[-0.5, 1]", ["'-0.5' is negative", RIGHT]),
    "a part of one number": parted("[0.5]", ["has 1 values", RIGHT]),
    "a part of three numbers": parted("[0, 0.5, 1]", ["has 3 values", RIGHT]),
    "a part that is a number": parted("0.5", ["'0.5' is a single value", RIGHT]),
    "a part of strings": parted('["0", "1"]', ["is quoted", RIGHT]),
    "a part that is not a number": parted("[.nan, 1]", ["'.nan' is not a number", RIGHT]),
    "a part without a run": parted(
        "[0.41, 0.42]", ["none of the 1405 windows", "22 runs of 64", "a share of at least 0.045"]
    ),
    "a part that slides": parted("[0, 0.5]", ["slide", "must be false"], ", slide: true"),
    "a part of windows that overlap": (
        "    datasets:\n      - {name: web, ",
        "    stride: 63\n    datasets:\n      - {name: web, part: [0, 0.5], ",
        9,
        ["part", "stride 63 is below seq_len 64", "set stride: 64"],
    ),
    "a part of other windows than another stream's": (
        "weight: 0.7}",
        "part: [0, 0.5]}\n  valid: {seed: 7, seq_len: 32, datasets: [{name: w, path: ./web}]}",
        8,
        ["part", "stream valid cuts this path with another seq_len, extra or stride"],
    ),
}


def stored(keys, words, store=None, line=8):
    """A config whose dataset has these keys, and perhaps an entry of stores:, on line 9."""
    stores = f"}}\nstores: {{{store}}}\n" if store else "}\n"
    return "path: web, weight: 0.7}\n", keys + stores, line, words


LISTED = "manifest: web.jsonl"
S3 = f'path: "s3://corpus/web/", {LISTED}'

CONFIGS |= {
    "a URL without a bucket": stored(f'path: "s3:///web/", {LISTED}', ["path", "has no bucket"]),
    "a bucket with capitals": stored(f'path: "s3://Web/", {LISTED}', ["capitals"]),
    "a bucket with a dot": stored(f'path: "s3://a.web/", {LISTED}', ["dot", "style: path"]),
    "an unknown scheme": stored(
        f'path: "lap://corpus/", {LISTED}', ["path", "did you mean lab?"], "lab: {}"
    ),
    "http": stored(f'path: "http://corpus/", {LISTED}', ["anonymous: true"]),
    "a URL with a pattern": stored(f'path: "s3://corpus/*/", {LISTED}', ["patterns"]),
    "a URL without a last slash": stored(f'path: "s3://corpus/web", {LISTED}', ["corpus/web/"]),
    "a URL with a password": stored(f'path: "https://u:SECRET@h/", {LISTED}', ["token_file"]),
    "a URL with a query": stored(f'path: "https://h/a/?sig=SECRET", {LISTED}', ["query_file"]),
    "no manifest": stored(
        'path: "s3://corpus/web/"', ["tokctl inspect --manifest web.jsonl s3://corpus/web/"]
    ),
    "a manifest that is a prefix": stored(
        'path: "s3://corpus/web/", manifest: "s3://corpus/"', ["manifest", "not an object"]
    ),
    "fetch: piece without a cache": stored(S3 + ", fetch: piece", ["fetch", "cache: {dir"]),
    "fetch: window of local shards": stored("path: web, fetch: window", ["fetch", "URL"]),
    "an unknown fetch": stored(S3 + ", fetch: pieces", ["did you mean piece?"]),
    "a piece that is not a power of two": stored(S3 + ", piece: 3MiB", ["power of two", "64KiB"]),
    "a small piece": stored(S3 + ", piece: 32KiB", ["piece", "too small"]),
    "an endpoint without a scheme": stored(
        S3, ["lab.endpoint", "https://"], 'lab: {endpoint: "minio:9000"}', 9
    ),
    "an endpoint with a path": stored(
        S3, ["lab.endpoint", "path"], 'lab: {endpoint: "https://minio/x"}', 9
    ),
    "an endpoint with a password": stored(
        S3, ["lab.endpoint", "password"], 'lab: {endpoint: "https://u:SECRET@minio"}', 9
    ),
    "a secret key": stored(
        S3, ["lab.secret_access_key", "profile"], "lab: {secret_access_key: SECRET}", 9
    ),
    "a secret as a value": stored(
        S3, ["lab.token_file", "secret"], "lab: {token_file: hf_SECRETxxxxxxxxxxxxxxxxx}", 9
    ),
    "a name with capitals": stored(S3, ["stores.Lab", "a-z"], "Lab: {}", 9),
    "two ways to credentials": stored(S3, ["remove one"], "lab: {profile: x, token_file: y}", 9),
    "an unknown key of a store": stored(
        S3, ["did you mean endpoint?"], 'lab: {endpont: "https://minio"}', 9
    ),
    "an endpoint of https": stored(S3, ["https.endpoint"], 'https: {endpoint: "https://x"}', 9),
    "no connections": stored(S3, ["connections", "1 to 4096"], "lab: {connections: 0}", 9),
    "a cache without a size": ("streams:", "cache: {dir: x}\nstreams:", 3, ["cache.size"]),
}

# The faults of the catalogue's row 41; the others are mistakes in the text.
ROW_41 = [
    "a negative weight",
    "a weight that is not a number",
    "shards shorter than a window",
    "a schedule with a weight that is not a number",
    "a schedule with a negative weight",
    "a schedule with no weight above 0",
]
assert CONFIGS.keys() >= set(ROW_41)


def test_faulty_config_is_refused_in_one_line(bench):
    good = GOOD.format(place=bench.place.path)
    wrong = {}
    for name, (old, new, line, words) in CONFIGS.items():
        path = bench.place.file("bad.yaml")
        assert old in good
        with open(path, "w") as f:
            f.write(good.replace(old, new))
        for arguments in (["-c", path], ["-c", path, "--check"]):
            code, out, err = run(TOKEND, *arguments)
            form = rf"^tokend: {re.escape(path)}:{line if line else '[0-9]+'}: [^\n]+\n$"
            if (
                code != 1
                or out
                or not re.match(form, err)
                or any(w not in err for w in words)
                or "SECRET" in str(err)
            ):
                wrong[name, arguments[-1]] = (code, out, err)
    assert not wrong and bench.unharmed(), (
        f"{len(CONFIGS)} faulty configs: exit 1 and one line FILE:LINE: …",
        wrong,
    )
    injected(41, len(ROW_41))

    path = bench.place.file("good.yaml")
    with open(path, "w") as f:
        f.write(good)
    code, out, err = run(TOKEND, "-c", path, "--check")
    assert code == 0 and b"never served" in out and not err, (
        "a valid config: exit 0, and the tokens that are never served",
        (code, out, err),
    )


def test_empty_datasets_are_refused_and_empty_shards_are_listed(bench):
    """A shard that is empty, or shorter than a window, counts as zero windows."""
    place, path = bench.place, bench.place.file("empty.yaml")
    full = place.shard("mixed/a.bin", 10_000)
    short = place.shard("mixed/c.bin", 30)
    empty = place.shard("mixed/b.bin", 0)
    place.shard("empty/a.bin", 0)
    os.makedirs(place.file("none", "x"))

    def check(directory, weight):
        text = GOOD.format(place=place.path).replace("path: web", f"path: {directory}")
        with open(path, "w") as f:
            f.write(text.replace("0.7", weight))
        return run(TOKEND, "-c", path, "--check")

    for directory, weight, line, words in (
        ("none", "1", 8, ["no shards found"]),
        ("empty", "1", 8, ["no shard is as long as a window", "a.bin, has 0 tokens"]),
        ("mixed", "0", 7, ["weight above 0"]),
    ):
        code, out, err = check(directory, weight)
        at = f"tokend: {path}:{line}: "
        assert (code, out) == (1, b"") and err.startswith(at) and has(err, *words), (directory, err)
        injected(41)
    code, out, err = check("mixed", "1")
    assert (code, err) == (0, ""), "one shard is long enough"
    assert has(out.decode(), "3 shards", " 156 windows", "b.bin", "has no tokens"), out
    code, out, _ = run(TOKCTL, "inspect", full, empty, short)
    assert has(out.decode(), f"0 tokens  {empty}", f"30 tokens  {short}"), out
    injected(41, 2)
    assert bench.unharmed()


def test_faulty_command_line_is_a_usage_error(bench):
    path = bench.place.file("unread.yaml")
    usages = {
        "needs -c": [],
        "-c needs a value": ["-c"],
        "unknown option --dance; see `tokend --help`": ["--dance"],
        "unknown option --chekc (did you mean --check?)": ["-c", path, "--chekc"],
        "--check takes no value": ["-c", path, "--check=all"],
        "'more'": ["-c", path, "more"],
        "'x' is not an integer": ["-c", path, "--linger", "x"],
        "'0'": ["-c", path, "--linger", "0"],
        "'-1'": ["-c", path, "--linger", "-1"],
        "'99999999999999999999'": ["-c", path, "--linger", "99999999999999999999"],
        "--private needs --socket": ["-c", path, "--private", "3"],
        "--check exclude": ["-c", path, "--private", "3", "--socket", "s", "--check"],
    }
    for words, arguments in usages.items():
        code, out, err = run(TOKEND, *arguments)
        assert (code, out) == (2, b"") and words in err and err.count("\n") == 1, (arguments, err)


def test_missing_config_is_refused_in_one_line(bench):
    code, _, err = run(TOKEND, "-c", bench.place.file("missing.yaml"))
    assert code == 1 and err.count("\n") == 1 and "missing.yaml" in err
