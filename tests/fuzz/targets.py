"""The table of targets."""

import dataclasses
import pathlib
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The program for shards has a target for each format, and some more.
SHARDS = "auto zstd npy llmc datatrove megatron arrow mds annotations"


@dataclasses.dataclass(frozen=True)
class Target:
    name: str
    most: int = 4096  # bytes of an input
    quiet: bool = False  # its messages on stdout and stderr are dropped

    @property
    def program(self):
        """build/VARIANT/check/fuzz-PROGRAM"""
        return "shard" if self.name in SHARDS.split() else self.name

    @property
    def place(self):
        """Where its inputs, findings and log are."""
        return ROOT / "build/fuzz" / self.name


TARGETS: typing.Final = {
    target.name: target
    for target in (
        *(Target(name, most=20_000) for name in ("wire", "cursor", "config", "store")),
        *(Target(name, quiet=True) for name in ("state", "record", "daemon", "client")),
        *(Target(name, most=70_000) for name in ("manifest", *SHARDS.split())),
        Target("ring"),
        Target("answer", most=80_000),
    )
}
