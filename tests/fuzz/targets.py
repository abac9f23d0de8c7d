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


def room(folder, names):
    return tuple(f"{folder}/{name}" for name in names.split())


def shard(name, files):
    return Target(name, "shard", room("daemon/shard", files), most=70000)


TARGETS: typing.Final = {
    target.name: target
    for target in (
        Target("wire", "wire", room("proto", "wire.c pack.c"), most=20000),
        Target(
            "cursor",
            "cursor",
            room(
                "proto",
                "cursor.c cursor_bytes.c cursor_compare.c cursor_json.c cursor_mix.c "
                "cursor_schedule.c order.c order_mix.c order_hash.c",
            ),
            most=20000,
        ),
        Target(
            "config",
            "config",
            room(
                "daemon/config",
                "config.c load.c dataset_keys.c stream_keys.c schedule_keys.c schema.c "
                "yaml_load.c refuse.c",
            ),
            most=20000,
        ),
        Target(
            "state",
            "state",
            room("daemon/control", "snapshot_file.c mix_log.c run_dir.c durable.c"),
            quiet=True,
        ),
        Target(
            "record",
            "record",
            ("proto/record.c", "proto/fault.c")
            + room("client/ctl/offline", "records.c records_judge.c record_tape.c proof.c"),
            quiet=True,
        ),
        Target(
            "ring", "ring", ("proto/ring.c",) + room("daemon/engine", "engine.c feed.c turns.c")
        ),
        Target(
            "daemon",
            "daemon",
            room(
                "daemon/control",
                "connection.c dispatch.c attach.c request.c request_new.c snapshot.c status.c",
            ),
            quiet=True,
        ),
        Target(
            "client",
            "client",
            room("client/lib", "attach.c connect.c message.c query.c revive.c map.c wait.c"),
            quiet=True,
        ),
        Target(
            "manifest",
            "manifest",
            ("daemon/catalog/manifest.c", "daemon/shard/types.c"),
            most=70000,
        ),
        Target("answer", "answer", room("daemon/store", "answer.c verdict.c"), most=80000),
        Target(
            "store",
            "store",
            room("daemon/store", "list_page.c profile.c url.c sign.c seek.c")
            + ("daemon/config/url_text.c",),
            most=20000,
        ),
        shard("auto", "shard.c formats.c foreign.c flat.c sample.c convert.c"),
        shard("zstd", "zstd.c zstd_decode.c zstd_frame.c zstd_table.c frames.c bytes.c"),
        shard("npy", "npy.c"),
        shard("llmc", "llmc.c"),
        shard("datatrove", "datatrove.c"),
        shard("megatron", "megatron.c megatron_idx.c"),
        shard(
            "arrow",
            "arrow.c arrow_batch.c arrow_lists.c arrow_message.c arrow_schema.c flatbuffer.h",
        ),
        shard("mds", "mds.c mds_columns.c mds_front.c mds_index.c mds_samples.c json.c cache.c"),
        shard("annotations", "bounds.c mask.c spans.c"),
    )
}
