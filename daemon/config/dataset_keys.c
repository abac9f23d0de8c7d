/* One entry of a stream's `datasets:`. */
#include "daemon/config/dataset_keys.h"

#include "daemon/config/keys.h"
#include "daemon/config/path_text.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool take_label(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *name = schema_scalar(s, value, line, key->right);
	char shown[64];

	if (!name)
		return false;
	if (!wire_label_ok(name))
		return schema_refuse(s, line, "'%s' is not a valid name; must be %s",
			schema_show(name, shown), key->right);
	memcpy(to, name, strlen(name) + 1);
	return true;
}

static bool take_dtype(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	unsigned choice;

	if (!schema_choice(s, key, value, line, &choice))
		return false;
	*(uint32_t *)to = choice == 0 ? 2 : 4;
	return true;
}

static bool take_piece(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	uint64_t bytes;

	if (!schema_size(s, key, value, line, &bytes))
		return false;
	if (bytes & (bytes - 1))
		return schema_refuse(s, line, "%" PRIu64 " is not a power of two; must be %s",
			bytes, key->right);
	*(uint32_t *)to = (uint32_t)bytes;
	return true;
}

/* [P, Q] of a dataset's path. */
static bool take_part(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config_dataset *d = to;
	double ends[2] = {0};

	if (!schema_node(s, value, YAML_SEQUENCE_NODE, line, key->right))
		return false;
	const yaml_node_item_t *item = value->data.sequence.items.start;

	if (value->data.sequence.items.top - item != 2)
		return schema_refuse(s, line, "has %td values; must be %s",
			value->data.sequence.items.top - item, key->right);
	for (int i = 0; i < 2; i++)
		if (!schema_real(
			    s, key, yaml_document_get_node(s->document, item[i]), line, &ends[i]))
			return false;
	if (ends[1] <= 1) {
		d->lo = (uint64_t)(ends[0] * (double)ORDER_UNITS);
		d->hi = (uint64_t)(ends[1] * (double)ORDER_UNITS);
	}
	return d->lo < d->hi || schema_refuse(s, line, "[%g, %g] is not a part; must be %s",
					ends[0], ends[1], key->right);
}

enum {
	DATASET_NAME,
	DATASET_PATH,
	DATASET_PART,
	DATASET_MANIFEST,
	DATASET_FORMAT,
	DATASET_DTYPE,
	DATASET_WEIGHT,
	DATASET_MAX_EPOCHS,
	DATASET_SHUFFLE,
	DATASET_BLOCK,
	DATASET_GROUP,
	DATASET_SLIDE,
	DATASET_COLUMN,
	DATASET_LABEL_MASK,
	DATASET_FETCH,
	DATASET_PIECE,
};

static const char *const dtypes[] = {"u16", "u32", NULL};

static const char *const fetches[] = {
	[CONFIG_FETCH_AUTO] = "auto",
	[CONFIG_FETCH_WINDOW] = "window",
	[CONFIG_FETCH_PIECE] = "piece",
	NULL,
};

static const struct schema_key dataset_keys[] = {
	[DATASET_NAME] = {"name", take_label, offsetof(struct config_dataset, name),
		.right = PHRASE_LABEL, .required = true,
		.help = "Unique in the stream. The order depends on it."},
	[DATASET_PATH] = {"path", path_or_url, offsetof(struct config_dataset, path),
		.right = "a file, a directory, a glob or the URL of a prefix", .required = true,
		.help = "The shards. A directory is read recursively, and every file in it must be "
			"a shard or a side file of one. A URL, such as `s3://bucket/prefix/`, ends "
			"in a "
			"slash and has no patterns; its scheme is s3, gs, https or a name of "
			"stores. Such a dataset needs a manifest."},
	[DATASET_PART] = {"part", take_part, 0, .right = "two numbers, [P, Q] with 0 ≤ P < Q ≤ 1",
		.otherwise = "[0, 1], the whole",
		.help = "The share of path's windows that the dataset has, in runs of 64 "
			"consecutive windows. Parts that do not overlap have no window in common, "
			"in any stream and with any seed, as long as the shards, seq_len, extra "
			"and stride are the same: `[0, 0.999]` for training, `[0.999, 1]` for "
			"validation. Not together with slide or a stride below seq_len."},
	[DATASET_MANIFEST] = {"manifest", path_or_url, offsetof(struct config_dataset, manifest),
		.right = "a file, or the URL of one, that `tokctl manifest` wrote",
		.otherwise = "none",
		.help = "The shards below path are those that the manifest lists, and start-up "
			"opens none of them. When a shard is first read, its size, format, dtype "
			"and number of tokens are compared with the manifest. The order is the "
			"same as without one. `tokctl inspect --deep -c` also compares the digests "
			"of the tokens."},
	[DATASET_FORMAT] = {"format", schema_text, offsetof(struct config_dataset, format),
		.right = "auto or a format's name", .preset = "auto",
		.help = "`auto` recognises the format. The others are `npy`, `llmc`, `datatrove`, "
			"`flat` (bare tokens), `megatron` (with its .idx), `mds` and `arrow`. "
			"Each may be compressed with zstd (.zst)."},
	[DATASET_DTYPE] = {"dtype", take_dtype, offsetof(struct config_dataset, token_bytes),
		.choices = dtypes, .preset = "u16",
		.help = "The width of a token in files that do not state it, when no manifest "
			"states it either, and the width to which tokens of 8 bytes are narrowed. "
			"A stream serves the widest of its datasets' widths."},
	[DATASET_WEIGHT] = {"weight", schema_real, offsetof(struct config_dataset, weight),
		.right = PHRASE_WEIGHT, .preset = "1",
		.help = "The dataset's share of the samples, relative to the other weights of the "
			"stream."},
	[DATASET_MAX_EPOCHS] = {"max_epochs", schema_number,
		offsetof(struct config_dataset, max_epochs), .min = 1, .max = UINT64_MAX,
		.unit = "epochs", .otherwise = "no limit",
		.help = "Before the block of 1024 samples that would serve a window of it more "
			"often, its weight becomes 0 and the others keep their ratio. `tokend "
			"--check` prints the position."},
	[DATASET_SHUFFLE] = {"shuffle", schema_choice, offsetof(struct config_dataset, shuffle),
		.choices = order_shuffles, .preset = "global",
		.help = "`global` shuffles all windows. `block` is for storage that needs long "
			"reads: it shuffles blocks of windows, then the windows within each group "
			"of blocks."},
	[DATASET_BLOCK] = {"block", schema_number32, offsetof(struct config_dataset, block),
		.min = 1, .max = UINT64_C(1) << 31, .unit = "windows", .preset = "64",
		.help = "With `shuffle: block`, the size of a block."},
	[DATASET_GROUP] = {"group", schema_number32, offsetof(struct config_dataset, group),
		.min = 1, .max = UINT64_C(1) << 31, .unit = "blocks", .preset = "64",
		.help = "With `shuffle: block`, the size of a group. Keep block times group above "
			"16 global batches."},
	[DATASET_SLIDE] = {"slide", schema_flag, offsetof(struct config_dataset, slide),
		.preset = "false",
		.help = "Cut the shards into windows at another offset in each epoch, so that the "
			"tokens left over at their ends are served, too."},
	[DATASET_COLUMN] = {"column", schema_text, offsetof(struct config_dataset, column),
		.right = "a column's name",
		.otherwise = "tokens, then input_ids, then the only column that fits",
		.help = "The column of mds and arrow shards that contains the tokens."},
	[DATASET_LABEL_MASK] = {"label_mask", path_or_url,
		offsetof(struct config_dataset, label_mask),
		.right = "a directory of loss masks under the names of the shards",
		.otherwise = "none",
		.help = "For `loss_mask: true`. A mask has one byte per token, 0 or 1, bare or as "
			"a NumPy .npy of bool. It is a URL if path is one."},
	[DATASET_FETCH] = {"fetch", schema_choice, offsetof(struct config_dataset, fetch),
		.choices = fetches, .preset = "auto",
		.help = "How shards in a store are read: `window` reads each window by itself, "
			"and `piece` reads whole pieces into the cache. `auto` is `piece` if the "
			"cache has space for the dataset: for all of it (`shuffle: global`, or a "
			"part), for three groups (`block`) or for 64 pieces (`none`). `tokend "
			"--check` prints the choice."},
	[DATASET_PIECE] = {"piece", take_piece, offsetof(struct config_dataset, piece),
		.right = "a power of two from 64KiB to 64MiB", .min = 64 << 10, .max = 64 << 20,
		.preset = "8MiB", .help = "The size of a piece."},
};

const struct schema_table dataset_table = {dataset_keys, SCHEMA_COUNT(dataset_keys)};

_Static_assert(
	sizeof(enum order_shuffle) == sizeof(unsigned), "schema_choice() writes an unsigned");
_Static_assert(sizeof(enum config_fetch) == sizeof(unsigned), "schema_choice() writes an unsigned");

static bool take_dataset(struct schema *s, yaml_node_t *node, struct config_dataset *d)
{
	int lines[SCHEMA_COUNT(dataset_keys)], line = (int)node->start_mark.line + 1;

	d->line = line;
	if (!schema_mapping(s, node, line, dataset_keys, SCHEMA_COUNT(dataset_keys), d, lines))
		return false;
	d->path_line = lines[DATASET_PATH];
	d->manifest_line = lines[DATASET_MANIFEST];
	d->has_dtype = lines[DATASET_DTYPE] != 0;
	d->has_weight = lines[DATASET_WEIGHT] != 0;
	d->weight_line = d->has_weight ? lines[DATASET_WEIGHT] : line;
	d->format_line = lines[DATASET_FORMAT] ? lines[DATASET_FORMAT] : line;
	d->max_epochs_line = lines[DATASET_MAX_EPOCHS] ? lines[DATASET_MAX_EPOCHS] : line;
	d->slide_line = lines[DATASET_SLIDE] ? lines[DATASET_SLIDE] : line;
	d->label_mask_line = lines[DATASET_LABEL_MASK];
	d->fetch_line = lines[DATASET_FETCH];
	d->piece_line = lines[DATASET_PIECE];
	d->part_line = lines[DATASET_PART];
	if (!lines[DATASET_PART])
		d->hi = ORDER_UNITS;
	return true;
}

bool datasets_take(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config_stream *stream = to;

	if (!schema_node(s, value, YAML_SEQUENCE_NODE, line, key->right))
		return false;
	size_t n = (size_t)(value->data.sequence.items.top - value->data.sequence.items.start);

	if (n == 0 || n > LIMIT_DATASETS)
		return schema_refuse(
			s, line, "has %zu datasets; must have 1 to %d", n, LIMIT_DATASETS);
	stream->dataset = calloc(n, sizeof(*stream->dataset));
	if (!stream->dataset)
		return schema_refuse_memory(s, line);
	for (size_t i = 0; i < n; i++) {
		yaml_node_t *node =
			yaml_document_get_node(s->document, value->data.sequence.items.start[i]);
		struct config_dataset *d = &stream->dataset[i];
		size_t field = schema_enter_item(s, i);

		stream->datasets = (uint32_t)i + 1;
		if (!take_dataset(s, node, d))
			return false;
		for (size_t j = 0; j < i; j++) {
			if (strcmp(stream->dataset[j].name, d->name) == 0) {
				schema_enter(s, ".name");
				return schema_refuse(s, d->line,
					"'%s' is also the name of the dataset on line %d; "
					"must be unique",
					d->name, stream->dataset[j].line);
			}
		}
		schema_leave(s, field);
	}
	return true;
}
