"""python -m tokend init: writes a config and a training script for shards or text.

    python -m tokend init ~/my-text
    python -m tokend init /data/web /data/code

It writes tokend.yaml and train.py into the current directory. Each argument is a dataset: a file, a
directory, or a pattern in quotes. Shards stay where they are, and are weighted by their tokens.
Text is converted to shards below tokens/, up to --most MiB of each argument. The stream for
validation has a part of each dataset, which the other stream does not have.
"""

import itertools
import os
import pathlib
import time

from .._tokend import Error
from . import documents, tokenize, tokenizer
from .parser import Parser, positive, printable, quoted, said_by, tokctl

CONFIG, SCRIPT, TOKENS = "tokend.yaml", "train.py", "tokens"
MOST_MIB = 64  # of text: 20 to 40 CPU seconds with a real tokenizer
SEQ_LEN = 1024  # unless shards contain samples of a length
LOGITS = 1 << 26  # of a batch, so that train.py runs on a laptop
RUN = 64  # windows: a part of a dataset consists of such runs
LEAST = 4 * RUN  # windows of a dataset; of a larger one, some are held out
SHARE = 0.999  # of a dataset is trained on, if the rest is held out

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
    vocab: {vocab:<13} # {about_vocab}
    {eos:<20} # the token that ends a document
{more}    datasets:
"""
EXTRA = "    extra: 0             # a sample of the shards is a window\n"
EPOCHS = "    epochs: 1            # ends after each window was served once\n"
VALID = """
  # For validation: windows that train does not have (`part`). Do not change parts, seq_len or the
  # shards of a path once you train: windows of train would get into valid. Add new data as another
  # dataset. Window numbers, as in `tokctl plan`, are those of the whole path.
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


def _directory(path):
    return path if os.path.isdir(path) else os.path.dirname(path) or "."


def _names(paths):
    """Unlike names of datasets, by path."""
    names = {}
    for path in paths:
        whole = os.path.realpath(path if os.path.exists(path) else _directory(path))
        name = tokenize.label(whole if os.path.isdir(whole) else os.path.splitext(whole)[0])
        names[path] = f"{name}-{len(names) + 1}" if name in names.values() else name
    return names


def _inspect(path):
    """Returns what tokctl inspect says of a path's shards. None: it is text."""
    noted, first = tokenize.read_notes(_directory(path))[0], None
    for dtype in [noted["dtype"]] if noted else [None, "u32"]:
        how = ("--input-dtype", dtype) if dtype else ()
        shards = tokctl("inspect", "--json", *how, "--", path, statuses=(0, 1))
        if not any(shard["format"] for shard in shards):
            return None
        bad = next((s for s in shards if s["problems"] or first and s["notes"]), None)
        if not bad:
            return shards
        first = first or bad
    raise Error(
        f"{first['path']}: {first['problems'][0]}. To leave files out, name the others, or a "
        f"pattern in quotes like {os.path.join(_directory(path), '*.bin')!r}"
    )


def _keys(name, path, shards):
    """Returns the keys of a dataset in the config."""
    first, keys = shards[0], {"name": name, "path": os.path.normpath(path)}
    if first["dtype"] in ("u16", "u32"):  # the config takes these
        keys["dtype"] = first["dtype"]
    if first.get("column"):
        keys["column"] = first["column"]
    return keys


def _convert(names, given):
    """Makes shards of texts. Yields their directories."""
    near = (path for name in names for path in sorted(pathlib.Path(_directory(name)).glob("*")))
    found = (str(path) for path in near if documents.TOKENIZERS.fullmatch(path.name))
    file = given.tokenizer or next(found, tokenizer.BYTES)
    if file == tokenizer.BYTES:
        tokenize.say("no tokenizer found, so a token is a byte; pass --tokenizer FILE for others")
    for path, name in names.items():
        place = os.path.join(TOKENS, name)
        options = tokenize.arguments(["--text", f"--tokenizer={file}", "-o", place, "--", path])
        options.field, options.bos, options.eos = given.field, given.bos, given.eos
        tokenize.make(options, given.most << 20)
        yield place


# ---- the config ----


def _vocabulary(datasets):
    """Returns vocab, a comment about it, and eos: a key and its value, or a comment."""
    runs = [tokenize.read_notes(_directory(keys["path"]))[0] for keys, _ in datasets]
    (file, _, eos), *others = {tuple(map(run.get, ("file", "tokenizer", "eos"))) for run in runs}
    if file and not others:
        return max(run["vocab"] for run in runs), f"tokenizer: {file}", f"eos: {eos}"
    narrow = all(keys.get("dtype") == "u16" for keys, _ in datasets)
    return 1 << (16 if narrow else 18), "set your tokenizer's", "# eos: 50256"


def _config(datasets, facts):
    train, valid = "", ""
    counts = [sum(shard["tokens"] for shard in shards) for _, shards in datasets]
    for (keys, shards), tokens in zip(datasets, counts, strict=True):
        weight = float(f"{max(tokens / sum(counts), 0.0001):.4g}")
        windows = sum((shard["tokens"] - 1) // facts["seq_len"] for shard in shards)
        part = {"part": [0, SHARE]} if windows > LEAST else {}
        train += f"      - {quoted(keys | part | {'weight': weight})}\n"
        if part:
            valid += f"      - {quoted(keys | {'part': [SHARE, 1]})}\n"
    text = YAML + STREAM.format(stream="train", **facts) + train
    if not valid:
        return text + f"\n  # For validation: none of them has more than {LEAST} windows.\n"
    facts["more"] += EPOCHS
    return text + VALID + STREAM.format(stream="valid", **facts) + valid


# ---- the command ----


def main(argv):
    parser = Parser("init", __doc__)
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="a directory, a file, or a pattern in quotes")
    add("--tokenizer", metavar="FILE", help="default: one next to the data, otherwise bytes")
    tokenize.add_shared(add)
    add("--most", type=positive, default=MOST_MIB, metavar="MIB", help="of text of each PATH")
    given = parser.parse_args(argv)
    for name in (CONFIG, SCRIPT, TOKENS):
        if os.path.lexists(name):
            raise Error(f"{name}: exists, and init replaces nothing; move it away")
    begin, paths = time.monotonic(), given.paths
    for one, other in itertools.permutations(paths, 2):
        if f"{os.path.realpath(one)}/".startswith(f"{os.path.realpath(other)}/"):
            raise Error(f"{one}: is in {other}, too; name it once")
    names, shards = _names(paths), {path: _inspect(path) for path in paths}
    texts = [path for path in paths if shards[path] is None]
    if 0 < len(texts) < len(paths):
        raise Error(f"{texts[0]}: is text, others are shards; name one kind, or convert it first")
    if texts:
        shards = {place: _inspect(place) for place in _convert(names, given)}
    elif given.tokenizer:
        raise Error("--tokenizer: is for text; for shards, set vocab and eos in the config")
    named = zip(names.values(), shards.items(), strict=True)
    datasets = [(_keys(name, path, found), found) for name, (path, found) in named]
    vocab, about, eos = _vocabulary(datasets)
    own = max(shard.get("sample_tokens", 0) for _, found in datasets for shard in found)
    facts = {"vocab": vocab, "about_vocab": about, "eos": eos, "more": EXTRA if own else ""}
    facts["seq_len"] = own or SEQ_LEN
    micro_batch = max(1, min(8, LOGITS // (facts["seq_len"] * vocab)))
    pathlib.Path(CONFIG).write_text(_config(datasets, facts))
    pathlib.Path(SCRIPT).write_text(TRAIN.format(vocab=vocab, micro_batch=micro_batch))
    print(printable(said_by("tokend", "-c", CONFIG, "--check")), end="")
    print(f"wrote {CONFIG} and {SCRIPT} in {time.monotonic() - begin:.1f} s; go on with")
    print(f"  python -m tokend try\n  torchrun {SCRIPT}")
    return 0
