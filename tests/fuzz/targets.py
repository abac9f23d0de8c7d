"""The table of targets: a program, and the files that it must cover."""

import dataclasses
import pathlib
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Target:
    name: str
    program: str  # build/VARIANT/check/fuzz-PROGRAM
    files: tuple  # relative to the sources
    most: int = 4096  # bytes of an input
    quiet: bool = False  # its messages on stdout and stderr are dropped

    @property
    def place(self):
        """Where its inputs, findings and log are."""
        return ROOT / "build/fuzz" / self.name


# name, program, bytes of an input, whether it is quiet; files, each after its folder
TABLE = """
wire wire 20000 -       proto/ wire.c pack.c
cursor cursor 20000 -   proto/ cursor.c cursor_bytes.c cursor_compare.c cursor_json.c cursor_mix.c
    cursor_schedule.c order.c order_mix.c order_hash.c
config config 20000 -   daemon/config/ config.c load.c dataset_keys.c stream_keys.c schedule_keys.c
    schema.c yaml_load.c refuse.c
state state 4096 quiet  daemon/control/ snapshot_file.c mix_log.c run_dir.c durable.c
record record 4096 quiet proto/ record.c fault.c
    client/ctl/offline/ records.c records_judge.c record_tape.c proof.c
ring ring 4096 -        proto/ ring.c daemon/engine/ engine.c feed.c turns.c
daemon daemon 4096 quiet daemon/control/ connection.c dispatch.c attach.c request.c request_new.c
    snapshot.c status.c
client client 4096 quiet client/lib/ attach.c connect.c message.c query.c revive.c map.c wait.c
manifest manifest 70000 - daemon/catalog/ manifest.c daemon/shard/ types.c
answer answer 80000 -   daemon/store/ answer.c verdict.c
store store 20000 -     daemon/store/ list_page.c profile.c url.c sign.c seek.c
    daemon/config/ url_text.c
auto shard 70000 -      daemon/shard/ shard.c formats.c foreign.c flat.c sample.c convert.c
zstd shard 70000 -      daemon/shard/ zstd.c zstd_decode.c zstd_frame.c zstd_table.c frames.c
    bytes.c
npy shard 70000 -       daemon/shard/ npy.c
llmc shard 70000 -      daemon/shard/ llmc.c
datatrove shard 70000 - daemon/shard/ datatrove.c
megatron shard 70000 -  daemon/shard/ megatron.c megatron_idx.c
arrow shard 70000 -     daemon/shard/ arrow.c arrow_batch.c arrow_lists.c arrow_message.c
    arrow_schema.c flatbuffer.h
mds shard 70000 -       daemon/shard/ mds.c mds_columns.c mds_front.c mds_index.c mds_samples.c
    json.c cache.c
annotations shard 70000 - daemon/shard/ bounds.c mask.c spans.c
"""


def targets():
    for line in TABLE.replace("\n    ", " ").strip().splitlines():
        name, program, most, quiet, *words = line.split()
        files, folder = [], ""
        for word in words:
            folder = word if word.endswith("/") else folder
            files += [] if word.endswith("/") else [folder + word]
        yield Target(name, program, tuple(files), int(most), quiet == "quiet")


TARGETS: typing.Final = {target.name: target for target in targets()}
