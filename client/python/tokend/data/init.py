"""python -m tokend init: writes a config and a training script for shards or text.

    python -m tokend init ~/my-text
    python -m tokend init /data/web /data/code

It writes tokend.yaml and train.py into the current directory. Each argument is a dataset: a file, a
directory, or a pattern in quotes. Shards stay where they are, and are weighted by their tokens.
A directory with other files, or with validation data, is refused: name the shards.
Text is converted to shards below tokens/, up to --most MiB of each argument. The stream for
validation has a part of each dataset, which the other stream does not have.
"""

import itertools
import os
import pathlib
import re
import shutil
import time
import typing

from .._tokend import WORDS_SIDE
from ..errors import Error
from . import documents, tokenize, tokenizer
from .parser import Parser, output_of, positive, printable, quoted, tokctl

CONFIG, SCRIPT, TOKENS = "tokend.yaml", "train.py", "tokens"
MOST_MIB = 64  # of text: 20 to 40 CPU seconds with a real tokenizer
SCANNED_BYTES = 1 << 30  # for the largest token; of larger datasets, the first shards
LOGITS = 1 << 26  # of a batch, so that train.py runs on a laptop
RUN = 64  # windows: a part of a dataset consists of such runs
LEAST = 4 * RUN  # windows of a dataset; of a larger one, some are held out
SHARE = 0.999  # of a dataset is trained on, if the rest is held out
SIDES = {*WORDS_SIDE.split()}  # in names that are not those of shards

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
            weights.grad /= loader.world
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


class Dataset(typing.NamedTuple):
    keys: dict  # of the config
    shards: list  # what tokctl inspect says of each
    tokens: int
    runs: dict  # by their directories: what tokenize noted there, or {}


def _directory(path):
    return path if os.path.isdir(path) else os.path.dirname(path) or "."


def _run(place, shards=()):
    """The options that tokenize noted in a directory, or {}. @shards: those that must be all."""
    run, done = tokenize.read_notes(place)
    if run and not done["finished"]:
        raise Error(f"{place}: tokenize has not ended; {tokenize.RESUME}")
    count = sum(shard["tokens"] for shard in shards if _directory(shard["path"]) == place)
    if run and shards and count != done["tokens"]:
        some = f"{place}: has {count} tokens, but tokenize made {done['tokens']}"
        raise Error(f"{some}; copy missing files, or name those wanted, as a pattern in quotes")
    return run


def _names(paths):
    """Unlike names of datasets, by path."""
    names = {}
    for path in paths:
        whole = os.path.realpath(_directory(path) if documents.is_pattern(path) else path)
        name = tokenize.label(whole if os.path.isdir(whole) else os.path.splitext(whole)[0])
        names[path] = f"{name}-{len(names) + 1}" if name in names.values() else name
    return names


def _is_held_out(path):
    """Is it for validation by its last name?"""
    return documents.VALIDATION & documents.words_of(os.path.basename(os.path.abspath(path)))


def _why_not(path, shard, again):
    """Why init takes no path with this shard; None: it does. @again: with another dtype."""
    words = documents.words_of(os.path.relpath(shard["path"], path))
    if documents.is_pattern(path):
        literal = re.match(r"[^*?[]*", path)[0].rpartition("/")[0]
        words -= documents.words_of(path.removeprefix(literal))
    if problems := shard["problems"] + (shard["notes"] if again else []):
        return problems[0]
    if words & SIDES:
        return (
            f"its name ({min(words & SIDES)}) is not a shard's; name it itself if it has tokens to "
            "train on"
        )
    if words & documents.VALIDATION and not _is_held_out(path):
        return f"is for validation by its name; add it to {CONFIG} as a stream of its own"
    return None


def _dataset(name, path):
    """Returns the Dataset of a path, or None if that has text."""
    noted, first = _run(_directory(path)), None
    for dtype in [noted["dtype"]] if noted else [None, "u32"]:
        how = ("--input-dtype", dtype) if dtype else ()
        shards = tokctl("inspect", "--json", *how, "--", path, statuses=(0, 1))
        if not any(shard["format"] for shard in shards):
            return None
        shards.sort(key=lambda shard: not shard["format"])  # of texts, an array is named
        bad = [f"{s['path']}: {why}" for s in shards if (why := _why_not(path, s, first))]
        if not bad:
            break
        first = first or bad[0]
    else:
        raise Error(f"{first}. To leave files out, name the others, or a pattern in quotes")
    keys = {"name": name, "path": os.path.normpath(path)}
    if shards[0]["dtype"] in ("u16", "u32"):  # the config takes these
        keys["dtype"] = shards[0]["dtype"]
    if shards[0].get("column"):
        keys["column"] = shards[0]["column"]
    places = dict.fromkeys(_directory(shard["path"]) for shard in shards)
    runs = {place: _run(place, shards if os.path.isdir(path) else ()) for place in places}
    return Dataset(keys, shards, sum(shard["tokens"] for shard in shards), runs)


def _convert(names, given):
    """Makes shards of texts. Yields their directories."""
    places = [*map(_directory, names), *(f"{os.path.abspath(name)}/.." for name in names)]
    near = (path for place in places for path in sorted(pathlib.Path(place).glob("*")))
    found = (str(path) for path in near if documents.TOKENIZERS.fullmatch(path.name))
    file = given.tokenizer or next(found, tokenizer.BYTES)
    if file == tokenizer.BYTES:
        tokenize.say("no tokenizer found, so a token is a byte; pass --tokenizer FILE for others")
    elif not given.tokenizer:
        tokenize.say(f"tokenizer: {file}; pass --tokenizer FILE for another")
    for path, name in names.items():
        place = os.path.join(TOKENS, name)
        options = tokenize.arguments(["--text", f"--tokenizer={file}", "-o", place, "--", path])
        options.field, options.bos, options.eos = given.field, given.bos, given.eos
        tokenize.make(options, given.most << 20)
        yield place


# ---- the config ----


def _refuse_other_tokenizers(datasets, encoder):
    """Raises Error if one token is two texts. The tokenizer of a column of tokens is not known."""
    made = [("--tokenizer", encoder.file, encoder.digest)] if encoder.file else []
    runs = [run for dataset in datasets for run in dataset.runs.items()]
    made += [(path, run["file"], run["tokenizer"]) for path, run in runs if run.get("file")]
    for path, file, digest in made:
        first, other, its = made[0]
        if digest != its:
            raise Error(
                f"{path}: was made with {file} (SHA-256 {digest[:8]}…), unlike {first}: {other} "
                f"({its[:8]}…), so the same tokens may mean other texts; use one tokenizer for all"
            )
    ends = {run["eos"]: path for path, run in runs if run.get("file")}
    if len(ends) > 1:
        (eos, path), (its, first), *_ = ends.items()
        raise Error(f"{path}: has EOS {eos}, unlike {first}: {its}; use one --eos for all")


def _vocabulary(datasets, given):
    """Returns vocab, a comment about it, and eos: a key and its value, or a comment."""
    runs = [run for dataset in datasets for run in dataset.runs.values()]
    (_, eos), *others = {(run.get("tokenizer"), run.get("eos")) for run in runs}
    file, encoder = runs[0].get("file"), tokenizer.load(given.tokenizer)
    _refuse_other_tokenizers(datasets, encoder)
    if file and not others:
        if given.eos is not None:
            if tokenize.token("--eos", given.eos, tokenizer.load(file)) != eos:
                raise Error(f"--eos: {given.eos}: the shards were made with {eos}; leave it out")
        return max(run["vocab"] for run in runs), f"tokenizer: {file}", f"eos: {eos}"
    largest, left = 0, SCANNED_BYTES
    for dataset in datasets:
        left -= sum(os.stat(shard["path"]).st_size for shard in dataset.shards)
        path = dataset.keys["path"] if left >= 0 else dataset.shards[0]["path"]
        how = ("--input-dtype", dataset.keys.get("dtype", "u16"), "--", path)
        for shard in tokctl("inspect", "--json", "--deep", *how):
            largest = max(largest, shard.get("max_token", 0))  # an empty one has none
    about, vocab = f"the largest of all tokens is {largest}", largest + 1
    if left < 0:
        about = f"the largest in some shards is {largest}; set your tokenizer's"
        vocab = 1 << largest.bit_length()
    if encoder.file:
        about, vocab = f"tokenizer: {encoder.file}", max(largest + 1, encoder.vocab)
    ends = [*encoder.ends_of_text().values()]
    if given.eos is not None:
        ends = [tokenize.token("--eos", given.eos, encoder)]
    vocab = max([vocab, *(end + 1 for end in ends)])
    return vocab, about, f"eos: {ends[0]}" if len(ends) == 1 else "# eos: 50256"


def _seq_len(datasets):
    """The shards' own number of tokens per sample, and EXTRA. Otherwise a length whose windows
    leave out less than 5 % of a dataset, and "".
    """
    if own := max(shard.get("sample_tokens", 0) for d in datasets for shard in d.shards):
        return own, EXTRA
    least, length = min(d.tokens // len(d.shards) for d in datasets), 1024
    while length > 8 and length * 20 > least:
        length //= 2
    return length, ""


def _stream(stream, datasets, total, facts):
    """@datasets: [(Dataset, its part or None)]; @total: tokens, for the weights; 0: without."""
    text = STREAM.format(stream=stream, **facts)
    for dataset, part in datasets:
        keys = dataset.keys | ({"part": part} if part else {})
        if total:
            keys["weight"] = float(f"{max(dataset.tokens / total, 0.0001):.4g}")
        text += f"      - {quoted(keys)}\n"
    return text


def _config(datasets, facts):
    train, valid = [], []
    for dataset in datasets:
        windows = sum((shard["tokens"] - 1) // facts["seq_len"] for shard in dataset.shards)
        train.append((dataset, [0, SHARE] if windows > LEAST else None))
        valid += [(dataset, [SHARE, 1])] if windows > LEAST else []
    text = YAML + _stream("train", train, sum(dataset.tokens for dataset in datasets), facts)
    if not valid:
        return text + f"\n  # For validation: none of them has more than {LEAST} windows.\n"
    return text + VALID + _stream("valid", valid, 0, facts | {"more": facts["more"] + EPOCHS})


# ---- the command ----


def _init(given):
    begin, paths = time.monotonic(), given.paths
    for one, other in itertools.permutations(paths, 2):
        if f"{os.path.realpath(one)}/".startswith(f"{os.path.realpath(other)}/"):
            raise Error(f"{one}: is in {other}, too; name it once")
    held = list(filter(_is_held_out, paths))
    if 0 < len(held) < len(paths):
        raise Error(f"{held[0]}: is validation data by its name; leave it out, add it to {CONFIG}")
    names = _names(paths)
    datasets = [_dataset(name, path) for path, name in names.items()]
    texts = [path for path, found in zip(paths, datasets, strict=True) if found is None]
    if 0 < len(texts) < len(paths):
        raise Error(f"{texts[0]}: is text, others are shards; name one kind, or convert it first")
    if texts:
        datasets = list(map(_dataset, names.values(), _convert(names, given)))
    vocab, about, eos = _vocabulary(datasets, given)
    seq_len, more = _seq_len(datasets)
    facts = {"vocab": vocab, "about_vocab": about, "seq_len": seq_len, "more": more, "eos": eos}
    micro_batch = max(1, min(8, LOGITS // (seq_len * vocab)))
    pathlib.Path(CONFIG).write_text(_config(datasets, facts))
    pathlib.Path(SCRIPT).write_text(TRAIN.format(vocab=vocab, micro_batch=micro_batch))
    # windows, parts, and doubts
    print(printable(output_of("tokend", "-c", CONFIG, "--check")), end="")
    print(f"wrote {CONFIG} and {SCRIPT} in {time.monotonic() - begin:.1f} s; go on with")
    print(f"  python -m tokend try\n  torchrun {SCRIPT}")


def main(argv):
    parser = Parser(
        prog="python -m tokend init",
        description=f"Writes {CONFIG} and {SCRIPT} for shards or text, and converts the text.",
    )
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="a dataset: directory, file, or quoted pattern")
    add("--tokenizer", metavar="FILE", help="default: one in or next to the data, otherwise bytes")
    tokenize.add_shared(add)
    add("--most", type=positive, default=MOST_MIB, metavar="MIB", help="of text of each PATH")
    given = parser.parse_args(argv)
    for name in (CONFIG, SCRIPT, TOKENS):
        if os.path.lexists(name):
            raise Error(f"{name}: exists, and init replaces nothing; move it away")
    try:
        _init(given)
    except BaseException:
        for name in (CONFIG, SCRIPT):
            pathlib.Path(name).unlink(missing_ok=True)
        shutil.rmtree(TOKENS, ignore_errors=True)
        raise
    return 0
