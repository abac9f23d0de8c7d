"""Faulty configs and command lines get a message of one line and the right exit status."""

import os
import pwd

import pytest

from lib import TOKCTL, TOKEND, has, run
from lib.injected import injected

pytestmark = pytest.mark.asan  # no faulty config makes tokend touch memory out of bounds

HEAD = "streams:\n  train:\n    seed: 7\n    seq_len: 64\n    datasets:\n"  # lines 1 to 5
WEB = HEAD + "      - {name: web, path: web"  # line 6, without its "}"
GOOD = WEB + "}\n"
TWO = GOOD + "      - {name: code, path: code}\n    schedule:\n"  # lines 7 and 8
LISTED = "manifest: web.jsonl"
S3 = f'{HEAD}      - {{name: web, path: "s3://corpus/web/", {LISTED}'
HOME = pwd.getpwuid(os.getuid()).pw_dir
PART = "must be two numbers, [P, Q] with 0 ≤ P < Q ≤ 1"
WAYS = "must have either at, or from, to and steps"


# A row is a config, and the line, field and text of its message. "…" stands for any text. There is
# a row for each kind of fault; fuzz_config finds that any faulty config gets one line.


def whole(text, says, line=1):
    return text, line, says


def top(key, says):
    return f"{key}\n{GOOD}", 1, says


def stream(keys, says, line=7):
    return f"{GOOD}    {keys}\n", line, f"streams.train.{says}"


def streams(text, says):
    return f"streams: {{t: {{{text}}}}}\n", 1, f"streams.t.{says}"


def dataset(keys, says, line=6, after=""):
    return f"{WEB}, {keys}}}\n{after}", line, f"streams.train.datasets[0].{says}"


def only(text, says):
    return f"{HEAD}      - {text}\n", 6, f"streams.train.datasets[0]{says}"


def at(path, says, keys=LISTED, after=""):
    text = f'{{name: web, path: "{path}", {keys}}}'
    return only(text + "\n" + after, f".{says}")


def step(entry, says, line=9):
    return f"{TWO}      - {{{entry}}}\n", line, f"streams.train.schedule{says}"


def mix(weights, says, line=9):
    return step(f"at: 1024, weights: {{{weights}}}", f"[0].weights{says}", line)


def entries(n, says):
    """A schedule of this many entries."""
    text = "".join(f"      - {{at: {i * 1024}, weights: {{web: {i}}}}}\n" for i in range(1, n + 1))
    return TWO + text, 8, f"streams.train{says}"


def store(entry, says):
    return f"{S3}}}\nstores: {{{entry}}}\n", 7, f"stores.{says}"


# fmt: off
FILES = [
    whole("", "config: the file is empty; must have at least streams:"),
    whole("- a\n", "config: is a list; must be a mapping of keys to values"),
    whole("memory: 1GiB\n", "streams: is missing; set it to a mapping of stream names to streams"),
    whole("io: \xff\n".encode("latin-1"), "YAML: invalid leading UTF-8 octet…a file of UTF-8 text"),
    whole(GOOD + "socket: a: b\n", "YAML: mapping values…(column 10); must be valid YAML", 7),
    whole(GOOD + "---\nio: a\n", "config: a second YAML document begins here; must be only one", 7),
    whole("streams: " + "[" * 200_000, "YAML: …nested deeper than 32 levels; a config needs 7"),
    whole(GOOD + "#" * (2 << 20), "config: the file is larger than 1 MiB; pass a config file"),
]
KEYS = [
    whole(GOOD + "sockt: x\n", "sockt: unknown key; did you mean socket?", 7),
    whole(GOOD + "seed: 1\n", "seed: is a key of a stream; move it below the stream's name", 7),
    whole("streams:\n  a/b: {}\n", "streams.a/b: 'a/b' is not a valid name; must be a name of 1 to "
          "64 bytes, without '/', control characters or a leading dot", 2),
    whole("streams:\n  a: &a {seed: 1, seq_len: 1, datasets: *a}\n", "streams.a.datasets: ", 2),
    stream("shuffle: block", "shuffle: is a key of a dataset; move it into an entry of datasets:"),
    stream("seed: 3", "seed: is given twice; remove it here or on line 3"),
    dataset("wieght: 1", "wieght: unknown key; did you mean weight?"),
    dataset('"a\\nb": 1', "a?b: unknown key; must be one of name, path, part, manifest, format"),
    streams("seq_len: 8, datasets: [{name: a, path: b}]",
            "seed: is missing; set it to an integer from 0 to 2^64 - 1"),
]
NUMBERS = [
    streams("seq_len: 0", "seq_len: '0' is too small; must be a number of tokens from 1"),
    streams("seq_len: 010", "seq_len: '010' has a leading zero, which YAML reads as octal"),
    streams('seq_len: "8"', 'seq_len: "8" is quoted; must be a number of tokens…without quotes'),
    streams("seed: 18446744073709551616", "seed: '18446744073709551616' is too large"),
    stream("extra: 1073741817", "extra: seq_len 64 + extra 1073741817 is more than 1073741824 "
           "tokens; must be at most that"),
    stream("epochs: 1\n    samples: 4", "samples: the stream also has epochs (line 7); remove one "
           "of them", 8),
    stream("eos: 70\n    vocab: 70", "eos: 70 is not below vocab (70); must be a token of"),
]
WEIGHTS = [
    *(dataset(f"weight: {n}", f"weight: '{n}' is not a number; must be a finite number ≥ 0")
      for n in ("nan", ".inf", "0x1p3")),
    dataset("weight: 1e-400", "weight: '1e-400' is too close to 0; must be a finite number ≥ 0"),
    dataset("weight: 1", "weight: a stream with epochs (line 7) serves every window that often; "
            "remove it", after="    epochs: 1\n"),
    whole(WEB + ", weight: 1e308}\n      - {name: b, path: b, weight: 1e308}\n",
          "streams.train.datasets: the weights do not sum to a finite number above 0", 5),
    whole(WEB + ", weight: 1}\n      - {name: b, path: b}\n", "streams.train.datasets[1].weight: "
          "is missing, but the dataset on line 6 has one; give all datasets of the stream a", 7),
    whole(WEB + ", weight: 1}\n      - {name: b, path: b, weight: 1e-12}\n",
          "streams.train.datasets[1].weight: 1e-12 is below 2^-32 of the sum, so it is never "
          "served; must be larger, or 0", 7),
]
DATASETS = [
    only('{name: "a\\0b", path: web}', ".name: contains a zero byte; must be a name of 1 to 64"),
    only("{name: web, path: nothing}", ".path: …nothing"),
    whole(GOOD + "      - {path: b, name: web}\n", "streams.train.datasets[1].name: 'web' is also "
          "the name of the dataset on line 6; must be unique", 7),
    dataset("label_mask: masks", "label_mask: is used only with loss_mask; set loss_mask: true in "
            "the stream, or remove it"),
    dataset("\n         max_epochs: 2", "max_epochs: …epochs", 7, "    epochs: 1\n"),
    whole(WEB + ", max_epochs: 1}\n", "streams.train: max_epochs: no dataset is left", 2),
    *(dataset(f"part: {part}", f"part: {words}…{PART}") for part, words in (
        ("[0.9, 0.1]", "[0.9, 0.1] is not a part"), ("[0.5]", "has 1 values"),
        ("[-0.5, 1]", "'-0.5' is negative"), ("0.5", "'0.5' is a single value"))),
    dataset("part: [0.41, 0.42]", "part: …none of the 1405 windows…22 runs of 64…a share of at "
            "least 0.045455"),
    dataset("part: [0, 0.5], slide: true", "slide: moves windows into other parts of the path "
            "(part, line 6); must be false"),
    dataset("part: [0, 0.5]", "part: …stride 63 is below seq_len 64…set stride: 64",
            after="    stride: 63\n"),
    dataset("part: [0, 0.5]", "part: …stream valid cuts these files with another seq_len, extra or "
            "stride", after="  valid: {seed: 1, seq_len: 3, datasets: [{name: w, path: ./web}]}\n"),
]
SCHEDULES = [
    stream("epochs: 1\n    schedule: []", "schedule: the mix of a finite stream (epochs, line 7) "
           "cannot change; remove one of them", 8),
    step("at: 1024", "[0].weights: is missing; set it to a mapping of dataset names to weights, "
         "such as {web: 0.7, code: 0.3}"),
    step("from: 0, steps: 1, weights: {web: 1}", f"[0]: has no to; {WAYS}"),
    step("at: 0, weights: {web: 1}", "[0].at: '0' is too small; must be a position above 0, a "
         "multiple of 1024"),
    step("at: 5000, weights: {web: 1}", "[0].at: 5000 is not a multiple of 1024; use 5120"),
    step("from: 4096, to: 4096, steps: 1, weights: {web: 1}", "[0].to: 4096 is not after from "
         "(4096); must be a later position"),
    step("from: 1024, to: 4096, steps: 4, weights: {web: 1}", "[0].steps: 4; must be 1 to 3, "
         "one for each block of 1024"),
    step("at: 1024, weights: {web: 1}}\n      - {at: 1024, weights: {web: 1}", "[1].at: 1024 is "
         "not after the step before it, which ends at 1024; put the steps into ascending order",
         10),
    entries(16385, ".schedule: has 16385 entries; must have at most 16384"),
    entries(16384, ": schedule: a cursor of 98304 bytes has no room…use fewer steps"),
    mix("wbe: 1", ".wbe: is not a dataset of the stream, which has web, code; did you mean web?"),
]
DAEMON = [
    top("memory: 1GB", "memory: '1GB' is not a size; must be a size such as 512MiB or 1GiB, or a "
        "number of bytes"),
    top("io: urng", "io: 'urng' is unknown; must be auto, uring or pread"),
    top("allow_uids: [root, nobdy-tokend]", "allow_uids[1]: no user is called nobdy-tokend on this "
        "host; check it with `id nobdy-tokend`"),
    top("admin_uids: ['@no-group-tokend']", "admin_uids[0]: no group is called no-group-tokend on "
        "this host; check it with `getent group no-group-tokend`"),
    top("admin_uids: [@root]", "YAML: a word that begins with @ (column 14) needs quotes, as in"),
    top("state_dir: file:///var/x", "state_dir: is a URL; write the path alone: /var/x"),
    top("socket: ~/t.sock", "socket: ~ is not expanded; write the whole path"),
    top(f"socket: /{'x' * 107}", "socket: /xxx…has 108 bytes; must have at most 107"),
    streams("datasets: [{path: $HOME/web}]",
            "datasets[0].path: variables ($HOME) are not expanded; write the whole path"),
]
STORES = [
    at("lap://corpus/", "path: …did you mean lab?", after="stores: {lab: {}}"),
    at("http://corpus/", "path: …anonymous: true"),
    at("s3://corpus/*/", "path: …patterns"),
    at("s3://corpus/web", "path: …corpus/web/"),
    at("https://u:SECRET@h/", "path: …token_file"),
    at("https://h/a/?sig=SECRET", "path: …query_file"),
    at("s3://corpus/web/", "…tokctl manifest s3://corpus/web/ web.jsonl", ""),
    at("s3://corpus/web/", "manifest: …not an object", 'manifest: "s3://corpus/"'),
    at("s3://corpus/web/", "fetch: …cache: {dir", LISTED + ", fetch: piece"),
    at("s3://corpus/web/", "piece: …has space for 16 pieces…at least 64",
       LISTED + ", fetch: piece", "cache: {dir: /c, size: 128MiB}\n"),
    at("s3://corpus/web/", "piece: …power of two…64KiB", LISTED + ", piece: 3MiB"),
    store('lab: {endpoint: "minio:9000"}', "lab.endpoint: …https://"),
    store('lab: {endpoint: "https://u:SECRET@minio"}', "lab.endpoint: …password"),
    store("lab: {secret_access_key: SECRET}", "lab.secret_access_key: …profile"),
    store("lab: {token_file: hf_SECRETxxxxxxxxxxxxxxxxx}", "lab.token_file: …secret"),
    store("lab: hf_SECRETxxxxxxxxxxxxxxxxx", "lab: …secret"),
    store("lab: {profile: x, token_file: y}", "lab…remove one"),
]
# fmt: on
CONFIGS = FILES + KEYS + NUMBERS + WEIGHTS + DATASETS + SCHEDULES + DAEMON + STORES

# The faults of the catalogue's row 41, which a start refuses, too. The others are mistakes in the
# text.
ROW_41 = [
    dataset("weight: -1", "weight: '-1' is negative"),
    dataset("weight: .nan", "weight: '.nan' is not a number"),
    whole(GOOD.replace("64", "1073741823"), "streams.train.datasets[0].path: …window", 6),
    mix("web: -0.5", ".web: '-0.5' is negative"),
    mix("web: 0", ": their sum is not a finite number above 0"),
]


def said(arguments, path, line, says):
    """None if tokend refuses its config with this one line, otherwise what it did."""
    code, out, err = run(TOKEND, "-c", path, *arguments)
    begin, *parts = f"tokend: {path}:{line}: {says}".split("…")
    rest = err.removeprefix(begin)
    for part in parts:
        rest = rest.partition(part)[2] if part in rest else ""
    good = (code, out, err.count("\n")) == (1, b"", 1) and err.startswith(begin)
    return None if good and rest and "SECRET" not in err else (code, out, err, line, says)


def test_faulty_config_is_refused_in_one_line(bench):
    path = bench.place.file("bad.yaml")
    wrong = []
    for rows, *arguments in (CONFIGS, "--check"), (ROW_41,):
        for text, line, says in rows:
            with open(path, "wb") as f:
                f.write(text if isinstance(text, bytes) else text.encode())
            wrong.append(said(arguments, path, line, says))
    wrong = [row for row in wrong if row]
    assert not wrong and bench.unharmed(), (
        f"{len(CONFIGS)} faulty configs: exit 1 and one line FILE:LINE: FIELD: …",
        wrong,
    )
    injected(41, len(ROW_41))


def test_valid_config_is_accepted(bench):
    """107 bytes are enough for a socket."""
    path = bench.place.file("good.yaml")
    with open(path, "w") as f:
        f.write(GOOD + f"socket: /{'x' * 106}\nstate_dir: state\n")
    code, out, err = run(TOKEND, "-c", path, "--check")
    assert code == 0 and b"never served" in out and not err, (code, out, err)


OF_A_STREAM = "    extra: 1\n    stride: 64\n    documents: false\n    loss_mask: false\n"
OF_A_DATASET = (
    "format: auto, dtype: u16, weight: 1, part: [0, 1], shuffle: global, block: 64, group: 64, "
    "slide: false"
)
ALIASES = """streams:
  first: {seed: &seven 7, seq_len: &long 64, datasets: &list [{name: web, path: web}]}
  train: {seed: *seven, seq_len: *long, datasets: *list}
"""
QUOTED = HEAD + "      - path: 'web'\n        name: \"w\\x65b\"\n"


def test_equal_configs_have_equal_cursors(bench):
    """Keys that are not given have their defaults; aliases, quotes and the order change nothing."""
    path, to, cursors = bench.place.file("equal.yaml"), bench.place.file("equal.cursor"), set()
    for text in GOOD, f"{WEB}, {OF_A_DATASET}}}\n{OF_A_STREAM}", ALIASES, QUOTED:
        with open(path, "w") as f:
            f.write("memory: 1GiB\n" + text)
        code, _, err = run(TOKCTL, "cursor", "new", "-c", path, "train", "-o", to)
        assert code == 0, (text, err)
        cursors.add(open(to, "rb").read())
    assert len(cursors) == 1


def test_empty_datasets_are_refused_and_empty_shards_are_listed(bench):
    """A shard that is empty, or shorter than a window, counts as zero windows."""
    place, path = bench.place, bench.place.file("empty.yaml")
    for name, tokens in (("a", 10_000), ("b", 0), ("c", 30)):
        place.shard(f"mixed/{name}.bin", tokens)
    place.shard("empty/a.bin", 0)
    os.makedirs(place.file("none", "x"))
    for directory, weight, begin, *words in (
        ("none", "1", f"tokend: {path}:6: ", "no shards found"),
        ("empty", "1", f"tokend: {path}:6: ", "no shard is as long as a window", "than 65 tokens"),
        ("mixed", "0", f"tokend: {path}:5: ", "weight above 0"),
        ("mixed", "1", "", "3 shards", " 156 windows", "b.bin", "has no tokens"),
    ):
        with open(path, "w") as f:
            f.write(f"{HEAD}      - {{name: web, path: {directory}, weight: {weight}}}\n")
        code, out, err = run(TOKEND, "-c", path, "--check")
        said = err if begin else out.decode()
        assert code == (begin != "") and err.startswith(begin) and has(said, *words), (out, err)
        injected(41)
    assert bench.unharmed()


def test_faulty_command_line_is_a_usage_error(bench):
    path = bench.place.file("unread.yaml")
    usages = {
        "needs -c": [],
        "-c needs a value": ["-c"],
        "unknown option --chekc": ["-c", path, "--chekc"],
        "--check takes no value": ["-c", path, "--check=all"],
        "'more'": ["-c", path, "more"],
        "'x' is not an integer": ["-c", path, "--linger", "x"],
        "'0'": ["-c", path, "--linger", "0"],
        "--private needs --socket": ["-c", path, "--private", "3"],
        "--check exclude": ["-c", path, "--private", "3", "--socket", "s", "--check"],
    }
    for words, arguments in usages.items():
        code, out, err = run(TOKEND, *arguments)
        assert (code, out) == (2, b"") and words in err and err.count("\n") == 1, (arguments, err)


def test_config_that_cannot_be_read_is_refused_in_one_line(bench):
    for path, why in (
        (bench.place.file("missing.yaml"), "cannot be opened: No such file or directory"),
        (bench.place.path, "cannot be read: not a regular file"),
    ):
        code, _, err = run(TOKEND, "-c", path)
        assert (code, err) == (1, f"tokend: {path}: {why}; pass a config file of tokend\n")
