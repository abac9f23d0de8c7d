/*
 * The schema, as tables. A line here is all that a new key needs; schema.c reads them. What
 * concerns several keys at once is checked where their mapping ends.
 */
#include "daemon/config/config.h"

#include "daemon/config/schema.h"
#include "daemon/config/yaml_load.h"
#include "proto/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))
#define WINDOW_MAX   LIMIT_CHUNK_BYTES /* tokens; a slot holds at least one window */

static const char NAME_RIGHT[] =
	"a name of 1 to 64 bytes, no control characters, no '/', no dot in front";
static const char LABEL_RIGHT[] = "a name of 1 to 64 bytes, no control characters";

/* ---- one dataset ---- */

static bool take_label(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *name = schema_scalar(s, value, line, key->right);
	char shown[64];

	if (!name)
		return false;
	if (!wire_label_ok(name))
		return schema_refuse(s, line, "'%s' is no name; must be %s",
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

enum {
	DATASET_NAME,
	DATASET_PATH,
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
};

#define WEIGHT_RIGHT "a finite number, 0 or more, such as 0.7"

static const char *const dtypes[] = {"u16", "u32", NULL};
static const char *const shuffles[] = {
	[ORDER_NONE] = "none", [ORDER_GLOBAL] = "global", [ORDER_BLOCK] = "block", NULL};

static const struct schema_key dataset_keys[] = {
	[DATASET_NAME] = {"name", take_label, offsetof(struct config_dataset, name),
		.right = LABEL_RIGHT, .required = true},
	[DATASET_PATH] = {"path", schema_text, offsetof(struct config_dataset, path),
		.right = "a file, a directory or a glob", .required = true},
	[DATASET_MANIFEST] = {"manifest", schema_text, offsetof(struct config_dataset, manifest),
		.right = "a file that `tokctl inspect --manifest` wrote"},
	[DATASET_FORMAT] = {"format", schema_text, offsetof(struct config_dataset, format),
		.right = "auto or a format's name"},
	[DATASET_DTYPE] = {"dtype", take_dtype, offsetof(struct config_dataset, token_bytes),
		.right = "u16 or u32", .choices = dtypes},
	[DATASET_WEIGHT] = {"weight", schema_real, offsetof(struct config_dataset, weight),
		.right = WEIGHT_RIGHT},
	[DATASET_MAX_EPOCHS] = {"max_epochs", schema_number,
		offsetof(struct config_dataset, max_epochs), .min = 1, .max = UINT64_MAX},
	[DATASET_SHUFFLE] = {"shuffle", schema_choice, offsetof(struct config_dataset, shuffle),
		.right = "global, block or none", .choices = shuffles},
	[DATASET_BLOCK] = {"block", schema_number32, offsetof(struct config_dataset, block),
		.min = 1, .max = UINT64_C(1) << 31},
	[DATASET_GROUP] = {"group", schema_number32, offsetof(struct config_dataset, group),
		.min = 1, .max = UINT64_C(1) << 31},
	[DATASET_SLIDE] = {"slide", schema_flag, offsetof(struct config_dataset, slide),
		.right = "true or false"},
	[DATASET_COLUMN] = {"column", schema_text, offsetof(struct config_dataset, column),
		.right = "a column's name"},
	[DATASET_LABEL_MASK] = {"label_mask", schema_text,
		offsetof(struct config_dataset, label_mask),
		.right = "a directory of loss masks under the names of the shards"},
};

_Static_assert(
	sizeof(enum order_shuffle) == sizeof(unsigned), "schema_choice() writes an unsigned");
_Static_assert(sizeof(enum config_io) == sizeof(unsigned), "schema_choice() writes an unsigned");

static bool take_dataset(struct schema *s, yaml_node_t *node, struct config_dataset *d)
{
	int lines[COUNT(dataset_keys)], line = (int)node->start_mark.line + 1;

	*d = (struct config_dataset){
		.token_bytes = 2,
		.weight = 1,
		.shuffle = ORDER_GLOBAL,
		.block = 64,
		.group = 64,
		.line = line,
	};
	d->format = strdup("auto");
	if (!d->format)
		return schema_refuse(s, line, "out of memory");
	if (!schema_mapping(s, node, line, dataset_keys, COUNT(dataset_keys), d, lines))
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
	return true;
}

/* ---- a schedule ----
 * It speaks of datasets, which may be listed behind it: read when the rest of the stream is. */

static const char SCHEDULE_RIGHT[] = "a list of {at: POSITION, weights: {…}} or {from: POSITION, "
				     "to: POSITION, steps: N, weights: {…}}";
static const char STEP_WEIGHTS_RIGHT[] =
	"a mapping of dataset names to weights, such as {web: 0.7, code: 0.3}";

enum { STEP_AT, STEP_FROM, STEP_TO, STEP_STEPS, STEP_WEIGHTS };

struct reading_step {
	uint64_t at, from, to;
	uint32_t steps;
	yaml_node_t *weights;
};

static bool take_node(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	(void)s, (void)key, (void)line;
	*(yaml_node_t **)to = value;
	return true;
}

#define POSITION_KEY(name, field)                                                                  \
	{                                                                                          \
		name, schema_number, offsetof(struct reading_step, field),                         \
			.right = "a position, a multiple of 1024", .max = UINT64_MAX               \
	}

static const struct schema_key step_keys[] = {
	[STEP_AT] = POSITION_KEY("at", at),
	[STEP_FROM] = POSITION_KEY("from", from),
	[STEP_TO] = POSITION_KEY("to", to),
	[STEP_STEPS] = {"steps", schema_number32, offsetof(struct reading_step, steps), .min = 1,
		.max = UINT32_MAX},
	[STEP_WEIGHTS] = {"weights", take_node, offsetof(struct reading_step, weights),
		.right = STEP_WEIGHTS_RIGHT, .required = true},
};

/* Refuses something about one key of a finished mapping. */
#define REFUSE_KEY(s, line, name, ...)                                                             \
	(schema_enter(s, "%s", name), schema_refuse(s, line, __VA_ARGS__))

static bool refuse_dataset(
	struct schema *s, const struct config_stream *stream, int line, const char *name)
{
	const char *known[LIMIT_DATASETS], *near;
	char shown[64];

	for (uint32_t d = 0; d < stream->datasets; d++)
		known[d] = stream->dataset[d].name;
	near = schema_near(name, known, stream->datasets);
	if (near)
		return schema_refuse(s, line,
			"no dataset of the stream is called so; did you mean %s?",
			schema_show(near, shown));
	return schema_refuse(s, line,
		"no dataset of the stream is called so; must be one of those under "
		"datasets:, the first of which is %s",
		schema_show(known[0], shown));
}

/* One "dataset: weight". @seen has the line of each dataset that was named before. */
static bool take_step_weight(struct schema *s, const struct config_stream *stream,
	const yaml_node_pair_t *pair, double *weights, int *seen)
{
	static const struct schema_key weight_key = {"weight", schema_real, .right = WEIGHT_RIGHT};
	yaml_node_t *key = yaml_document_get_node(s->document, pair->key);
	int line = (int)key->start_mark.line + 1;
	const char *name = schema_scalar(s, key, line, "a dataset's name");
	char shown[64];
	uint32_t d = 0;

	if (!name)
		return false;
	size_t field = schema_enter(s, ".%s", schema_show(name, shown));

	while (d < stream->datasets && strcmp(stream->dataset[d].name, name) != 0)
		d++;
	if (d == stream->datasets)
		return refuse_dataset(s, stream, line, name);
	if (seen[d])
		return schema_refuse(
			s, line, "is given twice; the first is on line %d, remove one", seen[d]);
	seen[d] = line;
	if (!schema_real(s, &weight_key, yaml_document_get_node(s->document, pair->value), line,
		    &weights[d]))
		return false;
	schema_leave(s, field);
	return true;
}

/* The field is that of the weights. @seen: lines of those that are named. */
static bool check_step_weights(struct schema *s, const struct config_stream *stream,
	const double *weights, int line, const int *seen)
{
	uint64_t units[LIMIT_DATASETS];
	int at = order_units(weights, stream->datasets, units);
	char shown[64];

	if (at == (int)stream->datasets)
		return schema_refuse(s, line,
			"they do not sum to a finite number above 0; must have at least one weight "
			"above 0");
	if (at < 0)
		return true;
	schema_enter(s, ".%s", schema_show(stream->dataset[at].name, shown));
	return schema_refuse(s, seen[at],
		"%g is below 1/2^32 of the sum, so never served; must be larger, or 0",
		weights[at]);
}

static bool take_step_weights(struct schema *s, const struct config_stream *stream,
	yaml_node_t *node, int line, struct config_step *step)
{
	int seen[LIMIT_DATASETS] = {0};
	size_t field = schema_enter(s, ".weights");

	if (!schema_node(s, node, YAML_MAPPING_NODE, line, STEP_WEIGHTS_RIGHT))
		return false;
	step->weights = calloc(stream->datasets, sizeof(*step->weights));
	if (!step->weights)
		return schema_refuse(s, line, "out of memory");
	for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
		p++)
		if (!take_step_weight(s, stream, p, step->weights, seen))
			return false;
	if (!check_step_weights(s, stream, step->weights, line, seen))
		return false;
	schema_leave(s, field);
	return true;
}

/* Which keys go together. */
static bool check_step_keys(struct schema *s, const int *lines, int line)
{
	static const int ramp[] = {STEP_FROM, STEP_TO, STEP_STEPS};

	for (size_t i = 0; i < COUNT(ramp); i++) {
		int key = ramp[i];

		if (lines[STEP_AT] && lines[key])
			return REFUSE_KEY(s, lines[key], "",
				"has at (line %d) and %s; must have at alone, or "
				"from, to and steps",
				lines[STEP_AT], step_keys[key].name);
		if (!lines[STEP_AT] && !lines[key])
			return REFUSE_KEY(s, line, "",
				"has no %s; must have at, or from, to and steps",
				step_keys[key].name);
	}
	return true;
}

static bool check_step_position(struct schema *s, const char *name, uint64_t at, int line)
{
	uint64_t down = at / LIMIT_BLOCK * LIMIT_BLOCK;

	if (at == down)
		return true;
	if (down > UINT64_MAX - LIMIT_BLOCK)
		return REFUSE_KEY(s, line, name,
			"%" PRIu64 " is not a multiple of %d; take %" PRIu64, at, LIMIT_BLOCK,
			down);
	if (down == 0)
		return REFUSE_KEY(s, line, name, "%" PRIu64 " is not a multiple of %d; take %d", at,
			LIMIT_BLOCK, LIMIT_BLOCK);
	return REFUSE_KEY(s, line, name,
		"%" PRIu64 " is not a multiple of %d; take %" PRIu64 " or %" PRIu64, at,
		LIMIT_BLOCK, down, down + LIMIT_BLOCK);
}

/* @before: the step in front of it, or NULL. */
static bool check_step(struct schema *s, const struct config_step *step,
	const struct config_step *before, const int *lines)
{
	bool ramp = lines[STEP_AT] == 0;
	int from = lines[ramp ? STEP_FROM : STEP_AT];
	const char *name = ramp ? ".from" : ".at";
	uint64_t most = (step->to - step->from) / LIMIT_BLOCK;

	if (!check_step_position(s, name, step->from, from) ||
		(ramp && !check_step_position(s, ".to", step->to, lines[STEP_TO])))
		return false;
	if (!ramp && step->from == 0)
		return REFUSE_KEY(s, from, name,
			"0 is where the run begins; must be ahead: what it begins with are the "
			"datasets' "
			"weights");
	if (ramp && step->to <= step->from)
		return REFUSE_KEY(s, lines[STEP_TO], ".to",
			"%" PRIu64 " is not behind from, %" PRIu64 "; must be a later position",
			step->to, step->from);
	if (ramp && step->steps > most)
		return REFUSE_KEY(s, lines[STEP_STEPS], ".steps",
			"%" PRIu32
			" is more than there are blocks of %d between from and to; must be 1 to "
			"%" PRIu64,
			step->steps, LIMIT_BLOCK, most);
	if (before && (ramp ? step->from < before->to : step->from <= before->to))
		return REFUSE_KEY(s, from, name,
			"%" PRIu64
			" is not behind the entry before it (line %d), which ends at %" PRIu64
			"; must be in ascending order",
			step->from, before->line, before->to);
	return true;
}

static bool take_step(struct schema *s, yaml_node_t *node, struct config_stream *stream)
{
	struct config_step *step = &stream->step[stream->steps++];
	int lines[COUNT(step_keys)], line = (int)node->start_mark.line + 1;
	struct reading_step reading = {.steps = 1};

	step->line = line;
	if (!schema_mapping(s, node, line, step_keys, COUNT(step_keys), &reading, lines) ||
		!check_step_keys(s, lines, line))
		return false;
	step->from = lines[STEP_AT] ? reading.at : reading.from;
	step->to = lines[STEP_AT] ? reading.at : reading.to;
	step->steps = reading.steps;
	return check_step(s, step, stream->steps > 1 ? step - 1 : NULL, lines) &&
	       take_step_weights(s, stream, reading.weights, lines[STEP_WEIGHTS], step);
}

static bool take_schedule(struct schema *s, yaml_node_t *node, struct config_stream *stream)
{
	int line = stream->schedule_line;
	/* No cursor holds more mixes; see proto/cursor_schedule.c. */
	size_t most = LIMIT_CURSOR_BYTES / (stream->datasets + 4);
	size_t whole = schema_enter(s, ".schedule");

	if (!schema_node(s, node, YAML_SEQUENCE_NODE, line, SCHEDULE_RIGHT))
		return false;
	size_t n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);

	if (n > most)
		return schema_refuse(s, line, "has %zu entries; must have at most %zu", n, most);
	stream->step = calloc(n + 1, sizeof(*stream->step));
	if (!stream->step)
		return schema_refuse(s, line, "out of memory");
	for (size_t i = 0; i < n; i++) {
		size_t field = schema_enter(s, "[%zu]", i);

		if (!take_step(s,
			    yaml_document_get_node(s->document, node->data.sequence.items.start[i]),
			    stream))
			return false;
		schema_leave(s, field);
	}
	schema_leave(s, whole);
	return true;
}

/* ---- one stream ----
 * A taker of a list or of several fields gets the whole struct: its key's offset is 0. */

static bool take_datasets(
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
		return schema_refuse(s, line, "out of memory");
	for (size_t i = 0; i < n; i++) {
		yaml_node_t *node =
			yaml_document_get_node(s->document, value->data.sequence.items.start[i]);
		struct config_dataset *d = &stream->dataset[i];
		size_t field = schema_enter(s, "[%zu]", i);

		stream->datasets = (uint32_t)i + 1;
		if (!take_dataset(s, node, d))
			return false;
		for (size_t j = 0; j < i; j++) {
			if (strcmp(stream->dataset[j].name, d->name) == 0) {
				schema_enter(s, ".name");
				return schema_refuse(s, d->line,
					"'%s' is taken by the dataset on line %d; must be another "
					"name",
					d->name, stream->dataset[j].line);
			}
		}
		schema_leave(s, field);
	}
	return true;
}

enum {
	STREAM_SEED,
	STREAM_SEQ_LEN,
	STREAM_EXTRA,
	STREAM_STRIDE,
	STREAM_EOS,
	STREAM_VOCAB,
	STREAM_DOCUMENTS,
	STREAM_LOSS_MASK,
	STREAM_EPOCHS,
	STREAM_SAMPLES,
	STREAM_DATASETS,
	STREAM_SCHEDULE,
};

struct reading_stream {
	struct config_stream stream; /* first: the keys' offsets are its */
	yaml_node_t *schedule;
};

static const struct schema_key stream_keys[] = {
	[STREAM_SEED] = {"seed", schema_number, offsetof(struct config_stream, seed),
		.right = "a whole number from 0 to 18446744073709551615 in plain digits",
		.required = true, .max = UINT64_MAX},
	[STREAM_SEQ_LEN] = {"seq_len", schema_number, offsetof(struct config_stream, seq_len),
		.right = "a number of tokens from 1 to 1073741824 in plain digits",
		.required = true, .min = 1, .max = WINDOW_MAX},
	[STREAM_EXTRA] = {"extra", schema_number, offsetof(struct config_stream, extra),
		.max = WINDOW_MAX},
	[STREAM_STRIDE] = {"stride", schema_number, offsetof(struct config_stream, stride),
		.min = 1, .max = UINT64_MAX},
	[STREAM_EOS] = {"eos", schema_number, offsetof(struct config_stream, eos),
		.max = UINT32_MAX},
	[STREAM_VOCAB] = {"vocab", schema_number, offsetof(struct config_stream, vocab), .min = 1,
		.max = UINT64_C(1) << 32},
	[STREAM_DOCUMENTS] = {"documents", schema_flag, offsetof(struct config_stream, documents),
		.right = "true or false"},
	[STREAM_LOSS_MASK] = {"loss_mask", schema_flag, offsetof(struct config_stream, loss_mask),
		.right = "true or false"},
	[STREAM_EPOCHS] = {"epochs", schema_number, offsetof(struct config_stream, epochs),
		.min = 1, .max = UINT64_MAX},
	[STREAM_SAMPLES] = {"samples", schema_number, offsetof(struct config_stream, samples),
		.min = 1, .max = UINT64_MAX},
	[STREAM_DATASETS] = {"datasets", take_datasets, 0,
		.right = "a list of datasets, each {name: …, path: …}", .required = true},
	[STREAM_SCHEDULE] = {"schedule", take_node, offsetof(struct reading_stream, schedule),
		.right = SCHEDULE_RIGHT},
};

static bool check_stream(struct schema *s, const struct config_stream *stream, const int *lines)
{
	if (stream->extra > WINDOW_MAX - stream->seq_len)
		return REFUSE_KEY(s,
			lines[STREAM_EXTRA] ? lines[STREAM_EXTRA] : lines[STREAM_SEQ_LEN],
			lines[STREAM_EXTRA] ? ".extra" : ".seq_len",
			"seq_len %" PRIu64 " + extra %" PRIu64
			" is over 1073741824 tokens; must be at most that",
			stream->seq_len, stream->extra);
	if (stream->has_eos && stream->has_vocab && stream->eos >= stream->vocab)
		return REFUSE_KEY(s, lines[STREAM_EOS], ".eos",
			"%" PRIu64 " is no token of a vocab of %" PRIu64 "; must be below it",
			stream->eos, stream->vocab);
	for (uint32_t i = 0; !stream->loss_mask && i < stream->datasets; i++) {
		if (!stream->dataset[i].label_mask)
			continue;
		schema_enter(s, ".datasets[%u].label_mask", i);
		return schema_refuse(s, stream->dataset[i].label_mask_line,
			"the stream asks for no loss mask; must have loss_mask: true, or be left "
			"out");
	}
	if (stream->epochs && stream->samples)
		return REFUSE_KEY(s, lines[STREAM_SAMPLES], ".samples",
			"the stream has epochs too (line %d); must have one of them",
			lines[STREAM_EPOCHS]);
	if (lines[STREAM_SCHEDULE] && (stream->epochs || stream->samples))
		return REFUSE_KEY(s, lines[STREAM_SCHEDULE], ".schedule",
			"the stream ends (%s, line %d), and its mix stays as it is; must be left "
			"out",
			stream->epochs ? "epochs" : "samples",
			lines[stream->epochs ? STREAM_EPOCHS : STREAM_SAMPLES]);
	for (uint32_t i = 0; stream->epochs && i < stream->datasets; i++) {
		if (stream->dataset[i].max_epochs == 0)
			continue;
		schema_enter(s, ".datasets[%u].max_epochs", i);
		return schema_refuse(s, stream->dataset[i].max_epochs_line,
			"a stream with epochs (line %d) serves every window so often; must be left "
			"out",
			lines[STREAM_EPOCHS]);
	}
	return true;
}

/* Weights against the stream's end, and against each other. */
static bool check_weights(struct schema *s, const struct config_stream *stream, const int *lines)
{
	double weights[LIMIT_DATASETS];
	uint64_t units[LIMIT_DATASETS];

	for (uint32_t i = 0; i < stream->datasets; i++) {
		const struct config_dataset *d = &stream->dataset[i];

		weights[i] = d->weight;
		if (stream->epochs && d->has_weight) {
			schema_enter(s, ".datasets[%u].weight", i);
			return schema_refuse(s, d->weight_line,
				"a stream with epochs (line %d) serves every window so often; must "
				"be left "
				"out",
				lines[STREAM_EPOCHS]);
		}
	}
	if (stream->epochs)
		return true;
	int at = order_units(weights, stream->datasets, units);

	if (at == (int)stream->datasets)
		return REFUSE_KEY(s, lines[STREAM_DATASETS], ".datasets",
			"the weights do not sum to a finite number above 0; must have at least one "
			"weight "
			"above 0");
	if (at >= 0) {
		schema_enter(s, ".datasets[%d].weight", at);
		return schema_refuse(s, stream->dataset[at].weight_line,
			"%g is below 1/2^32 of the sum, so never served; must be larger, or 0",
			stream->dataset[at].weight);
	}
	return true;
}

static bool take_stream(struct schema *s, yaml_node_t *node, int line, struct config_stream *stream)
{
	int lines[COUNT(stream_keys)];
	struct reading_stream reading = {0};

	stream->line = line;
	stream->extra = 1;
	reading.stream = *stream;
	bool read = schema_mapping(s, node, line, stream_keys, COUNT(stream_keys), &reading, lines);

	*stream = reading.stream; /* what there is of it is the config's, to free */
	if (!read)
		return false;
	stream->schedule_line = lines[STREAM_SCHEDULE] ? lines[STREAM_SCHEDULE] : line;
	if (!lines[STREAM_STRIDE])
		stream->stride = stream->seq_len;
	stream->has_eos = lines[STREAM_EOS] != 0;
	stream->eos_line = lines[STREAM_EOS];
	stream->documents_line = lines[STREAM_DOCUMENTS];
	stream->has_vocab = lines[STREAM_VOCAB] != 0;
	return check_stream(s, stream, lines) && check_weights(s, stream, lines) &&
	       (!reading.schedule || take_schedule(s, reading.schedule, stream));
}

static bool take_streams(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	if (!schema_node(s, value, YAML_MAPPING_NODE, line, key->right))
		return false;
	yaml_node_pair_t *pair = value->data.mapping.pairs.start;
	size_t n = (size_t)(value->data.mapping.pairs.top - pair);

	if (n == 0 || n > LIMIT_STREAMS)
		return schema_refuse(
			s, line, "has %zu streams; must have 1 to %d", n, LIMIT_STREAMS);
	config->stream = calloc(n, sizeof(*config->stream));
	if (!config->stream)
		return schema_refuse(s, line, "out of memory");
	for (size_t i = 0; i < n; i++) {
		struct config_stream *stream = &config->stream[i];
		yaml_node_t *name_node = yaml_document_get_node(s->document, pair[i].key);
		int at = (int)name_node->start_mark.line + 1;
		const char *name = schema_scalar(s, name_node, at, NAME_RIGHT);
		char shown[64];

		if (!name)
			return false;
		size_t field = schema_enter(s, ".%s", schema_show(name, shown));

		if (!wire_name_ok(name))
			return schema_refuse(
				s, at, "'%s' cannot name a stream; must be %s", shown, NAME_RIGHT);
		const struct config_stream *other = config_stream(config, name);

		if (other)
			return schema_refuse(s, at,
				"is given twice; the first is on line %d, remove one", other->line);
		memcpy(stream->name, name, strlen(name) + 1);
		config->streams = (uint32_t)i + 1;
		if (!take_stream(s, yaml_document_get_node(s->document, pair[i].value), at, stream))
			return false;
		schema_leave(s, field);
	}
	return true;
}

/* ---- the whole file ---- */

/* @path if it is absolute, else below the config's directory. NULL: out of memory. */
static char *absolute(const struct config *config, const char *path)
{
	char *whole;

	if (path[0] == '/')
		return strdup(path);
	return asprintf(&whole, "%s/%s", config->directory, path) < 0 ? NULL : whole;
}

static bool make_absolute(struct schema *s, const struct config *config, int line, char **path)
{
	char *whole = absolute(config, *path);

	if (!whole)
		return schema_refuse(s, line, "out of memory");
	free(*path);
	*path = whole;
	return true;
}

static bool take_socket(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;
	size_t room = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;

	config->has_socket = true;
	if (!schema_text(s, key, value, line, &config->socket) ||
		!make_absolute(s, config, line, &config->socket))
		return false;
	if (strlen(config->socket) > room)
		return schema_refuse(s, line,
			"%s has %zu bytes; a socket's path must have at most %zu", config->socket,
			strlen(config->socket), room);
	return true;
}

static bool take_state_dir(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	config->has_state_dir = true;
	return schema_text(s, key, value, line, &config->state_dir) &&
	       make_absolute(s, config, line, &config->state_dir);
}

/* HOST:PORT, with brackets around an IPv6 host. */
static bool take_metrics(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *text = schema_scalar(s, value, line, key->right), *colon;
	char shown[64];

	if (!text)
		return false;
	colon = strrchr(text, ':');
	size_t host = colon ? (size_t)(colon - text) : 0;
	size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
	unsigned long port = digits >= 1 && digits <= 5 ? strtoul(colon + 1, NULL, 10) : 0;
	bool six = host > 2 && text[0] == '[' && text[host - 1] == ']';

	if (host == 0 || (!six && memchr(text, ':', host)) || strpbrk(text, " \t/") ||
		colon[1 + digits] != 0 || colon[1] == '0' || port < 1 || port > 65535)
		return schema_refuse(s, line, "'%s' is no address; must be %s",
			schema_show(text, shown), key->right);
	return schema_text(s, key, value, line, to);
}

/* A list of users, [*@count] at *@list. */
static bool take_uids(struct schema *s, yaml_node_t *value, int line, const char *right,
	uid_t **list, uint32_t *count)
{
	/* 2^32 - 1 is no user: it means "none" to the kernel. */
	static const struct schema_key uid_key = {"uid", schema_number, .max = UINT32_MAX - 1};

	if (!schema_node(s, value, YAML_SEQUENCE_NODE, line, right))
		return false;
	size_t n = (size_t)(value->data.sequence.items.top - value->data.sequence.items.start);

	*list = calloc(n + 1, sizeof(**list));
	if (!*list)
		return schema_refuse(s, line, "out of memory");
	for (size_t i = 0; i < n; i++) {
		yaml_node_t *node =
			yaml_document_get_node(s->document, value->data.sequence.items.start[i]);
		size_t field = schema_enter(s, "[%zu]", i);
		uint64_t uid;

		if (!schema_number(s, &uid_key, node, (int)node->start_mark.line + 1, &uid))
			return false;
		(*list)[(*count)++] = (uid_t)uid;
		schema_leave(s, field);
	}
	return true;
}

static bool take_allowed(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	return take_uids(s, value, line, key->right, &config->allow_uid, &config->allow_uids);
}

static bool take_admins(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	struct config *config = to;

	return take_uids(s, value, line, key->right, &config->admin_uid, &config->admin_uids);
}

static const char *const ios[] = {
	[CONFIG_IO_AUTO] = "auto", [CONFIG_IO_URING] = "uring", [CONFIG_IO_PREAD] = "pread", NULL};

static const struct schema_key config_keys[] = {
	{"socket", take_socket, 0, .right = "the path of a socket"},
	{"state_dir", take_state_dir, 0, .right = "a directory"},
	{"memory", schema_size, offsetof(struct config, memory_bytes),
		.right = "a size such as 512MiB, 1GiB or plain bytes", .min = 1, .max = INT64_MAX},
	{"metrics", take_metrics, offsetof(struct config, metrics),
		.right = "HOST:PORT, such as 127.0.0.1:9464"},
	{"io", schema_choice, offsetof(struct config, io), .right = "auto, uring or pread",
		.choices = ios},
	{"direct", schema_flag, offsetof(struct config, direct), .right = "true or false"},
	{"allow_uids", take_allowed, 0, .right = "a list of user numbers, such as [1000]"},
	{"admin_uids", take_admins, 0, .right = "a list of user numbers, such as [1000]"},
	{"streams", take_streams, 0, .right = "a mapping of stream names to streams",
		.required = true},
};

_Static_assert(COUNT(config_keys) <= SCHEMA_KEYS && COUNT(stream_keys) <= SCHEMA_KEYS &&
		       COUNT(dataset_keys) <= SCHEMA_KEYS && COUNT(step_keys) <= SCHEMA_KEYS,
	"the walker has room for every table");

static bool take_document(struct schema *s, struct config *config)
{
	yaml_node_t *root = yaml_document_get_root_node(s->document);

	if (!root)
		return schema_refuse(s, 1,
			"the file is empty; must have at least streams: (see config/tokend.yaml)");
	return schema_mapping(s, root, (int)root->start_mark.line + 1, config_keys,
		COUNT(config_keys), config, NULL);
}

static bool parse(FILE *file, struct config *config, char *why, size_t why_bytes)
{
	yaml_document_t document;
	struct schema s = {
		.document = &document, .file = config->path, .why = why, .why_bytes = why_bytes};

	if (!yaml_load(&s, file))
		return false;
	bool done = take_document(&s, config);

	yaml_document_delete(&document);
	return done;
}

/* The directory of the file, absolute. */
static char *directory_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *directory =
		!slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
	char *whole = directory ? realpath(directory, NULL) : NULL;

	free(directory);
	return whole;
}

static bool set_defaults(struct config *config, const char *path)
{
	config->path = strdup(path);
	config->directory = directory_of(path);
	config->socket = strdup(WIRE_SOCKET);
	config->state_dir = strdup("/var/lib/tokend");
	config->memory_bytes = UINT64_C(1) << 30;
	return config->path && config->directory && config->socket && config->state_dir;
}

struct config *config_load(const char *path, char *why, size_t why_bytes)
{
	FILE *file = fopen(path, "re");
	struct config *config = NULL;

	if (!file) {
		snprintf(why, why_bytes, "%s: cannot be opened: %s; name the config file with -c",
			path, strerror(errno));
		return NULL;
	}
	config = calloc(1, sizeof(*config));
	if (!config || !set_defaults(config, path))
		snprintf(why, why_bytes, "%s: %s", path, strerror(errno));
	else if (parse(file, config, why, why_bytes))
		goto out;
	config_free(config);
	config = NULL;
out:
	fclose(file);
	return config;
}

char *config_user_state_dir(const struct config *config)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *path = realpath(config->path, NULL), *directory = NULL;
	uint64_t number = path ? order_checksum(path, strlen(path)) : 0;
	bool own = state && state[0] == '/';

	if (path && (own || (home && home[0] == '/')) &&
		asprintf(&directory, "%s%s/tokend/%016" PRIx64, own ? state : home,
			own ? "" : "/.local/state", number) < 0)
		directory = NULL;
	free(path);
	return directory;
}

bool config_may_write(const char *path)
{
	char *part = strdup(path);
	bool may = false;

	while (part && access(part, F_OK) < 0 && errno == ENOENT) {
		char *slash = strrchr(part, '/');

		if (!slash)
			break;
		slash[slash == part] = 0;
	}
	if (part)
		may = access(part, W_OK | X_OK) == 0;
	free(part);
	return may;
}

static void stream_free(struct config_stream *stream)
{
	for (uint32_t i = 0; i < stream->datasets; i++) {
		free(stream->dataset[i].path);
		free(stream->dataset[i].manifest);
		free(stream->dataset[i].format);
		free(stream->dataset[i].column);
		free(stream->dataset[i].label_mask);
	}
	free(stream->dataset);
	for (uint32_t i = 0; i < stream->steps; i++)
		free(stream->step[i].weights);
	free(stream->step);
}

void config_free(struct config *config)
{
	if (!config)
		return;
	for (uint32_t i = 0; i < config->streams; i++)
		stream_free(&config->stream[i]);
	free(config->stream);
	free(config->allow_uid);
	free(config->admin_uid);
	free(config->metrics);
	free(config->state_dir);
	free(config->socket);
	free(config->directory);
	free(config->path);
	free(config);
}

bool config_path(const struct config *config, const char *written, char *path, size_t path_bytes)
{
	bool below = written[0] != '/';
	int n = snprintf(path, path_bytes, "%s%s%s", below ? config->directory : "",
		below ? "/" : "", written);

	return n >= 0 && (size_t)n < path_bytes;
}

const struct config_stream *config_stream(const struct config *config, const char *name)
{
	for (uint32_t i = 0; i < config->streams; i++)
		if (strcmp(config->stream[i].name, name) == 0)
			return &config->stream[i];
	return NULL;
}
