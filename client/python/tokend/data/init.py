"""python -m tokend init: writes a config and a training script for shards or text.

    python -m tokend init ~/my-text
    python -m tokend init /data/web /data/code

It writes tokend.yaml and train.py into the current directory. Each argument is a dataset: a file, a
directory, or a pattern in quotes. Shards stay where they are, and are weighted by their tokens.
Text is converted to shards below tokens/, up to --most MiB of each argument. Arguments with names
like val.bin go into a stream for validation. Without such names, that stream has a part of each
dataset, which the other stream does not have.
"""

import argparse
import dataclasses
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import time

from .._tokend import Error, program
from . import documents, tokenize, tokenizer
from .parser import Parser, positive, printable, progress, tokctl

CONFIG, SCRIPT, TOKENS = "tokend.yaml", "train.py", "tokens"
MOST_MIB = 64  # of text: 20 to 40 CPU seconds with a real tokenizer
SCANNED_BYTES = 1 << 30  # of shards, for the largest token: a second or two
BYTES_A_WORKER = 8 << 20
SHORTEST = 8  # tokens of a sample
LOGITS = 1 << 26  # of a batch, so that train.py runs on a laptop
LISTED = 4  # files of a line
RUN = 64  # windows: a part of a dataset consists of such runs
LEAST = 4 * RUN  # windows of a dataset; of a larger one, some are held out
HELD_OUT = {"val", "valid", "validation", "test", "dev", "eval", "held", "heldout"}

YAML = """\
# Written by `python -m tokend init`. `man tokend.yaml` describes every key.
# Relative paths start at this file's directory. Other defaults: memory: 1GiB for all rings.
state_dir: state         # snapshots of your runs
streams:
"""
STREAM = """\
  {stream}:
    seed: 42             # another seed gives another order
    seq_len: {seq_len:<11} # tokens per sample: the context of your model
{more}    vocab: {vocab:<13} # {about_vocab}
    datasets:
"""
EOS = "    {:<20} # the token that ends a document\n"
EXTRA = "    extra: 0             # a sample of the shards is a window\n"
EPOCHS = "    epochs: 1            # ends after each window was served once\n"
BY_NAME = "\n  # By their names, these are for validation.\n"
BY_PART = """
  # For validation: windows that train does not have, in runs of 64 (`part`). Do not change parts,
  # seq_len or the shards of a path once you train: windows of train would get into valid. Add new
  # data as another dataset. Window numbers, as in `tokctl plan`, are those of the whole path.
"""

TRAIN = """\
import os

import torch
from tokend import Loader

VOCAB = {vocab}
if "RANK" in os.environ:  # torchrun has started several processes
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)  # the same weights on all ranks
model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 64), torch.nn.Linear(64, VOCAB))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = Loader("train", micro_batch={micro_batch}, config="tokend.yaml")  # starts a daemon
parts = {{"model": model, "optimizer": optimizer, "loader": loader}}
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    for name, part in parts.items():
        part.load_state_dict(saved[name])
for step, batch in zip(range(20), loader):
    loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).mT, batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    if loader.world > 1:
        for weights in model.parameters():  # as DDP does for a real model
            torch.distributed.all_reduce(weights.grad)
    optimizer.step()
    print(f"step {{step}}, rank {{loader.rank}}: loss {{loss:.3f}}, {{batch['position'].tolist()}}")
    request = loader.control()  # carries out tokctl's mix and skip
    if request:  # tokctl checkpoint, drain or rescale
        if loader.rank == 0:
            state = {{name: part.state_dict() for name, part in parts.items()}}
            torch.save(state, "checkpoint.pt")
        request.done("checkpoint.pt")
    if loader.should_stop:  # drain or rescale
        break
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


@dataclasses.dataclass
class Dataset:
    keys: dict  # of the config
    about: str
    tokens: int
    files: list  # its shards
    sample_tokens: int  # 0: the shards have no samples
    held_out: bool  # by its name: for validation
    share: float = 0  # of it for training; the rest of it is for validation


def _count(number, unit):
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _names(paths):
    """Unlike names of datasets, by path."""
    names = {}
    for path in paths:
        whole = os.path.realpath(path)
        if documents.is_pattern(path):
            whole = os.path.dirname(whole)
        elif os.path.isfile(path):
            whole = os.path.splitext(whole)[0]
        name = unlike = tokenize.label(whole)
        while unlike in names.values():
            unlike = f"{name}-{len(names) + 1}"
        names[path] = unlike
    for one, other in itertools.permutations(paths, 2):
        if f"{os.path.realpath(one)}/".startswith(f"{os.path.realpath(other)}/"):
            raise Error(f"{one}: is in {other}, too; name it once")
    return names


def _tokenizer(given, directories):
    """The tokenizer's file: as given, otherwise one next to the data. None: there is none."""
    if given.tokenizer:
        return given.tokenizer
    for directory in directories:
        for name in sorted(os.listdir(directory or ".")):
            if documents.TOKENIZERS.fullmatch(name):
                return os.path.join(directory, name)
    return None


# ---- text ----


def _convert(paths, names, given):
    """Makes shards of texts. Returns {path: their directory}, and lines for the user."""
    directories = [path if os.path.isdir(path) else os.path.dirname(path) for path in paths]
    options = argparse.Namespace(
        **{name: getattr(given, name) for name in ("field", "bos", "eos")},
        **dict.fromkeys(("pattern", "column", "resume")),
        tokenizer=_tokenizer(given, directories) or tokenizer.BYTES,
        dtype="auto",
        shard_tokens=1 << 28,
    )
    most, made, notes, sources = given.most << 20, {}, [], {}
    for path in paths:
        sources[path], left_out = documents.sources_of([path], documents.TEXTS, True, most)
        left = [f"{name}: {why}" for name, why in left_out.items()]
        if not sources[path]:
            why = f" ({left[0]})" if left else ""
            raise Error(f"{path}: has neither shards nor text{why}; name a directory that does")
        more = f"; and {len(left) - LISTED} more" if len(left) > LISTED else ""
        notes += [f"left out: {'; '.join(left[:LISTED])}{more}"] if left else []
    for path in paths:
        made[path] = options.output = os.path.join(TOKENS, names[path])
        size = sum(source.size for source in sources[path])
        workers = 1 + min(size, most) // BYTES_A_WORKER
        options.workers = min(len(os.sched_getaffinity(0)), workers)
        output = tokenize.make(options, sources[path], most)
        part = "all text"
        if output.read < size:
            part = f"the first {output.read >> 20} of {size >> 20} MiB (--most converts more)"
        counts = _count(output.done.documents, "document"), _count(output.done.tokens, "token")
        notes.append(f"{part} in {os.path.abspath(path)}: {', '.join(counts)}")
    notes.append(f"added to each document: {output.ends()}")
    if options.tokenizer == tokenizer.BYTES:
        notes.append("no tokenizer found, so a token is a byte; pass --tokenizer FILE for others")
    return made, notes


# ---- shards ----


def _inspected(path):
    """Returns what tokctl inspect says of an argument's shards; [] for text."""
    noted = (tokenize.read_notes(path) or {}).get("run")
    how = ("--input-dtype", noted["dtype"]) if noted else ()
    reports = list(tokctl("inspect", "--json", *how, "--", path, statuses=(0, 1)))
    if not any(report["format"] for report in reports):
        return []
    if any(report["problems"] for report in reports):  # perhaps tokens of another width
        wide = ("--input-dtype", "u32", "--", path)
        others = list(tokctl("inspect", "--json", *wide, statuses=(0, 1)))
        if not any(report["problems"] or report["notes"] for report in others):
            reports = others
    for report in reports:
        if report["problems"]:
            raise Error(
                f"{report['path']}: {report['problems'][0]}. To leave files out, name the shards, "
                f"or a pattern in quotes like {os.path.join(path, '*.bin')!r}"
            )
    return reports


def _dataset(path, place, name, reports):
    """@path: an argument; @place: its shards, perhaps made of its text."""
    if os.path.isdir(path) and os.path.samefile(path, "."):
        raise Error(
            f"{path}: init writes {CONFIG} here, among the shards; name a pattern in quotes like "
            "'*.bin', or run it in another directory"
        )
    tokens, one = sum(report["tokens"] for report in reports), reports[0]
    keys = {"name": name, "path": os.path.normpath(place)}
    if one["dtype"] in ("u16", "u32"):  # the config takes these
        keys["dtype"] = one["dtype"]
    if one.get("column"):
        keys["column"] = one["column"]
    shards = f"{_count(len(reports), 'shard')}, {one['format']} {one['dtype']}"
    return Dataset(
        keys,
        f"{place}: {_count(tokens, 'token')} in {shards}",
        tokens,
        [report["path"] for report in reports],
        max(report.get("sample_tokens", 0) for report in reports),
        bool(
            HELD_OUT.intersection(
                re.split("[^a-z]+", os.path.basename(os.path.realpath(path)).lower())
            )
        ),
    )


def _largest_token(datasets):
    """Returns the largest token of SCANNED_BYTES of shards, and whether these are all."""
    largest, left = 0, SCANNED_BYTES
    for dataset in datasets:
        for path in dataset.files:
            if left <= 0:
                return largest, False
            left -= os.stat(path).st_size
            how = ("--input-dtype", dataset.keys.get("dtype", "u16"), "--", path)
            for report in tokctl("inspect", "--json", "--deep", *how):
                largest = max(largest, report.get("max_token", 0))
    return largest, True


# ---- the config ----


def _vocabulary(datasets, given):
    """Returns vocab, a comment about it, and eos: a key and its value, or a comment."""
    directories = [os.path.dirname(dataset.files[0]) for dataset in datasets]
    runs = [(tokenize.read_notes(each) or {}).get("run", {}) for each in directories]
    run, file = runs[0], given.tokenizer
    known = (
        "vocab" in run and run["file"] and (file is None or tokenizer.place(file) == run["file"])
    )
    if known and len({(each.get("tokenizer"), each.get("eos")) for each in runs}) == 1:
        by = "a token is a byte" if run["file"] == tokenizer.BYTES else f"tokenizer: {run['file']}"
        vocab = max(each.get("vocab", 0) for each in runs)
        return vocab, f"{by}; a token not below it stops the stream", f"eos: {run['eos']}"
    largest, whole = _largest_token(datasets)
    vocab, ends, by = largest + 1, {}, "set your tokenizer's"
    if file := _tokenizer(given, directories):
        encoder = tokenizer.load(file)
        ends, by = encoder.ends_of_text(), f"tokenizer: {file}"
        vocab = max(encoder.vocab, vocab, *(end + 1 for end in ends.values()), 0)
    elif not whole:
        vocab = max(1 << 16, 1 << largest.bit_length())
    where = "of all tokens" if whole else f"in {SCANNED_BYTES >> 30} GiB"
    eos = f"eos: {next(iter(ends.values()))}" if len(ends) == 1 else "# eos: 50256"
    return vocab, f"the largest {where} is {largest}; {by}", eos


def _seq_len(datasets, vocab):
    """The shards' own number of tokens per sample, and EXTRA. Otherwise a length whose windows
    leave out less than 5 % of a dataset, and whose logits fit into memory, and "".
    """
    lengths = sorted({dataset.sample_tokens for dataset in datasets} - {0})
    if len(lengths) > 1:
        raise Error(f"samples of {lengths} tokens; name shards with samples of one length")
    if lengths:
        return lengths[0], EXTRA
    few = min(datasets, key=lambda dataset: dataset.tokens // len(dataset.files))
    least = few.tokens // len(few.files)
    if least <= SHORTEST:
        raise Error(f"{few.about}; name more data")
    length = 1024
    while length > SHORTEST and (length * 20 > least or length * vocab > LOGITS):
        length //= 2
    return length, ""


def _stream(stream, datasets, facts):
    text = STREAM.format(stream=stream, **facts)
    total = sum(dataset.tokens for dataset in datasets)
    for dataset in datasets:
        keys = dict(dataset.keys)
        if dataset.share:
            keys["part"] = [0, dataset.share] if stream == "train" else [dataset.share, 1]
        if stream == "train":
            keys["weight"] = float(f"{max(dataset.tokens / total, 0.0001):.4g}")
        text += f"      # {printable(dataset.about)}\n"
        text += f"      - {json.dumps(keys, ensure_ascii=False)}\n"
    return text


def _config(train, why, valid, facts):
    text = YAML + _stream("train", train, facts)
    if valid:
        text += why + _stream("valid", valid, {**facts, "more": facts["more"] + EPOCHS})
    return text


def _check(text):
    """Has tokend check the config before it gets its name. Returns what it says."""
    part = f".{CONFIG}.part"
    try:
        with open(part, "w") as file:
            file.write(text)
        command = [program("tokend"), "-c", part, "--check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        os.unlink(part)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["tokend --check failed"]
        raise Error(lines[-1].removeprefix("tokend: ").replace(part, CONFIG))
    return done.stdout


def _divided(datasets, facts):
    """Returns a config that tokend accepts, and the lines about its stream for validation."""
    held = [dataset for dataset in datasets if dataset.held_out]
    train = [dataset for dataset in datasets if not dataset.held_out]
    if held and train:
        text = _config(train, BY_NAME, held, facts)
        _check(text)
        return text, []
    text = _config(datasets, "", [], facts)
    for dataset, found in zip(datasets, re.findall(r" (\d+) windows;", _check(text)), strict=True):
        windows, runs = int(found), -(-int(found) // RUN)
        held = max(runs // 1000, 2 if runs >= 10 else 1)  # one of them may be short
        if windows > LEAST:  # 0.1: not less, when it is rounded
            dataset.share = float(f"{(runs - held + 0.1) / runs:.4g}")
    least = f"{LEAST} windows of {facts['seq_len']} tokens"
    parted = [dataset for dataset in datasets if dataset.share]
    if not parted:
        return text, [
            f"no stream for validation: a dataset needs more than {least}; name more data, or "
            "files whose names say val"
        ]
    text = _config(datasets, BY_PART, parted, facts)
    said = _check(text).partition("stream valid: ")[2]
    pairs = re.findall(r": windows (\d+) of (\d+)", said)
    held, whole = (sum(map(int, numbers)) for numbers in zip(*pairs, strict=True))
    line = f"stream valid: {held:,} of {whole:,} windows, which train does not have"
    small = ", ".join(dataset.keys["path"] for dataset in datasets if not dataset.share)
    return text, [line + (f"; none of {small}: not above {least}" if small else "")]


# ---- the command ----


def _init(given):
    begin, made, notes = time.monotonic(), {}, []
    paths = list(dict.fromkeys(given.paths))
    for path in paths:
        if not documents.is_pattern(path):
            os.stat(path)
    names = _names(paths)
    reports = {path: _inspected(path) for path in paths}
    texts = [path for path in paths if not reports[path]]
    for path in set(paths) - set(texts) if texts else ():
        raise Error(
            f"{path} contains shards and {texts[0]} text; name one kind, or convert the text with "
            "python -m tokend tokenize"
        )
    if texts:
        made, notes = _convert(paths, names, given)
        reports = {path: _inspected(made[path]) for path in paths}
    datasets = [_dataset(p, made.get(p, p), names[p], reports[p]) for p in paths]
    if not texts:
        doubts = [
            f"look at {r['path']}: {n}" for p in paths for r in reports[p] for n in r["notes"]
        ]
        notes = [dataset.about for dataset in datasets] + doubts[:LISTED]
    vocab, about, eos = _vocabulary(datasets, given)
    seq_len, more = _seq_len(datasets, vocab)
    facts = {
        "vocab": vocab,
        "about_vocab": about,
        "seq_len": seq_len,
        "more": more + EOS.format(eos),
    }
    text, valid = _divided(datasets, facts)
    micro_batch = max(1, min(8, LOGITS // (seq_len * vocab)))
    script = TRAIN.format(vocab=vocab, micro_batch=micro_batch)
    for name, content in ((CONFIG, text), (SCRIPT, script)):
        with open(name, "x") as file:
            file.write(content)
    progress()
    for line in (*notes, *valid):
        print(printable(line).replace("\n", "?"))
    known = f" --tokenizer {shlex.quote(given.tokenizer)}" if given.tokenizer else ""
    print(f"wrote {CONFIG} and {SCRIPT} in {time.monotonic() - begin:.1f} s; go on with")
    print(f"  python -m tokend try{known}\n  torchrun {SCRIPT}")
    return 0


def main(argv):
    parser = Parser(
        prog="python -m tokend init",
        description=f"Writes {CONFIG} and {SCRIPT} for shards or text, and converts the text.",
        epilog="Each PATH is a dataset.",
    )
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="a directory, a file, or a pattern in quotes")
    add("--tokenizer", metavar="FILE",
        help="tokenizer.json or .tiktoken; default: one next to the data, otherwise a token is a "
        "byte")  # fmt: skip
    add("--field", default="text", metavar="NAME", help="field of JSONL, column of parquet")
    add("--eos", metavar="ID|TEXT",
        help="token after each document; default: the tokenizer's, if it names one")  # fmt: skip
    add("--bos", metavar="ID|TEXT", help=tokenize.BOS_HELP)
    add("--most", type=positive, default=MOST_MIB, metavar="MIB",
        help=f"text to convert of each PATH; default {MOST_MIB}. python -m tokend tokenize "
        "converts all")  # fmt: skip
    given = parser.parse_args(argv)
    for name in (CONFIG, SCRIPT, TOKENS):
        if os.path.lexists(name):
            raise Error(f"{name}: exists, and init replaces nothing; move it away")
    try:
        return _init(given)
    except BaseException:
        shutil.rmtree(TOKENS, ignore_errors=True)  # not there before
        raise
