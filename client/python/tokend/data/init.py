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
LEAST = 4 * RUN  # windows of a dataset, to hold out some of them
SHARES = ("0.999", "0.99", "0.9", "0.8", "0.7")  # of a dataset, for training: the first that fits
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
DATASET = """\
      # {about}
      - name: {name}
        path: {path}
"""
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
    name: str
    path: str
    about: str
    tokens: int
    files: list  # its shards
    dtype: str  # "": only the files say it
    column: str = ""
    sample_tokens: int = 0  # 0: the shards have no samples
    held_out: bool = False  # by its name: for validation
    share: str = ""  # of it for training; the rest of it is for validation


@dataclasses.dataclass
class Facts:
    """Of all datasets together."""

    vocab: int
    about_vocab: str
    eos: str  # a key and its value, or a comment
    notes: list  # lines for the user
    seq_len: int = 0
    samples: bool = False  # the shards', which are the windows


def _quoted(text):
    """As YAML."""
    return json.dumps(text, ensure_ascii=False)


def _count(number, unit):
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _names(paths):
    """Unlike names of datasets, by path."""
    names = {}
    for path in paths:
        whole = os.path.realpath(path)
        base = os.path.basename(os.path.dirname(whole) if documents.is_pattern(path) else whole)
        base = os.path.splitext(base)[0] if os.path.isfile(path) else base
        name = unlike = tokenize.label(base)
        number = 2
        while unlike in names.values():
            unlike, number = f"{name}-{number}", number + 1
        names[path] = unlike
    return names


def _refuse_twice(files):
    """@files: the paths of an argument's files, by argument."""
    seen = {}
    for path, of_one in files.items():
        for file in map(os.path.realpath, of_one):
            if seen.setdefault(file, path) != path:
                raise Error(f"{file}: is in {seen[file]} and in {path}; name it once")


def _tokenizer(given, directories):
    """The tokenizer's file: as given, otherwise one next to the data. None: there is none."""
    if given.tokenizer:
        return given.tokenizer
    for directory in directories:
        directory = directory or "."
        near = sorted(filter(documents.TOKENIZERS.fullmatch, os.listdir(directory)))
        found = os.path.join(directory, near[0]) if near else tokenize.noted_tokenizer(directory)
        if found:
            return found
    return None


# ---- shards ----


def _inspected(path):
    """Returns what tokctl inspect says of an argument's shards; [] for text."""
    reports = list(tokctl("inspect", "--json", "--", path, statuses=(0, 1)))
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


def _of_shards(path, name, reports):
    if os.path.isdir(path) and os.path.samefile(path, "."):
        raise Error(
            f"{path}: init writes {CONFIG} here, among the shards; name a pattern in quotes like "
            "'*.bin', or run it in another directory"
        )
    tokens, one = sum(report["tokens"] for report in reports), reports[0]
    column, about = one.get("column") or "", f"{one['format']} {one['dtype']}"
    return Dataset(
        name,
        os.path.normpath(path),
        f"{path}: {_count(tokens, 'token')} in {_count(len(reports), 'shard')}, {about}"
        + (f", column {column}" if column else ""),
        tokens,
        [report["path"] for report in reports],
        one["dtype"] if one["dtype"] in ("u16", "u32") else "",  # the config takes these
        column,
        max(report.get("sample_tokens", 0) for report in reports),
    )


def _largest_token(datasets):
    """Returns the largest token of up to SCANNED_BYTES of shards, and whether these are all."""
    largest, left = 0, SCANNED_BYTES
    for dataset in datasets:
        for first in range(0, len(dataset.files), 100):
            files = dataset.files[first : first + 100]
            if left <= 0:
                return largest, False
            left -= sum(os.stat(file).st_size for file in files)
            how = ("--input-dtype", dataset.dtype or "u16")
            for report in tokctl("inspect", "--json", "--deep", *how, "--", *files):
                largest = max(largest, report.get("max_token", 0))
    return largest, True


def _shards(looked, given):
    """Returns (datasets, Facts)."""
    datasets = [_of_shards(*each) for each in looked]
    noted = [f"look at {r['path']}: {note}" for *_, of in looked for r in of for note in r["notes"]]
    _refuse_twice({d.path: d.files for d in datasets})
    largest, whole = _largest_token(datasets)
    vocab, ends, by = largest + 1, {}, "set your tokenizer's"
    if not whole:
        vocab = max(1 << 16, 1 << largest.bit_length())
    if file := _tokenizer(given, [os.path.dirname(d.files[0]) for d in datasets]):
        encoder = tokenizer.load(file)
        if largest >= encoder.vocab and not encoder.pattern:  # .tiktoken lacks special tokens
            by = f"{file} has only {encoder.vocab} tokens, so it is another one's"
        else:
            ends, by = encoder.ends_of_text(), f"tokenizer: {file}"
            vocab = max(encoder.vocab, largest + 1, *(end + 1 for end in ends.values()), 0)
    where = "of all tokens" if whole else f"in {SCANNED_BYTES >> 30} GiB"
    eos = f"eos: {next(iter(ends.values()))}" if len(ends) == 1 else "# eos: 50256"
    about = f"the largest {where} is {largest}; {by}"
    return datasets, Facts(vocab, about, eos, noted[:LISTED])


# ---- text ----


def _convert(path, name, file, given, sources, size):
    """Makes shards of an argument's texts. Returns (Dataset, tokenize.Made)."""
    most = given.most << 20
    workers = min(len(os.sched_getaffinity(0)), min(size, most) // BYTES_A_WORKER)
    options = argparse.Namespace(
        **{name: getattr(given, name) for name in ("field", "bos", "eos")},
        **dict.fromkeys(("pattern", "column", "resume")),
        output=os.path.join(TOKENS, name),
        tokenizer=file,
        dtype="auto",
        shard_tokens=1 << 28,
        workers=max(1, workers),
    )
    made = tokenize.make(options, sources, most)
    part, done = "all text", made.done
    if made.read < size:
        part = f"the first {made.read >> 20} of {size >> 20} MiB (--most converts more)"
    counts = [_count(done.documents, "document")] if done.documents else []  # not a part of one
    counts.append(_count(done.tokens, "token"))
    about = f"{part} in {os.path.abspath(path)}: {', '.join(counts)}"
    files = [None] * done.shards
    return Dataset(name, options.output, about, done.tokens, files, made.how.dtype), made


def _texts(paths, given):
    """Returns (datasets, Facts)."""
    names, notes, chosen = _names(paths), [], {}
    directories = [path if os.path.isdir(path) else os.path.dirname(path) for path in paths]
    file = _tokenizer(given, directories) or tokenizer.BYTES
    for path in paths:
        *found, left_out = documents.sources_of([path], documents.TEXTS, True, given.most << 20)
        left = [f"{name}: {why}" for name, why in left_out.items()]
        if not found[0]:
            why = f" ({left[0]})" if left else ""
            raise Error(f"{path}: has neither shards nor text{why}; name a directory that does")
        chosen[path] = found
        more = f"; and {len(left) - LISTED} more" if len(left) > LISTED else ""
        notes += [f"left out: {'; '.join(left[:LISTED])}{more}"] if left else []
    _refuse_twice({path: [source.path for source in chosen[path][0]] for path in paths})
    made = [_convert(path, names[path], file, given, *chosen[path]) for path in paths]
    by, one = f"tokenizer: {file}", made[0][1]
    if file == tokenizer.BYTES:
        by = "a token is a byte"
        notes.append("no tokenizer found, so a token is a byte; pass --tokenizer FILE for others")
    notes.insert(0, f"added to each document: {one.ends()}")
    about = f"{by}; a token not below it stops the stream"
    return [dataset for dataset, _ in made], Facts(one.vocab, about, f"eos: {one.how.eos}", notes)


# ---- the config ----


def _seq_len(datasets, vocab):
    """The shards' own number of tokens per sample, and True. Otherwise a length whose windows leave
    out less than 5 % of a dataset, and whose logits fit into memory, and False.
    """
    lengths = sorted({dataset.sample_tokens for dataset in datasets} - {0})
    if len(lengths) > 1:
        raise Error(f"samples of {lengths} tokens; name shards with samples of one length")
    if lengths:
        return lengths[0], True
    few = min(datasets, key=lambda dataset: dataset.tokens // len(dataset.files))
    least = few.tokens // len(few.files)
    if least <= SHORTEST:
        size = _count(few.tokens, "token")
        raise Error(f"{few.path}: {size} in {_count(len(few.files), 'shard')}; name more data")
    length = 1024
    while length > SHORTEST and (length * 20 > least or length * vocab > LOGITS):
        length //= 2
    return length, False


def _stream(stream, parts, facts, more):
    """@parts: pairs of a dataset and its part; "": all of it."""
    text = STREAM.format(stream=stream, more=more, **vars(facts))
    total = sum(dataset.tokens for dataset, _ in parts)
    for dataset, part in parts:
        keys = {"dtype": dataset.dtype, "column": dataset.column and _quoted(dataset.column)}
        keys["part"] = part
        if stream == "train":
            keys["weight"] = f"{max(dataset.tokens / total, 0.0001):.4g}"
        about, name, path = printable(dataset.about), _quoted(dataset.name), _quoted(dataset.path)
        text += DATASET.format(about=about, name=name, path=path)
        text += "".join(f"        {key}: {value}\n" for key, value in keys.items() if value)
    return text


def _config(datasets, facts):
    held = [(dataset, "") for dataset in datasets if dataset.held_out]
    train = [dataset for dataset in datasets if not dataset.held_out]
    why = BY_NAME
    if not held or not train:
        why, train = BY_PART, datasets
        held = [(dataset, f"[{dataset.share}, 1]") for dataset in datasets if dataset.share]
    more = (EXTRA if facts.samples else "") + EOS.format(facts.eos)
    parts = [(dataset, dataset.share and f"[0, {dataset.share}]") for dataset in train]
    text = YAML + _stream("train", parts, facts, more)
    return text + (why + _stream("valid", held, facts, more + EPOCHS) if held else "")


def _check(text):
    """Has tokend check the config before it gets its name. Returns what it says of the parts for
    validation: [(windows, those of the path)].
    """
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
    said = done.stdout.partition("stream valid: ")[2].replace(",", "")
    return [tuple(map(int, pair)) for pair in re.findall(r": windows (\d+) of (\d+)", said)]


def _divided(datasets, facts):
    """Returns a config that tokend accepts, and the lines about its stream for validation."""
    text = _config(datasets, facts)
    _check(text)
    if "\n  valid:" in text:
        return text, []
    for dataset in datasets:
        dataset.share = SHARES[0] if dataset.tokens // facts.seq_len >= LEAST else ""
    parted, pairs = [dataset for dataset in datasets if dataset.share], []
    while parted and min(pairs, default=(0,))[0] < RUN:
        # The last run of a path may be short. If it is the only one for validation, take more.
        for dataset, (held, _) in zip(parted, pairs, strict=False):
            if held < RUN:
                dataset.share = SHARES[SHARES.index(dataset.share) + 1]
        text = _config(datasets, facts)
        pairs = _check(text)
    least = f"{LEAST} windows of {facts.seq_len} tokens"
    if not parted:
        return text, [
            f"no stream for validation: a dataset needs {least}; name more data, or files whose "
            "names say val"
        ]
    held, whole = map(sum, zip(*pairs, strict=True))
    line = f"stream valid: {held:,} of {whole:,} windows, which train does not have"
    small = ", ".join(dataset.path for dataset in datasets if not dataset.share)
    return text, [line + (f"; none of {small}: below {least}" if small else "")]


# ---- the command ----


def _datasets(paths, given):
    names, looked, texts = _names(paths), [], []
    for path in paths:
        if not documents.is_pattern(path):
            os.stat(path)
        if reports := _inspected(path):
            looked.append((path, names[path], reports))
        else:
            texts.append(path)
    if looked and texts:
        raise Error(
            f"{looked[0][0]} contains shards and {texts[0]} text; name one kind, or convert the "
            "text with python -m tokend tokenize"
        )
    datasets, facts = _texts(texts, given) if texts else _shards(looked, given)
    facts.seq_len, facts.samples = _seq_len(datasets, facts.vocab)
    for path, dataset in zip(paths, datasets, strict=True):
        words = re.split("[^a-z]+", os.path.basename(os.path.realpath(path)).lower())
        dataset.held_out = bool(HELD_OUT.intersection(words))
    return datasets, facts


def _init(given):
    begin = time.monotonic()
    datasets, facts = _datasets(list(dict.fromkeys(given.paths)), given)
    text, valid = _divided(datasets, facts)
    micro_batch = max(1, min(8, LOGITS // (facts.seq_len * facts.vocab)))
    script = TRAIN.format(vocab=facts.vocab, micro_batch=micro_batch)
    for name, content in ((CONFIG, text), (SCRIPT, script)):
        with open(name, "x") as file:
            file.write(content)
    progress()
    for line in (*(dataset.about for dataset in datasets), *valid, *facts.notes):
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
