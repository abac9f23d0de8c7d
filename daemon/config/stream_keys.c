/*
 * The streams of a config, and the keys of one. What concerns several keys at once is checked when
 * all of them are read.
 */
#include "daemon/config/stream_keys.h"

#include "daemon/config/dataset_keys.h"
#include "daemon/config/schedule_keys.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_MAX LIMIT_CHUNK_BYTES /* tokens; a slot holds at least one window */

static const char NAME_RIGHT[] =
	"a name of 1 to 64 bytes, no control characters, no '/', no dot in front";

/* A taker of a list or of several fields gets the whole struct: its key's offset is 0. */
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
	[STREAM_DATASETS] = {"datasets", datasets_take, 0,
		.right = "a list of datasets, each {name: …, path: …}", .required = true},
	[STREAM_SCHEDULE] = {"schedule", schema_keep, offsetof(struct reading_stream, schedule),
		.right = CONFIG_SCHEDULE_RIGHT},
};

static void enter_dataset(struct schema *s, size_t index, const char *key)
{
	schema_enter(s, ".datasets");
	schema_enter_item(s, index);
	schema_enter(s, "%s", key);
}

static bool check_stream(struct schema *s, const struct config_stream *stream, const int *lines)
{
	if (stream->extra > WINDOW_MAX - stream->seq_len)
		return SCHEMA_REFUSE_KEY(s,
			lines[STREAM_EXTRA] ? lines[STREAM_EXTRA] : lines[STREAM_SEQ_LEN],
			lines[STREAM_EXTRA] ? ".extra" : ".seq_len",
			"seq_len %" PRIu64 " + extra %" PRIu64
			" is over 1073741824 tokens; must be at most that",
			stream->seq_len, stream->extra);
	if (stream->has_eos && stream->has_vocab && stream->eos >= stream->vocab)
		return SCHEMA_REFUSE_KEY(s, lines[STREAM_EOS], ".eos",
			"%" PRIu64 " is no token of a vocab of %" PRIu64 "; must be below it",
			stream->eos, stream->vocab);
	for (uint32_t i = 0; !stream->loss_mask && i < stream->datasets; i++) {
		if (!stream->dataset[i].label_mask)
			continue;
		enter_dataset(s, (size_t)i, ".label_mask");
		return schema_refuse(s, stream->dataset[i].label_mask_line,
			"the stream asks for no loss mask; must have loss_mask: true, or be left "
			"out");
	}
	if (stream->epochs && stream->samples)
		return SCHEMA_REFUSE_KEY(s, lines[STREAM_SAMPLES], ".samples",
			"the stream has epochs too (line %d); must have one of them",
			lines[STREAM_EPOCHS]);
	if (lines[STREAM_SCHEDULE] && (stream->epochs || stream->samples))
		return SCHEMA_REFUSE_KEY(s, lines[STREAM_SCHEDULE], ".schedule",
			"the stream ends (%s, line %d), and its mix stays as it is; must be left "
			"out",
			stream->epochs ? "epochs" : "samples",
			lines[stream->epochs ? STREAM_EPOCHS : STREAM_SAMPLES]);
	for (uint32_t i = 0; stream->epochs && i < stream->datasets; i++) {
		if (stream->dataset[i].max_epochs == 0)
			continue;
		enter_dataset(s, (size_t)i, ".max_epochs");
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
			enter_dataset(s, (size_t)i, ".weight");
			return schema_refuse(s, d->weight_line,
				"a stream with epochs (line %d) serves every window so often; must "
				"be left out",
				lines[STREAM_EPOCHS]);
		}
	}
	if (stream->epochs)
		return true;

	struct fault fault;

	if (order_units(weights, stream->datasets, units, &fault))
		return true;
	if (fault.index == FAULT_NO_INDEX)
		return SCHEMA_REFUSE_KEY(s, lines[STREAM_DATASETS], ".datasets",
			"the weights do not sum to a finite number above 0; must have at least one "
			"weight above 0");
	enter_dataset(s, (size_t)fault.index, ".weight");
	return schema_refuse(s, stream->dataset[fault.index].weight_line,
		"%g is below 1/2^32 of the sum, so never served; must be larger, or 0",
		stream->dataset[fault.index].weight);
}

static bool take_stream(struct schema *s, yaml_node_t *node, int line, struct config_stream *stream)
{
	int lines[SCHEMA_COUNT(stream_keys)];
	struct reading_stream reading = {0};

	stream->line = line;
	stream->extra = 1;
	reading.stream = *stream;
	bool read = schema_mapping(
		s, node, line, stream_keys, SCHEMA_COUNT(stream_keys), &reading, lines);

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
	       (!reading.schedule || schedule_take(s, reading.schedule, stream));
}

bool streams_take(
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
		return schema_refuse_memory(s, line);
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
