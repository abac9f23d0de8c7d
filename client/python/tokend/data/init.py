"""python -m tokend init: writes a config and a training script for shards or text.

    python -m tokend init ~/my-text
    python -m tokend init /data/web /data/code

It writes tokend.yaml and train.py into the current directory. Each argument is a dataset: a file, a
directory, or a pattern in quotes. Shards stay where they are, and are weighted by their tokens;
other files in their directory are left out, and named. Text is converted to shards below tokens/,
up to --most MiB of each argument. Arguments and shards with names like val.bin go into a stream for
validation. Without such names, that stream has a part of each dataset, which the other stream does
not have.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import time

from .._tokend import Error, program
from . import documents, tokenize, tokenizer
from .parser import Parser, positive, printable, quoted, things, tokctl

CONFIG, SCRIPT, TOKENS = "tokend.yaml", "train.py", "tokens"
MOST_MIB = 64  # of text: 20 to 40 CPU seconds with a real tokenizer
SCANNED_BYTES = 1 << 30  # of shards, for the largest token: a second or two
SHORTEST = 8  # tokens of a sample
LOGITS = 1 << 26  # of a batch, so that train.py runs on a laptop
RUN = 64  # windows: a part of a dataset consists of such runs
LEAST = 4 * RUN  # windows of a dataset; of a larger one, some are held out
# words of names
VALIDATION = {"val", "valid", "validation", "test", "dev", "eval", "held", "heldout"}
SIDES = {"idx", "index", "indexes", "indices", "mask", "masks", "offset", "offsets", "lengths",
    "lens", "labels", "bounds", "boundaries"}  # fmt: skip

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
BY_NAME = "\n  # By their names, these are for validation.\n"
BY_PART = """
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


@dataclasses.dataclass
class Dataset:
    keys: dict  # of the config
    about: str
    tokens: int
    shards: list  # what tokctl inspect says of each
    for_validation: bool  # by its name


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
    return names


def _tokenizer(given, directories):
    """The tokenizer's file: as given, otherwise one next to the data. None: there is none."""
    found = (
        os.path.join(directory, name)
        for directory in directories
        for name in sorted(os.listdir(directory or "."))
        if documents.TOKENIZERS.fullmatch(name)
    )
    return given.tokenizer or next(found, None)


def _convert(paths, names, given):
    """Makes shards of texts. Returns {path: tokenize's Output}."""
    directories = [path if os.path.isdir(path) else os.path.dirname(path) for path in paths]
    file = _tokenizer(given, directories) or tokenizer.BYTES
    more = ["--bos", given.bos] if given.bos is not None else []
    more += ["--eos", given.eos] if given.eos is not None else []
    options = ["--text", f"--tokenizer={file}", f"--field={given.field}", *more]
    outputs = {}
    for path in paths:
        output = os.path.join(TOKENS, names[path])
        asked = tokenize.arguments([*options, "-o", output, "--", path])
        outputs[path] = tokenize.make(asked, given.most << 20)
    if file == tokenizer.BYTES:
        print("no tokenizer found, so a token is a byte; pass --tokenizer FILE for others")
    return outputs


# ---- shards ----


def _ask(path, dtype=None):
    how = ("--input-dtype", dtype) if dtype else ()
    return tokctl("inspect", "--json", *how, "--", path, statuses=(0, 1))


def _refusal(path, file, why):
    return Error(
        f"{file}: {why}. To leave files out, name the shards, or a pattern in quotes like "
        f"{os.path.join(path, '*.bin')!r}"
    )


def _words(path):
    return set(re.split("[^a-z]+", path.lower()))


def _pattern(paths):
    """Matches these, and perhaps more."""
    parts = []
    for names in zip(*(path.split("/") for path in paths), strict=False):
        prefix = os.path.commonprefix(names)
        rests = [name[len(prefix) :][::-1] for name in names]
        suffix = os.path.commonprefix(rests)[::-1].lstrip("0123456789")
        parts.append(f"{prefix.rstrip('0123456789')}*{suffix}" if any(rests) else prefix)
    return "/".join(parts)


def _place(path, chosen, others):
    """The path of exactly these shards of a directory. @others: {another file: what it is}"""
    if os.path.samefile(path, "."):
        others = others or {CONFIG: "will be among the shards"}
    if not others:
        return path
    chosen = sorted(map(os.path.normpath, chosen))
    for place in (os.path.commonpath(chosen), _pattern(chosen)):
        if sorted(os.path.normpath(report["path"]) for report in _ask(place)) == chosen:
            return place
    raise _refusal(path, *next(iter(others.items())))


def _places(path):
    """Returns {place of shards or text: is it for validation}, and of a directory with shards
    {another file: why it is left out}.
    """
    held, reports = bool(VALIDATION & _words(os.path.basename(os.path.realpath(path)))), []
    if os.path.isdir(path):
        reports = _ask(path)
    if not any(report["format"] for report in reports):
        return {path: held}, {}
    parts, left_out = {False: {}, True: {}}, {}
    for report in reports:
        file = report["path"]
        words = _words(os.path.relpath(file, path))
        if not report["format"] and os.path.isfile(file):
            why = report["problems"][0].replace(", not a shard of tokens", " next to shards")
            left_out[file] = why
        elif words & SIDES:
            left_out[file] = f"its name ({min(words & SIDES)}) is not a shard's"
        else:
            by_name = held or bool(VALIDATION & words)
            parts[by_name][file] = f"is for {'validation' if by_name else 'training'} by its name"
    places = {
        _place(path, [*part], left_out | parts[not by_name]): by_name
        for by_name, part in parts.items()
        if part
    }
    return places or {path: held}, left_out if places else {}


def _inspected(path, dtype=None):
    """Returns what tokctl inspect says of a place's shards; [] for text."""
    reports = _ask(path, dtype)
    if not any(report["format"] for report in reports):
        return []
    if any(report["problems"] for report in reports):  # perhaps tokens of another width
        others = _ask(path, "u32")
        if not any(report["problems"] or report["notes"] for report in others):
            reports = others
    for report in reports:
        if report["problems"]:
            raise _refusal(path, report["path"], report["problems"][0])
    return reports


def _dataset(place, name, reports, for_validation):
    """@place: of the shards, perhaps made of text."""
    tokens, one = sum(report["tokens"] for report in reports), reports[0]
    keys = {"name": name, "path": os.path.normpath(place)}
    if one["dtype"] in ("u16", "u32"):  # the config takes these
        keys["dtype"] = one["dtype"]
    if one.get("column"):
        keys["column"] = one["column"]
    return Dataset(
        keys,
        f"{place}: {tokens:,} {things(tokens, 'token')} in {len(reports)} "
        f"{things(len(reports), 'shard')}, {one['format']} {one['dtype']}",
        tokens,
        reports,
        for_validation,
    )


def _directory(dataset):
    return os.path.dirname(dataset.shards[0]["path"])


def _largest_token(datasets):
    """Returns the largest token of SCANNED_BYTES of shards, and whether these are all."""
    largest, left = 0, SCANNED_BYTES
    for dataset in datasets:
        for shard in dataset.shards:
            if left <= 0:
                return largest, False
            left -= os.stat(shard["path"]).st_size
            how = ("--input-dtype", dataset.keys.get("dtype", "u16"), "--", shard["path"])
            for report in tokctl("inspect", "--json", "--deep", *how):
                largest = max(largest, report.get("max_token", 0))
    return largest, True


# ---- the config ----


def _vocabulary(datasets, given, runs):
    """Returns vocab, a comment about it, and eos: a key and its value, or a comment.

    @runs: what tokenize noted about the shards of each dataset, None if it did not make them.
    """
    file = given.tokenizer and tokenizer.place(given.tokenizer)
    noted = [run for run in runs if run and run["file"] and file in (None, run["file"])]
    if runs == noted and len({(run["tokenizer"], run["eos"]) for run in runs}) == 1:
        vocab, eos = max(run["vocab"] for run in runs), runs[0]["eos"]
        return vocab, f"tokenizer: {runs[0]['file']}", f"eos: {eos}"
    largest, whole = _largest_token(datasets)
    about, vocab, ends = f"the largest of all tokens is {largest}", largest + 1, {}
    if file := _tokenizer(given, [_directory(dataset) for dataset in datasets]):
        encoder = tokenizer.load(file)
        ends, about = encoder.ends_of_text(), f"tokenizer: {file}"
        vocab = max(encoder.vocab, vocab, *(end + 1 for end in ends.values()), 0)
    elif not whole:
        vocab = max(1 << 16, 1 << largest.bit_length())
        about = f"the largest in {SCANNED_BYTES >> 30} GiB is {largest}; set your tokenizer's"
    return vocab, about, f"eos: {next(iter(ends.values()))}" if len(ends) == 1 else "# eos: 50256"


def _seq_len(datasets, vocab):
    """The shards' own number of tokens per sample, and EXTRA. Otherwise a length whose windows
    leave out less than 5 % of a dataset, and whose logits fit into memory, and "".
    """
    lengths = {s.get("sample_tokens", 0) for dataset in datasets for s in dataset.shards}
    lengths = sorted(lengths - {0})
    if len(lengths) > 1:
        raise Error(f"samples of {lengths} tokens; name shards with samples of one length")
    if lengths:
        return lengths[0], EXTRA
    few = min(datasets, key=lambda dataset: dataset.tokens // len(dataset.shards))
    least = few.tokens // len(few.shards)
    if least <= SHORTEST:
        raise Error(f"{few.about}; name more data")
    length = 1024
    while length > SHORTEST and (length * 20 > least or length * vocab > LOGITS):
        length //= 2
    return length, ""


def _stream(stream, datasets, total, facts):
    """@datasets: [(Dataset, its part or None)]; @total: tokens, for the weights; 0: without."""
    text = STREAM.format(stream=stream, **facts)
    for dataset, part in datasets:
        keys = dataset.keys | ({"part": part} if part else {})
        if total:
            keys["weight"] = float(f"{max(dataset.tokens / total, 0.0001):.4g}")
        text += f"      # {printable(dataset.about)}\n"
        text += f"      - {quoted(keys)}\n"
    return text


def _config(datasets, facts):
    """The text, and lines for the user."""
    valid = [(dataset, None) for dataset in datasets if dataset.for_validation]
    train, why = [(d, None) for d in datasets if not d.for_validation], BY_NAME
    if not (train and valid):
        train, valid, why = [], [], BY_PART
        for dataset in datasets:
            extra, share = (0 if facts["more"] else 1), None
            windows = sum(max(s["tokens"] - extra, 0) // facts["seq_len"] for s in dataset.shards)
            if windows > LEAST:
                runs = -(-windows // RUN)
                held = max(runs // 1000, 2 if runs >= 10 else 1)  # one of them may be short
                # 0.1: not less, when it is rounded
                share = float(f"{(runs - held + 0.1) / runs:.4g}")
                valid.append((dataset, [share, 1]))
            train.append((dataset, share and [0, share]))
    total = sum(dataset.tokens for dataset, _ in train)
    text = YAML + _stream("train", train, total, facts)
    if valid:
        more = facts | {"more": facts["more"] + EPOCHS}
        return text + why + _stream("valid", valid, 0, more), []
    return text, [
        f"no stream for validation: a dataset needs more than {LEAST} windows of "
        f"{facts['seq_len']} tokens; name more data, or files whose names say val"
    ]


def _checked():
    """Has tokend check the config. Returns a line about its stream for validation."""
    command = [program("tokend"), "-c", CONFIG, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or "tokend --check failed"
        raise Error(said.split("\n")[-1].removeprefix("tokend: "))
    parts = re.findall(r": windows (\d+) of (\d+)", done.stdout.partition("stream valid: ")[2])
    held, whole = (sum(int(part[i]) for part in parts) for i in (0, 1))
    line = f"stream valid: {held:,} of {whole:,} windows, which train does not have"
    return [line] if parts else []


# ---- the command ----


def _init(given, undo):
    """@undo: takes what removes the files that were written."""
    begin, held, left_out = time.monotonic(), {}, {}
    for one, other in itertools.permutations(dict.fromkeys(given.paths), 2):
        if f"{os.path.realpath(one)}/".startswith(f"{os.path.realpath(other)}/"):
            raise Error(f"{one}: is in {other}, too; name it once")
    for path in given.paths:
        if not documents.is_pattern(path):
            os.stat(path)
        found, others = _places(path)
        held |= found
        left_out |= others
    paths, names = list(held), _names(held)
    places, reports = {path: path for path in paths}, {path: _inspected(path) for path in paths}
    texts = [path for path in paths if not reports[path]]
    for path in set(paths) - set(texts) if texts else ():
        raise Error(
            f"{path} contains shards and {texts[0]} text; name one kind, or convert the text with "
            "python -m tokend tokenize"
        )
    if texts:
        os.mkdir(TOKENS)
        undo.callback(shutil.rmtree, TOKENS, ignore_errors=True)
        for path, output in _convert(paths, names, given).items():
            places[path] = output.path
            reports[path] = _inspected(output.path, output.run["dtype"])
    datasets = [_dataset(places[p], names[p], reports[p], held[p]) for p in paths]
    notes = [
        f"left out: {path}: {why}"
        for path, why in left_out.items()
        if not documents.TOKENIZERS.fullmatch(os.path.basename(path))
    ]
    if not texts:
        notes += [dataset.about for dataset in datasets]
        shards = [shard for dataset in datasets for shard in dataset.shards]
        notes += [f"look at {shard['path']}: {note}" for shard in shards for note in shard["notes"]]
    runs = [tokenize.read_notes(_directory(dataset)).get("run") for dataset in datasets]
    vocab, about, eos = _vocabulary(datasets, given, runs)
    seq_len, more = _seq_len(datasets, vocab)
    facts = {"vocab": vocab, "about_vocab": about, "seq_len": seq_len, "more": more, "eos": eos}
    text, none = _config(datasets, facts)
    micro_batch = max(1, min(8, LOGITS // (seq_len * vocab)))
    script = TRAIN.format(vocab=vocab, micro_batch=micro_batch)
    for name, content in ((CONFIG, text), (SCRIPT, script)):
        with open(name, "x") as file:
            undo.callback(pathlib.Path(name).unlink, missing_ok=True)
            file.write(content)
    notes += none + _checked()
    for line in notes:
        print(printable(line).replace("\n", "?"))
    known = f" --tokenizer {shlex.quote(given.tokenizer)}" if given.tokenizer else ""
    print(f"wrote {CONFIG} and {SCRIPT} in {time.monotonic() - begin:.1f} s; go on with")
    print(f"  python -m tokend try{known}\n  torchrun {SCRIPT}")


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
    tokenize.add_shared(add)
    add("--most", type=positive, default=MOST_MIB, metavar="MIB",
        help=f"text to convert of each PATH; default {MOST_MIB}. python -m tokend tokenize "
        "converts all")  # fmt: skip
    given = parser.parse_args(argv)
    for name in (CONFIG, SCRIPT, TOKENS):
        if os.path.lexists(name):
            raise Error(f"{name}: exists, and init replaces nothing; move it away")
    with contextlib.ExitStack() as undo:
        _init(given, undo)
        undo.pop_all()
    return 0
