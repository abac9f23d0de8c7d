"""Datasets as tokend's readers see them, through tests/unit/dataset_cat.c; and manifests for a
store, made here of a local one and of what the store says.
"""

import json
import os
import pathlib

from .process import BIN, TOKCTL, run
from .shard_cat import facts

CAT = BIN.parent / "check/dataset-cat"  # of the variant under test
# Side files by the ending of a shard's name; of a whole directory with a slash.
SIDES = {
    ".bin": [".idx", ".csv.gz"],
    ".npy": [".csv.gz"],
    ".ds": [".ds.index", ".ds.loss"],
    ".mds": ["/index.json"],
}


def cat(config, stream, *options, env=None, refused=False):
    """The datasets of a stream. @refused: the error line instead."""
    code, out, err = run(CAT, *options, config, stream, env=env)
    assert code == int(refused), (code, out, err)
    return err.strip() if refused else [json.loads(line) for line in out.splitlines()]


def sides_of(name):
    """Names that side files of a shard may have."""
    bare = name.removesuffix(".zst").removesuffix(".zstd")
    for ending, others in SIDES.items():
        if bare.endswith(ending):
            for other in others:
                at = pathlib.Path(bare)
                yield (
                    str(at.parent / other[1:]) if other[0] == "/" else bare[: -len(ending)] + other
                )


def for_store(s3, bucket, prefix, directory, out, *inspect, masks=None, cat_options=()):
    """Writes the manifest of the shards below @directory, which are also in the store. @masks:
    (directory, prefix) of a label_mask. Returns its lines.
    """
    code, _, err = run(TOKCTL, "inspect", "--manifest", out, *inspect, directory)
    assert code == 0, err

    def entry(key):
        head = s3.head_object(Bucket=bucket, Key=key)
        return head["ContentLength"], head["ETag"].strip('"')

    lines = [json.loads(line) for line in open(out)]
    for line in lines:
        name = line["path"]
        size, line["etag"] = entry(prefix + name)
        assert size == line["size"]
        seen = facts(os.path.join(directory, name), *cat_options)
        if seen["plain"]:
            line["data_at"] = seen["data_at"]
        side = {n: n for n in sides_of(name) if os.path.exists(os.path.join(directory, n))}
        line["side"] = {n: entry(prefix + n) for n in side}
        if masks:
            line["side"][f"lab://{bucket}/{masks}{name}"] = entry(masks + name)
    write(out, lines)
    return lines


def write(path, lines):
    with open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
