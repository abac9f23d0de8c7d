"""python -m tokend init: writes a config and a training script for shards or text.

    python -m tokend init ~/my-text
    python -m tokend init /data/web /data/code

It writes tokend.yaml and train.py into the current directory. Shards stay where they are: each
subdirectory becomes a dataset, weighted by its tokens, and names like val.bin go into a stream for
validation. Without such names, that stream has 0.1 % of each dataset, which the other stream does
not have. Where shards are, other files are left out, and named. Text is converted to shards below
tokens/, up to MOST_MIB of each argument.
"""

import argparse
import collections
import dataclasses
import errno
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

from .. import documents, phrases
from .._tokend import Error, program, version
from . import found, tokenize
from .parser import Parser
from .tokenizer import BYTES, load_encoder

CONFIG, SCRIPT, TOKENS = "tokend.yaml", "train.py", "tokens"
MOST_MIB = 64  # of text: 20 to 40 CPU seconds with a real tokenizer
BYTES_A_WORKER = 8 << 20
SHORTEST = 8  # tokens of a sample
LOGITS = 1 << 26  # of a batch, so that train.py runs on a laptop
KEYWORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}  # of YAML
LISTED = 4  # files of a line
RUN = 64  # windows: a part of a dataset consists of such runs
LEAST = 4 * RUN  # windows of a dataset, to hold out some of them
SHARES = ("0.999", "0.99", "0.9", "0.8", "0.7")  # of a dataset, for training: the first that fits
DATA = re.compile(r"\.(txt|jsonl|parquet)(\.gz|\.zst)?$")  # others may be a program's tests
TOKENIZERS = re.compile(r"tokenizer\.json|tokenizer\.model|.*\.tiktoken")

YAML = """\
# Written by `python -m tokend init`. `man tokend.yaml` describes every key.
# Relative paths start at this file's directory. Other defaults: memory: 1GiB for all rings.
state_dir: state         # snapshots of your runs
streams:
  train:
    seed: 42             # another seed gives another order
    seq_len: {seq_len:<11} # tokens per sample: the context of your model
{extra}{eos}    vocab: {vocab:<13} # {about_vocab}
    datasets:
{datasets}"""

VALID = """
{why}
  valid:
    seed: 42
    seq_len: {seq_len}
{extra}{eos}    vocab: {vocab}
    epochs: 1            # ends after each window was served once
    datasets:
{datasets}"""

BY_NAME = "  # By their names, these are for validation."
BY_PART = """\
  # For validation: windows that train does not have, in runs of 64 (`part`). Do not change parts,
  # seq_len or the shards of a path once you train: windows of train would get into valid. Add new
  # data as another dataset. Window numbers, as in `tokctl plan`, are those of the whole path.\
"""

DATASET = """\
      # {about}
      - name: {name}
        path: {path}
{facts}        weight: {weight}
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


def _quoted(text):
    """As YAML: plain if that is safe."""
    plain = re.fullmatch(r"(\.\./|/)?[A-Za-z][\w/.-]*", text) and text.lower() not in KEYWORDS
    return text if plain else json.dumps(text, ensure_ascii=False)


def _count(number, unit):
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


# ---- looking ----


def _names(arguments):
    """Returns {directory: names of files in it, or None for all}."""
    roots = {}
    for path in arguments:
        if not os.path.lexists(path) and set(path) & found.WILD:
            matched = sorted(glob.glob(path))
            if not matched:
                raise Error(f"{path}: matches no file; name a directory, or files")
        else:
            matched = [path]
        for name in matched:
            if os.path.isdir(name):
                roots[name] = None
            elif roots.setdefault(os.path.dirname(name) or ".", []) is not None:
                os.stat(name)
                roots[os.path.dirname(name) or "."].append(os.path.basename(name))
    _refuse_twice([root for root, names in roots.items() if names is None], roots)
    return roots


def _refuse_twice(whole, roots):
    """A file below two arguments would be served twice."""
    for outer in whole:
        for inner in roots:
            if outer != inner and os.path.commonpath(
                [os.path.realpath(outer), os.path.realpath(inner)]
            ) == os.path.realpath(outer):
                raise Error(f"{inner}: is below {outer}; name one of them")


def _look(arguments):
    """Returns a Found per directory. All have shards, or all have texts."""
    looked = [found.look(root, names) for root, names in _names(arguments).items()]
    shards = [f for f in looked if f.datasets]
    texts = [f for f in looked if f.texts]
    empty = next((f for f in looked if not f.datasets and not f.texts), None)
    if empty:
        raise Error(_nothing(empty))
    if shards and texts:
        raise Error(
            f"{shards[0].path} contains shards and {texts[0].path} text; name one kind, or convert "
            "the text with python -m tokend.tokenize"
        )
    return looked


def _nothing(empty):
    left = sorted(empty.left_out.items(), key=lambda item: not found.SHARD_ENDINGS.search(item[0]))
    more = "".join(f" ({path}: {why})" for path, why in left[:1])
    return f"{empty.path}: has neither shards nor text{more}; name a directory that does"


def _unlike(names):
    """The names, made unique."""
    taken = []
    for name in names:
        number = 2
        name = tokenize.label(name)
        unlike = name
        while unlike in taken:
            unlike, number = f"{name}-{number}", number + 1
        taken.append(unlike)
    return taken


# ---- text ----


def _tokenizer(given, looked):
    """The tokenizer's file: as given, otherwise one next to the data. None: there is none."""
    if given:
        return given
    near = [each.path for each in looked]
    near += [os.path.dirname(d.files[0]) for each in looked for d in each.datasets]
    for path in near:
        for name in sorted(os.listdir(path)):
            if TOKENIZERS.fullmatch(name):
                return os.path.join(path, name)
        if noted := tokenize.noted_tokenizer(path):
            return noted
    return None


def _chosen(each, tokenizer, most):
    """Returns the sources up to @most bytes, without those that are not text, and the bytes of all
    text.
    """
    sources, size = [], 0
    for source in each.texts:
        if size >= most:
            size += source.size
            continue
        if os.path.exists(tokenizer) and os.path.samefile(source.path, tokenizer):
            continue
        found.progress(f"{source.path}: is it text?")
        if source.kind != "parquet" and not documents.is_text(source, most - size):
            each.left_out[source.path] = phrases.NOT_UTF8
            continue
        sources.append(source)
        size += source.size
    if not sources:
        raise Error(_nothing(each))
    return sources, size


def _shards_mib(sources, most, tokenizer):
    """The size of the shards: a byte for each byte of text, two if it is a token."""
    text = sum(s.size * (4 if s.packing or s.kind == "parquet" else 1) for s in sources)
    return (min(text, most) * (2 if tokenizer == BYTES else 1) >> 20) + 1


def _convert(each, name, tokenizer, given):
    """Makes shards of a Found's texts. Returns (Dataset, tokenize.Made, a line about it)."""
    most = given.most << 20
    sources, whole = _chosen(each, tokenizer, most)
    output = os.path.join(TOKENS, name)
    cores = len(os.sched_getaffinity(0))
    options = argparse.Namespace(
        output=output,
        tokenizer=tokenizer,
        pattern=None,
        field=given.field,
        column=None,
        bos=given.bos,
        eos=given.eos,
        dtype="auto",
        shard_tokens=1 << 28,
        workers=max(1, min(cores, min(whole, most) // BYTES_A_WORKER)),
        resume=False,
    )
    try:
        made = tokenize.make(options, sources, most)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        size = _shards_mib(sources, most, tokenizer)
        raise Error(
            f"{os.path.abspath(output)}: {error.strerror}; the shards need about {size} MiB: free "
            "them, or pass a smaller --most"
        ) from None
    done = made.done
    read = made.progress.read
    part = "all text"
    if read < whole:
        part = f"the first {read >> 20} of {whole >> 20} MiB (--most converts more)"
    counts = [_count(done.tokens, "token")]
    if done.documents:  # otherwise a part of one
        counts.insert(0, _count(done.documents, "document"))
    held_out = " for validation" if each.held_out else ""
    about = f"{part}{held_out} in {os.path.abspath(each.path)}: {', '.join(counts)}"
    dataset = found.Dataset(
        name, output, done.tokens, done.shards, "flat", made.dtype, each.held_out, 0, []
    )
    return dataset, made, about


# ---- writing ----


def _seq_len(datasets, vocab):
    """A length whose windows leave out less than 5 % of a dataset, and whose logits fit into
    memory.
    """
    few = min(datasets, key=lambda dataset: dataset.tokens // dataset.shards)
    least = few.tokens // few.shards
    if least <= SHORTEST:
        size = _count(few.tokens, "token")
        raise Error(f"{few.path}: {size} in {_count(few.shards, 'shard')}; name more data")
    length = 1024
    while length > SHORTEST and (length * 20 > least or length * vocab > LOGITS):
        length //= 2
    return length


def _samples(datasets):
    """The shards' own number of tokens per sample; 0: they have none."""
    lengths = {dataset.sample_tokens for dataset in datasets if dataset.sample_tokens}
    if len(lengths) > 1:
        first = [f"{d.path} of {d.sample_tokens}" for d in datasets if d.sample_tokens]
        raise Error(f"samples: {', '.join(first)} tokens; name shards with samples of one length")
    return lengths.pop() if lengths else 0


def _printable(line):
    """Paths may contain line breaks."""
    return "".join(c if c.isprintable() else "?" for c in line)


def _facts(dataset, part):
    """The lines of a dataset that its files may not state."""
    stated = dataset.dtype not in ("u16", "u32")  # the config cannot name others
    facts = {
        "dtype": None if stated else dataset.dtype,
        "column": dataset.column and _quoted(dataset.column),
        "part": part,
    }
    return "".join(f"        {key}: {value}\n" for key, value in facts.items() if value)


def _text_of(datasets, about, names, parts):
    """@about, @names, @parts: of a dataset, by its path."""
    total = sum(dataset.tokens for dataset in datasets)
    return "".join(
        DATASET.format(
            about=_printable(about[dataset.path]),
            name=_quoted(names[dataset.path]),
            path=_quoted(dataset.path),
            facts=_facts(dataset, parts.get(dataset.path)),
            weight=f"{max(dataset.tokens / total, 0.0001):.4g}",
        )
        for dataset in datasets
    )


def _held_out(datasets):
    """Those for validation by their names, if others are for training."""
    held = [dataset for dataset in datasets if dataset.held_out]
    return held if len(held) < len(datasets) else []


def _config(datasets, about, facts, shares):
    """@shares: {path: share of it for training}; the rest of it is for validation."""
    samples = _samples(datasets)
    facts["seq_len"] = samples or _seq_len(datasets, facts["vocab"])
    facts["extra"] = (
        f"    extra: 0{' ' * 13}# a sample of the shards is a window\n" if samples else ""
    )
    valid = _held_out(datasets) or [d for d in datasets if d.path in shares]
    train = [d for d in datasets if d not in valid or d.path in shares]
    names = dict(zip((d.path for d in datasets), _unlike([d.name for d in datasets]), strict=True))
    parts = {path: f"[0, {share}]" for path, share in shares.items()}
    text = YAML.format(datasets=_text_of(train, about, names, parts), **facts)
    if valid:
        rest = {path: f"[{share}, 1]" for path, share in shares.items()}
        datasets = re.sub("        weight: .*\n", "", _text_of(valid, about, names, rest))
        text += VALID.format(datasets=datasets, why=BY_PART if shares else BY_NAME, **facts)
    return text


def _divided(datasets, about, facts):
    """Returns a config that tokend accepts, and the lines about its stream for validation."""
    text = _config(datasets, about, facts, {})
    said = _check(text)
    if _held_out(datasets):
        return text, []
    whole = dict(zip((d.path for d in datasets), _windows(said, "train"), strict=True))
    shares = {path: SHARES[0] for path, windows in whole.items() if windows >= LEAST}
    held = {}
    while shares and min(held.values(), default=0) < RUN:
        # The last run of a path may be short. If it is the only one for validation, take more.
        for path in [path for path, windows in held.items() if windows < RUN]:
            shares[path] = SHARES[SHARES.index(shares[path]) + 1]
        text = _config(datasets, about, facts, shares)
        held = dict(zip(shares, _windows(_check(text), "valid"), strict=True))
    return text, [_about_held(whole, held, facts["seq_len"])]


def _about_held(whole, held, seq_len):
    """@whole, @held: {path: windows}, of all datasets and for validation."""
    least = f"{LEAST} windows of {seq_len} tokens"
    if not held:
        return (
            f"no stream for validation: a dataset needs {least}; name more data, or files whose "
            "names say val"
        )
    small = [path for path in whole if path not in held]
    windows = sum(whole[path] for path in held)
    line = f"stream valid: {sum(held.values()):,} of {windows:,} windows, which train does not have"
    return line + (f"; none of {_listed(small, 'dataset')}: below {least}" if small else "")


def _write(name, text):
    """Never replaces a file."""
    with open(name, "x") as file:
        file.write(text)


def _check(text):
    """Has tokend check the config before it gets its name. Returns what it says."""
    part = f".{CONFIG}.part"
    try:
        with open(part, "w") as file:
            file.write(text)
        done = subprocess.run(
            [program("tokend"), "-c", part, "--check"], capture_output=True, text=True, check=False
        )
    finally:
        os.unlink(part)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["tokend --check failed"]
        raise Error(lines[-1].removeprefix("tokend: ").replace(part, CONFIG))
    return done.stdout


def _windows(said, stream):
    """The numbers of windows that `tokend --check` says a stream's datasets have, in order."""
    said = said.partition(f"stream {stream}: ")[2].partition("\nstream ")[0]
    parts = re.findall(r"^  .+: windows ([\d,]+) of [\d,]+$", said, re.M)
    whole = re.findall(r"^  .+: \d+ shards, \d+ tokens, (\d+) windows; ", said, re.M)
    return [int(number.replace(",", "")) for number in parts or whole]


def _free():
    """Nothing may be there yet: init replaces no file."""
    for name in (CONFIG, SCRIPT, TOKENS):
        if os.path.lexists(name):
            raise Error(f"{name}: exists, and init replaces nothing; move it away")
    if not os.access(".", os.W_OK):
        raise Error(f"{os.getcwd()}: is not writable; run init in another directory")


# ---- the command ----


def _parts(looked):
    """Returns (Found, name): the texts of each directory, those for validation by themselves."""
    names = _unlike([os.path.basename(os.path.realpath(each.path)) for each in looked])
    parts = []
    for each, name in zip(looked, names, strict=True):
        held = [s for s in each.texts if DATA.search(s.path) and found.is_held_out(
            os.path.relpath(s.path, each.path))]  # fmt: skip
        rest = [source for source in each.texts if source not in held]
        parts.append((dataclasses.replace(each, texts=rest or held), name))
        if rest and held:
            valid = dataclasses.replace(each, texts=held, held_out=True)
            parts.append((valid, f"{name}-valid"))
    return parts


def _of_text(given, looked):
    tokenizer = _tokenizer(given.tokenizer, looked) or BYTES
    converted = [_convert(each, name, tokenizer, given) for each, name in _parts(looked)]
    made = converted[0][1]
    about = {dataset.path: line for dataset, _, line in converted}
    by = f"tokenizer: {tokenizer}" if tokenizer != BYTES else "a token is a byte"
    facts = {
        "vocab": made.vocab,
        "eos": f"    eos: {made.eos:<15} # the token that ends a document\n",
        "about_vocab": f"{by}; a token not below it stops the stream",
        "notes": [f"added to each document: {made.ends()}"],
    }
    if tokenizer == BYTES:
        facts["notes"].append(
            "no tokenizer found, so a token is a byte; pass --tokenizer FILE for others"
        )
    return [dataset for dataset, _, _ in converted], about, facts


def _encoder(tokenizer, largest):
    """Returns the encoder of shards, and why there is none."""
    if tokenizer is None:
        return None, "set your tokenizer's"
    try:
        encoder = load_encoder(tokenizer)
    except Error as error:
        return None, f"set your tokenizer's: {error}"
    if largest >= encoder.vocab and not encoder.pattern:  # a .tiktoken file lacks special tokens
        return None, f"{tokenizer} has only {encoder.vocab} tokens, so it is another one's"
    return encoder, f"tokenizer: {tokenizer}"


def _of_shards(given, looked):
    datasets = [dataset for each in looked for dataset in each.datasets]
    about = {
        d.path: f"{d.path}: {_count(d.tokens, 'token')} in {_count(d.shards, 'shard')}, "
        f"{d.format} {d.dtype}{f', column {d.column}' if d.column else ''}"
        for d in datasets
    }
    largest, whole = found.largest_token(datasets)
    encoder, by = _encoder(_tokenizer(given.tokenizer, looked), largest)
    vocab = largest + 1
    if not whole:
        vocab = 1 << 16 if largest < 1 << 16 else 1 << largest.bit_length()
    ends = list(encoder.ends_of_text().values()) if encoder else []
    if encoder:
        vocab = max([encoder.vocab, largest + 1, *(end + 1 for end in ends)])
    where = "of all tokens" if whole else f"in {found.SCANNED_BYTES >> 30} GiB"
    end = ends[0] if len(ends) == 1 else None
    facts = {
        "vocab": vocab,
        "eos": f"    {'# eos: 50256' if end is None else f'eos: {end}':<20} "
        f"# the token that ends a document{', if there is one' if end is None else ''}\n",
        "about_vocab": f"the largest {where} is {largest}; {by}",
        "notes": [f"look at {note}" for dataset in datasets for note in dataset.notes[:LISTED]],
    }
    return datasets, about, facts


def init(given):
    _free()
    try:
        return _init(given)
    except BaseException:
        shutil.rmtree(TOKENS, ignore_errors=True)  # not there before
        raise


def _listed(paths, unit):
    more = f" and {_count(len(paths) - LISTED, f'more {unit}')}" if len(paths) > LISTED else ""
    return f"{', '.join(paths[:LISTED])}{more}"


def _left_out(looked, tokenizer):
    """The lines about files that are in no dataset, one for each reason."""
    files = collections.defaultdict(list)
    for path, why in (item for each in looked for item in each.left_out.items()):
        if path != tokenizer and not TOKENIZERS.fullmatch(os.path.basename(path)):
            files[why].append(path)
    for why, paths in files.items():
        yield f"left out: {_listed(paths, 'file')}: {why}"


def _init(given):
    begin = time.monotonic()
    looked = _look(given.paths or ["."])
    make = _of_text if looked[0].texts else _of_shards
    datasets, about, facts = make(given, looked)
    text, held_out = _divided(datasets, about, facts)
    micro_batch = max(1, min(8, LOGITS // (facts["seq_len"] * facts["vocab"])))
    _write(CONFIG, text)
    _write(SCRIPT, TRAIN.format(vocab=facts["vocab"], micro_batch=micro_batch))
    found.progress()
    left_out = _left_out(looked, given.tokenizer)
    for line in (*about.values(), *held_out, *facts["notes"], *left_out):
        print(_printable(line))
    print(f"wrote {CONFIG} and {SCRIPT} in {time.monotonic() - begin:.1f} s; go on with")
    known = f" --tokenizer {shlex.quote(given.tokenizer)}" if given.tokenizer else ""
    print(f"  python -m tokend try{known if not looked[0].texts else ''}")
    print(f"  torchrun {SCRIPT}")
    return 0


def _arguments(argv):
    parser = Parser(
        prog="python -m tokend init",
        description=f"Writes {CONFIG} and {SCRIPT} for shards or text, and converts the text.",
        epilog="Each argument's text is a dataset, and so is each subdirectory of shards.",
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="a directory, or files; default: this directory"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json, .tiktoken or SentencePiece model; default: one next to the data, "
        "otherwise a token is a byte",
    )
    parser.add_argument(
        "--field", default="text", metavar="NAME", help="field of JSONL, column of parquet"
    )
    parser.add_argument(
        "--eos",
        metavar="ID|TEXT",
        help="token after each document; default: the tokenizer's own, if it names one",
    )
    parser.add_argument("--bos", metavar="ID|TEXT", help=tokenize.BOS_HELP)
    parser.add_argument(
        "--most",
        type=tokenize.positive,
        default=MOST_MIB,
        metavar="MIB",
        help=f"text to convert of each argument; default {MOST_MIB}. python -m tokend.tokenize "
        "converts all",
    )
    parser.add_argument("--version", action="version", version=f"tokend {version}")
    return parser.parse_args(argv)


def main(argv=None):
    given = _arguments(argv)
    try:
        return init(given)
    except KeyboardInterrupt:
        text, status = "interrupted; nothing was written", 130
    except OSError as error:
        text, status = f"{error.filename or '.'}: {error.strerror or error}", 1
    except UnicodeError:
        text, status = "a path is not UTF-8; rename it", 1
    except Error as error:
        text, status = str(error), 1
    found.progress()
    print(f"tokend init: {text}", file=sys.stderr)
    return status
