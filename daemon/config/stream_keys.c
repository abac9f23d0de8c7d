/* The streams of a config. Rules about several keys are checked after all of them are read. */
#include "daemon/config/schema.h"
#include "proto/cursor.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(
	sizeof(enum order_shuffle) == sizeof(unsigned), "schema_choice() writes an unsigned");
_Static_assert(sizeof(enum config_fetch) == sizeof(unsigned), "schema_choice() writes an unsigned");

/* ---- datasets ---- */

static SCHEMA_TAKER(take_label)
{
	const char *name = schema_scalar(s, value, key->right);
	char shown[64];

	if (!name)
		return false;
	if (!wire_label_ok(name))
		return schema_refuse(s, "'%s' is not a valid name; must be %s",
			schema_show(name, shown), key->right);
	memcpy(to, name, strlen(name) + 1);
	return true;
}

static SCHEMA_TAKER(take_dtype)
{
	unsigned choice;

	if (!schema_choice(s, key, value, &choice))
		return false;
	*(uint32_t *)to = choice == 0 ? 2 : 4;
	return true;
}

static SCHEMA_TAKER(take_piece)
{
	uint64_t bytes;

	if (!schema_size(s, key, value, &bytes))
		return false;
	if (bytes & (bytes - 1))
		return schema_refuse(
			s, "%" PRIu64 " is not a power of two; must be %s", bytes, key->right);
	*(uint32_t *)to = (uint32_t)bytes;
	return true;
}

/* [P, Q] of a dataset's path. */
static SCHEMA_TAKER(take_part)
{
	struct config_dataset *d = to;
	double ends[2] = {0};

	if (!schema_node(s, value, YAML_SEQUENCE_NODE, key->right))
		return false;
	const yaml_node_item_t *item = value->data.sequence.items.start;

	if (value->data.sequence.items.top - item != 2)
		return schema_refuse(s, "has %td values; must be %s",
			value->data.sequence.items.top - item, key->right);
	for (int i = 0; i < 2; i++)
		if (!schema_real(s, key, yaml_document_get_node(s->document, item[i]), &ends[i]))
			return false;
	if (ends[1] <= 1) {
		d->lo = (uint64_t)(ends[0] * (double)ORDER_UNITS);
		d->hi = (uint64_t)(ends[1] * (double)ORDER_UNITS);
	}
	return d->lo < d->hi ||
	       schema_refuse(s, "[%g, %g] is not a part; must be %s", ends[0], ends[1], key->right);
}

static const char *const dtypes[] = {"u16", "u32", NULL};

static const char *const fetches[] = {
	[CONFIG_FETCH_AUTO] = "auto",
	[CONFIG_FETCH_WINDOW] = "window",
	[CONFIG_FETCH_PIECE] = "piece",
	NULL,
};

static const struct schema_key dataset_keys[] = {
	{"name", take_label, offsetof(struct config_dataset, name), .right = PHRASE_LABEL,
		.required = true, .help = "Unique in the stream. The order depends on it."},
	{"path", schema_path_or_url, offsetof(struct config_dataset, path),
		.line = offsetof(struct config_dataset, path_line),
		.right = "a file, a directory, a glob or the URL of a prefix", .required = true,
		.help = "The shards. A directory is read recursively, and every file in it must be "
			"a shard or a side file of one. A URL, such as `s3://bucket/prefix/`, ends "
			"in a "
			"slash and has no patterns; its scheme is s3, gs, https or a name of "
			"stores. Such a dataset needs a manifest."},
	{"part", take_part, 0, .line = offsetof(struct config_dataset, part_line),
		.right = "two numbers, [P, Q] with 0 ≤ P < Q ≤ 1", .otherwise = "[0, 1], the whole",
		.help = "The share of path's windows that the dataset has, in runs of 64 "
			"consecutive windows. Parts that do not overlap have no window in common, "
			"in any stream and with any seed, as long as the shards, seq_len, extra "
			"and stride are the same: `[0, 0.999]` for training, `[0.999, 1]` for "
			"validation. Not together with slide or a stride below seq_len."},
	{"manifest", schema_path_or_url, offsetof(struct config_dataset, manifest),
		.line = offsetof(struct config_dataset, manifest_line),
		.right = "a file, or the URL of one, that `tokctl manifest` wrote",
		.otherwise = "none",
		.help = "The shards below path are those that the manifest lists, and start-up "
			"opens none of them. When a shard is first read, its size, format, dtype "
			"and number of tokens are compared with the manifest. The order is the "
			"same as without one. `tokctl inspect --deep -c` also compares the digests "
			"of the tokens."},
	{"format", schema_text, offsetof(struct config_dataset, format),
		.line = offsetof(struct config_dataset, format_line),
		.right = "auto or a format's name", .preset = "auto",
		.help = "`auto` recognises the format. The others are `npy`, `llmc`, `datatrove`, "
			"`flat` (bare tokens), `megatron` (with its .idx), `mds` and `arrow`. "
			"Each may be compressed with zstd (.zst)."},
	{"dtype", take_dtype, offsetof(struct config_dataset, token_bytes), .choices = dtypes,
		.preset = "u16",
		.help = "The width of a token in files that do not state it, when no manifest "
			"states it either, and the width to which tokens of 8 bytes are narrowed. "
			"A stream serves the widest of its datasets' widths."},
	{"weight", schema_real, offsetof(struct config_dataset, weight),
		.line = offsetof(struct config_dataset, weight_line), .right = PHRASE_WEIGHT,
		.preset = "1",
		.help = "The dataset's share of the samples, relative to the other weights of the "
			"stream: all datasets have one, or none has."},
	{"max_epochs", schema_number, offsetof(struct config_dataset, max_epochs),
		.line = offsetof(struct config_dataset, max_epochs_line), .min = 1,
		.max = UINT64_MAX, .unit = "epochs", .otherwise = "no limit",
		.help = "Before the block of 1024 samples that would serve a window of it more "
			"often, its weight becomes 0 and the others keep their ratio. `tokend "
			"--check` prints the position."},
	{"shuffle", schema_choice, offsetof(struct config_dataset, shuffle),
		.choices = order_shuffles, .preset = "global",
		.help = "`global` shuffles all windows. `block` is for storage that needs long "
			"reads: it shuffles blocks of windows, then the windows within each group "
			"of blocks. `none` serves them in the order of the shards."},
	{"block", schema_number32, offsetof(struct config_dataset, block), .min = 1,
		.max = UINT64_C(1) << 31, .unit = "windows", .preset = "64",
		.help = "With `shuffle: block`, the size of a block."},
	{"group", schema_number32, offsetof(struct config_dataset, group), .min = 1,
		.max = UINT64_C(1) << 31, .unit = "blocks", .preset = "64",
		.help = "With `shuffle: block`, the size of a group. Keep block times group above "
			"16 global batches."},
	{"slide", schema_flag, offsetof(struct config_dataset, slide),
		.line = offsetof(struct config_dataset, slide_line), .preset = "false",
		.help = "Cut the shards into windows at another offset in each epoch, so that the "
			"tokens left over at their ends are served, too."},
	{"column", schema_text, offsetof(struct config_dataset, column), .right = "a column's name",
		.otherwise = "tokens, then input_ids, then the only column that fits",
		.help = "The column of mds and arrow shards that contains the tokens."},
	{"label_mask", schema_path_or_url, offsetof(struct config_dataset, label_mask),
		.line = offsetof(struct config_dataset, label_mask_line),
		.right = "a directory of loss masks under the names of the shards",
		.otherwise = "none",
		.help = "For `loss_mask: true`. A mask has one byte per token, 0 or 1, and no "
			"header. It is a URL if path is one."},
	{"fetch", schema_choice, offsetof(struct config_dataset, fetch),
		.line = offsetof(struct config_dataset, fetch_line), .choices = fetches,
		.preset = "auto",
		.help = "How shards in a store are read: `window` reads each window by itself, "
			"and `piece` reads whole pieces into the cache. `auto` is `piece` if the "
			"cache has space for the whole dataset and those before it. `tokend "
			"--check` prints the choice."},
	{"piece", take_piece, offsetof(struct config_dataset, piece),
		.line = offsetof(struct config_dataset, piece_line),
		.right = "a power of two from 64KiB to 64MiB", .min = 64 << 10, .max = 64 << 20,
		.preset = "8MiB", .help = "The size of a piece."},
};

const struct schema_table dataset_table = {dataset_keys, SCHEMA_COUNT(dataset_keys)};

static bool take_dataset(struct schema *s, const char *no_name, yaml_node_t *value, void *to)
{
	struct config_stream *stream = to;
	struct config_dataset *d = &stream->dataset[stream->datasets++];
	struct schema_lines lines;

	(void)no_name;
	d->line = s->line;
	if (!schema_mapping(s, value, &dataset_table, d, &lines))
		return false;
	d->has_dtype = schema_line(&lines, "dtype") != 0;
	d->has_weight = schema_line(&lines, "weight") != 0;
	if (!schema_line(&lines, "part"))
		d->hi = ORDER_UNITS;
	for (const struct config_dataset *other = stream->dataset; other < d; other++)
		if (strcmp(other->name, d->name) == 0)
			return schema_refuse_key(s, d->line, "name",
				"'%s' is also the name of the dataset on line %d; must be unique",
				d->name, other->line);
	return true;
}

static SCHEMA_TAKER(take_datasets)
{
	static const struct schema_entries datasets = {.type = YAML_SEQUENCE_NODE,
		.right = "a list of datasets, each {name: …, path: …}",
		.what = "datasets",
		.least = 1,
		.most = LIMIT_DATASETS,
		.bytes = sizeof(struct config_dataset),
		.take = take_dataset};
	struct config_stream *stream = to;

	(void)key;
	return schema_each(s, &datasets, value, &stream->dataset, stream);
}

/* ---- schedules ---- */

#define SCHEDULE_RIGHT                                                                             \
	"a list of {at: POSITION, weights: {…}} or {from: POSITION, to: POSITION, steps: N, "    \
	"weights: {…}}"

static const char STEP_WEIGHTS_RIGHT[] =
	"a mapping of dataset names to weights, such as {web: 0.7, code: 0.3}";

struct reading_step {
	uint64_t at, from, to;
	uint32_t steps;
	yaml_node_t *weights;
};

#define POSITION_KEY(name, field, least, words)                                                    \
	name, schema_number, offsetof(struct reading_step, field), .right = words, .min = least,   \
								   .max = UINT64_MAX

static const struct schema_key step_keys[] = {
	{POSITION_KEY("at", at, 1, "a position above 0, a multiple of 1024"),
		.help = "Change the mix at this position. Not together with from, to and steps."},
	{POSITION_KEY("from", from, 0, "a position, a multiple of 1024"),
		.help = "Begin a ramp from the mix before it at this position."},
	{POSITION_KEY("to", to, 1, "a position after from, a multiple of 1024"),
		.help = "End the ramp: the weights are in effect from this position."},
	{"steps", schema_number32, offsetof(struct reading_step, steps), .min = 1,
		.max = UINT32_MAX, .unit = "steps", .preset = "1",
		.help = "Equal steps of the ramp: at most (to - from) / 1024. Required with from "
			"and to."},
	{"weights", schema_keep, offsetof(struct reading_step, weights),
		.right = STEP_WEIGHTS_RIGHT, .required = true,
		.help = "The new weights. A dataset that is not named gets 0."},
};

const struct schema_table step_table = {step_keys, SCHEMA_COUNT(step_keys)};

/* Each dataset's weight in a mix of the stream. */
struct reading_weights {
	const struct config_stream *stream;
	double *weights; /* [datasets] */
};

static bool take_weight(struct schema *s, const char *name, yaml_node_t *value, void *to)
{
	static const struct schema_key weight = {"weight", schema_real, .right = PHRASE_WEIGHT};
	const struct reading_weights *r = to;
	const char *known[LIMIT_DATASETS];
	char list[NEAREST_LIST_BYTES];
	uint32_t d = 0, n = r->stream->datasets;

	while (d < n && strcmp(r->stream->dataset[d].name, name) != 0)
		d++;
	if (d < n)
		return schema_real(s, &weight, value, &r->weights[d]);
	for (d = 0; d < n; d++)
		known[d] = r->stream->dataset[d].name;
	return schema_refuse(s, "is not a dataset of the stream, which has %s",
		nearest_list(list, name, known, n));
}

/* An entry has `at` alone, or `from`, `to` and `steps`. */
static bool check_step_keys(struct schema *s, const struct schema_lines *lines)
{
	static const char *const ramp[] = {"from", "to", "steps"};
	int at = schema_line(lines, "at");

	for (size_t i = 0; i < SCHEMA_COUNT(ramp); i++) {
		int line = schema_line(lines, ramp[i]);

		if (at && line)
			return schema_refuse_key(s, line, "",
				"has at (line %d) and %s; must have either at, or from, to and "
				"steps",
				at, ramp[i]);
		if (!at && !line)
			return schema_refuse(s,
				"has no %s; must have either at, or from, to and steps", ramp[i]);
	}
	return true;
}

static bool take_step(struct schema *s, const char *no_name, yaml_node_t *value, void *to)
{
	static const struct schema_entries mix = {.type = YAML_MAPPING_NODE,
		.right = STEP_WEIGHTS_RIGHT,
		.name = "a dataset's name",
		.take = take_weight};
	struct config_stream *stream = to;
	uint32_t i = stream->steps++;
	struct cursor_step *step = &stream->step[i];
	double *weights = calloc(stream->datasets, sizeof(*weights));
	struct reading_step reading = {0};
	size_t n = strlen(s->field);
	struct schema_lines lines;

	(void)no_name;
	step->weights = weights;
	stream->step_line[i] = s->line;
	if (!weights)
		return schema_refuse_memory(s);
	if (!schema_mapping(s, value, &step_table, &reading, &lines) || !check_step_keys(s, &lines))
		return false;
	step->from = schema_line(&lines, "at") ? reading.at : reading.from;
	step->to = schema_line(&lines, "at") ? reading.at : reading.to;
	step->steps = reading.steps;
	if (schema_line(&lines, "to") && step->to == step->from)
		return schema_refuse_key(s, schema_line(&lines, "to"), "to",
			"%" PRIu64 " is not after from (%" PRIu64 "); must be a later position",
			step->to, step->from);
	schema_enter(s, schema_line(&lines, "weights"), "weights");
	if (!schema_each(
		    s, &mix, reading.weights, NULL, &(struct reading_weights){stream, weights}))
		return false;
	s->field[n] = 0;
	return true;
}

/* proto/ knows what steps are right, and whose fault it is. */
static bool check_schedule(struct schema *s, const struct config_stream *stream)
{
	struct fault fault;

	return cursor_check_steps(stream->step, stream->steps, stream->datasets, &fault) ||
	       schema_refuse_key(s, stream->step_line[fault.index], fault.field, "%s", fault.text);
}

/* Reads the schedule. It names datasets that may come after it in the file, so they are read
 * before. */
static bool take_schedule(struct schema *s, yaml_node_t *node, struct config_stream *stream)
{
	const struct schema_entries steps = {.type = YAML_SEQUENCE_NODE,
		.right = SCHEDULE_RIGHT,
		.what = "entries",
		/* as many mixes as a cursor may have; see proto/cursor_schedule.c */
		.most = LIMIT_CURSOR_BYTES / (stream->datasets + 4),
		.bytes = sizeof(struct cursor_step),
		.take = take_step};
	size_t n = strlen(s->field);

	schema_enter(s, stream->schedule_line, "schedule");
	stream->step_line = calloc(steps.most, sizeof(*stream->step_line));
	if (!stream->step_line)
		return schema_refuse_memory(s);
	if (!schema_each(s, &steps, node, &stream->step, stream))
		return false;
	s->field[n] = 0;
	return check_schedule(s, stream);
}

/* ---- streams ---- */

#define WINDOW_MAX LIMIT_CHUNK_BYTES /* tokens; a window must fit into a slot */

/* Takers that fill in several members get the whole struct: the offset of their key is 0. */
struct reading_stream {
	struct config_stream stream; /* first: offsets of keys are relative to it */
	yaml_node_t *schedule;
};

static const struct schema_key stream_keys[] = {
	{"seed", schema_number, offsetof(struct config_stream, seed), .required = true,
		.max = UINT64_MAX, .help = "The seed of the order."},
	{"seq_len", schema_number, offsetof(struct config_stream, seq_len), .required = true,
		.min = 1, .max = WINDOW_MAX, .unit = "tokens", .help = "Tokens per sample."},
	{"extra", schema_number, offsetof(struct config_stream, extra), .max = WINDOW_MAX,
		.unit = "tokens", .preset = "1",
		.help = "Tokens after each sample, for labels that are shifted by one. A window is "
			"seq_len + extra tokens of one shard."},
	{"stride", schema_number, offsetof(struct config_stream, stride), .min = 1,
		.max = UINT64_MAX, .unit = "tokens", .otherwise = "seq_len",
		.help = "The distance from one window to the next in a shard."},
	{"eos", schema_number, offsetof(struct config_stream, eos),
		.line = offsetof(struct config_stream, eos_line), .max = UINT32_MAX,
		.otherwise = "none", .help = "The token that ends a document."},
	{"vocab", schema_number, offsetof(struct config_stream, vocab), .min = 1,
		.max = UINT64_C(1) << 32, .otherwise = "unknown",
		.help = "The number of tokens in the vocabulary. A token that is not below it "
			"stops the stream, with the shard and the offset in the message. `tokctl "
			"inspect --deep -c FILE PATH...` finds such tokens beforehand."},
	{"documents", schema_flag, offsetof(struct config_stream, documents),
		.line = offsetof(struct config_stream, documents_line), .preset = "false",
		.help = "Batches also contain the document starts: those of the shard's index "
			"(megatron, datatrove, arrow, NAME.csv.gz next to NAME.npy or NAME.bin), "
			"otherwise the position after each eos. They take 4 bytes per token of "
			"ring memory."},
	{"loss_mask", schema_flag, offsetof(struct config_stream, loss_mask), .preset = "false",
		.help = "Batches also contain the loss mask, one byte per token: 1 where the "
			"shard's mask is 1 (X.ds.loss next to X.ds, or label_mask) and, if there "
			"is a NAME.csv.gz, where the token is in one of its documents."},
	{"epochs", schema_number, offsetof(struct config_stream, epochs), .min = 1,
		.max = UINT64_MAX, .unit = "epochs", .otherwise = "the stream is endless",
		.help = "End after every window was served this often. The datasets of such a "
			"stream have no weight and no max_epochs, and it has no schedule."},
	{"samples", schema_number, offsetof(struct config_stream, samples), .min = 1,
		.max = UINT64_MAX, .unit = "samples", .otherwise = "the stream is endless",
		.help = "End after this many samples, drawn by weight. Not together with epochs or "
			"schedule."},
	{"datasets", take_datasets, 0, .required = true,
		.right = "a list of datasets, each {name: …, path: …}",
		.help = "The datasets: 1 to 1024."},
	{"schedule", schema_keep, offsetof(struct reading_stream, schedule),
		.line = offsetof(struct config_stream, schedule_line), .right = SCHEDULE_RIGHT,
		.otherwise = "the weights never change",
		.help = "Planned changes of the mix, in ascending order. A run has the schedule of "
			"the config with which it began; `tokctl cursor schedule` gives it "
			"another."},
};

const struct schema_table stream_table = {stream_keys, SCHEMA_COUNT(stream_keys)};

/* The name of a dataset's key: "datasets[3].weight". */
static const char *key_of(uint32_t dataset, const char *key, char name[48])
{
	snprintf(name, 48, "datasets[%u].%s", dataset, key);
	return name;
}

/* Keys of datasets that do not go with keys of the stream. @epochs_line: 0 without epochs. */
static bool check_dataset(
	struct schema *s, const struct config_stream *stream, uint32_t i, int epochs_line)
{
	static const char finite[] =
		"a stream with epochs (line %d) serves every window that often; remove it";
	const struct config_dataset *d = &stream->dataset[i];
	char name[48];

	if (d->label_mask && !stream->loss_mask)
		return schema_refuse_key(s, d->label_mask_line, key_of(i, "label_mask", name),
			"is used only with loss_mask; set loss_mask: true in the stream, or remove "
			"it");
	if (d->slide && (d->lo > 0 || d->hi < ORDER_UNITS))
		return schema_refuse_key(s, d->slide_line, key_of(i, "slide", name),
			"moves windows into other parts of the path (part, line %d); must be false",
			d->part_line);
	if (d->max_epochs && stream->epochs)
		return schema_refuse_key(
			s, d->max_epochs_line, key_of(i, "max_epochs", name), finite, epochs_line);
	if (d->has_weight && stream->epochs)
		return schema_refuse_key(
			s, d->weight_line, key_of(i, "weight", name), finite, epochs_line);
	return true;
}

static bool check_stream(
	struct schema *s, const struct config_stream *stream, const struct schema_lines *lines)
{
	const char *end = stream->epochs ? "epochs" : "samples";
	const char *wide = schema_line(lines, "extra") ? "extra" : "seq_len";

	if (stream->extra > WINDOW_MAX - stream->seq_len)
		return schema_refuse_key(s, schema_line(lines, wide), wide,
			"seq_len %" PRIu64 " + extra %" PRIu64
			" is more than 1073741824 tokens; must be at most that",
			stream->seq_len, stream->extra);
	if (stream->has_eos && stream->has_vocab && stream->eos >= stream->vocab)
		return schema_refuse_key(s, stream->eos_line, "eos",
			"%" PRIu64 " is not below vocab (%" PRIu64
			"); must be a token of the vocabulary",
			stream->eos, stream->vocab);
	if (stream->epochs && stream->samples)
		return schema_refuse_key(s, schema_line(lines, "samples"), "samples",
			"the stream also has epochs (line %d); remove one of them",
			schema_line(lines, "epochs"));
	if (schema_line(lines, "schedule") && schema_line(lines, end))
		return schema_refuse_key(s, stream->schedule_line, "schedule",
			"the mix of a finite stream (%s, line %d) cannot change; remove one of "
			"them",
			end, schema_line(lines, end));
	for (uint32_t i = 0; i < stream->datasets; i++)
		if (!check_dataset(s, stream, i, schema_line(lines, "epochs")))
			return false;
	return true;
}

/* None is too small to be served. Weights are often shares of 1, next to which the default would be
 * half of all samples. */
static bool check_weights(
	struct schema *s, const struct config_stream *stream, const struct schema_lines *lines)
{
	double weights[LIMIT_DATASETS];
	uint64_t units[LIMIT_DATASETS];
	const struct config_dataset *given = NULL;
	struct fault fault;
	char name[48];

	for (uint32_t i = 0; i < stream->datasets; i++) {
		weights[i] = stream->dataset[i].weight;
		if (stream->dataset[i].has_weight && weights[i] > 0)
			given = &stream->dataset[i];
	}
	for (uint32_t i = 0; given && i < stream->datasets; i++)
		if (!stream->dataset[i].has_weight)
			return schema_refuse_key(s, stream->dataset[i].line,
				key_of(i, "weight", name),
				"is missing, but the dataset on line %d has one; give all datasets "
				"of the stream a weight, or none",
				given->line);
	if (stream->epochs || order_units(weights, stream->datasets, units, &fault))
		return true;
	if (fault.index == FAULT_NO_INDEX)
		return schema_refuse_key(s, schema_line(lines, "datasets"), "datasets",
			"the weights do not sum to a finite number above 0; " PHRASE_WEIGHTS);
	return schema_refuse_key(s, stream->dataset[fault.index].weight_line,
		key_of((uint32_t)fault.index, "weight", name), "%s", fault.text);
}

static bool take_stream(struct schema *s, const char *name, yaml_node_t *value, void *to)
{
	struct config *config = to;
	struct config_stream *stream = &config->stream[config->streams];
	struct reading_stream reading = {.stream.line = s->line};
	struct schema_lines lines;
	char shown[64];

	if (!wire_name_ok(name))
		return schema_refuse(s, "'%s' is not a valid name; must be %s",
			schema_show(name, shown), PHRASE_NAME);
	memcpy(reading.stream.name, name, strlen(name) + 1);
	bool read = schema_mapping(s, value, &stream_table, &reading, &lines);

	*stream = reading.stream; /* even after a failure: the config frees it */
	config->streams++;
	if (!read)
		return false;
	if (!schema_line(&lines, "stride"))
		stream->stride = stream->seq_len;
	stream->has_eos = schema_line(&lines, "eos") != 0;
	stream->has_vocab = schema_line(&lines, "vocab") != 0;
	return check_stream(s, stream, &lines) && check_weights(s, stream, &lines) &&
	       (!reading.schedule || take_schedule(s, reading.schedule, stream));
}

SCHEMA_TAKER(streams_take)
{
	static const struct schema_entries streams = {.type = YAML_MAPPING_NODE,
		.right = "a mapping of stream names to streams",
		.name = PHRASE_NAME,
		.what = "streams",
		.least = 1,
		.most = LIMIT_STREAMS,
		.bytes = sizeof(struct config_stream),
		.take = take_stream};
	struct config *config = to;

	(void)key;
	return schema_each(s, &streams, value, &config->stream, config);
}
