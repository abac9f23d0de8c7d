/* The streams of a config. Rules about several keys are checked after all of them are read. */
#include "daemon/config/stream_keys.h"

#include "daemon/config/dataset_keys.h"
#include "daemon/config/keys.h"
#include "daemon/config/schedule_keys.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_MAX LIMIT_CHUNK_BYTES /* tokens; a window must fit into a slot */

/* Takers that fill in several members get the whole struct: the offset of their key is 0. */
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
	struct config_stream stream; /* first: offsets of keys are relative to it */
	yaml_node_t *schedule;
};

static const struct schema_key stream_keys[] = {
	[STREAM_SEED] = {"seed", schema_number, offsetof(struct config_stream, seed),
		.required = true, .max = UINT64_MAX, .help = "The seed of the order."},
	[STREAM_SEQ_LEN] = {"seq_len", schema_number, offsetof(struct config_stream, seq_len),
		.required = true, .min = 1, .max = WINDOW_MAX, .unit = "tokens",
		.help = "Tokens per sample."},
	[STREAM_EXTRA] = {"extra", schema_number, offsetof(struct config_stream, extra),
		.max = WINDOW_MAX, .unit = "tokens", .preset = "1",
		.help = "Tokens after each sample, for labels that are shifted by one. A window is "
			"seq_len + extra tokens of one shard."},
	[STREAM_STRIDE] = {"stride", schema_number, offsetof(struct config_stream, stride),
		.min = 1, .max = UINT64_MAX, .unit = "tokens", .otherwise = "seq_len",
		.help = "The distance from one window to the next in a shard."},
	[STREAM_EOS] = {"eos", schema_number, offsetof(struct config_stream, eos),
		.max = UINT32_MAX, .otherwise = "none", .help = "The token that ends a document."},
	[STREAM_VOCAB] = {"vocab", schema_number, offsetof(struct config_stream, vocab), .min = 1,
		.max = UINT64_C(1) << 32, .otherwise = "unknown",
		.help = "The number of tokens in the vocabulary. A token that is not below it "
			"stops the stream, with the shard and the offset in the message. `tokctl "
			"inspect --deep -c FILE PATH...` finds such tokens beforehand."},
	[STREAM_DOCUMENTS] = {"documents", schema_flag, offsetof(struct config_stream, documents),
		.preset = "false",
		.help = "Batches also contain the document starts: those of the shard's index "
			"(megatron, datatrove, arrow, NAME.csv.gz next to NAME.npy or NAME.bin), "
			"otherwise the position after each eos. They take 4 bytes per token of "
			"ring memory."},
	[STREAM_LOSS_MASK] = {"loss_mask", schema_flag, offsetof(struct config_stream, loss_mask),
		.preset = "false",
		.help = "Batches also contain the loss mask, one byte per token: 1 where the "
			"shard's mask is 1 (X.ds.loss next to X.ds, or label_mask) and, if there "
			"is a NAME.csv.gz, where the token is in one of its documents."},
	[STREAM_EPOCHS] = {"epochs", schema_number, offsetof(struct config_stream, epochs),
		.min = 1, .max = UINT64_MAX, .unit = "epochs", .otherwise = "the stream is endless",
		.help = "End after every window was served this often. The datasets of such a "
			"stream have no weight and no max_epochs, and it has no schedule."},
	[STREAM_SAMPLES] = {"samples", schema_number, offsetof(struct config_stream, samples),
		.min = 1, .max = UINT64_MAX, .unit = "samples",
		.otherwise = "the stream is endless",
		.help = "End after this many samples, drawn by weight. Not together with epochs or "
			"schedule."},
	[STREAM_DATASETS] = {"datasets", datasets_take, 0, .required = true,
		.right = "a list of datasets, each {name: …, path: …}",
		.help = "The datasets: 1 to 1024."},
	[STREAM_SCHEDULE] = {"schedule", schema_keep, offsetof(struct reading_stream, schedule),
		.right = CONFIG_SCHEDULE_RIGHT, .otherwise = "the weights never change",
		.help = "Planned changes of the mix, in ascending order. A run has the schedule of "
			"the config with which it began; `tokctl cursor schedule` gives it "
			"another."},
};

const struct schema_table stream_table = {stream_keys, SCHEMA_COUNT(stream_keys)};

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
			" is more than 1073741824 tokens; must be at most that",
			stream->seq_len, stream->extra);
	if (stream->has_eos && stream->has_vocab && stream->eos >= stream->vocab)
		return SCHEMA_REFUSE_KEY(s, lines[STREAM_EOS], ".eos",
			"%" PRIu64 " is not below vocab (%" PRIu64
			"); must be a token of the vocabulary",
			stream->eos, stream->vocab);
	for (uint32_t i = 0; !stream->loss_mask && i < stream->datasets; i++) {
		if (!stream->dataset[i].label_mask)
			continue;
		enter_dataset(s, (size_t)i, ".label_mask");
		return schema_refuse(s, stream->dataset[i].label_mask_line,
			"is used only with loss_mask; set loss_mask: true in the stream, or remove "
			"it");
	}
	if (stream->epochs && stream->samples)
		return SCHEMA_REFUSE_KEY(s, lines[STREAM_SAMPLES], ".samples",
			"the stream also has epochs (line %d); remove one of them",
			lines[STREAM_EPOCHS]);
	if (lines[STREAM_SCHEDULE] && (stream->epochs || stream->samples))
		return SCHEMA_REFUSE_KEY(s, lines[STREAM_SCHEDULE], ".schedule",
			"the mix of a finite stream (%s, line %d) cannot change; remove one of "
			"them",
			stream->epochs ? "epochs" : "samples",
			lines[stream->epochs ? STREAM_EPOCHS : STREAM_SAMPLES]);
	for (uint32_t i = 0; stream->epochs && i < stream->datasets; i++) {
		if (stream->dataset[i].max_epochs == 0)
			continue;
		enter_dataset(s, (size_t)i, ".max_epochs");
		return schema_refuse(s, stream->dataset[i].max_epochs_line,
			"a stream with epochs (line %d) serves every window that often; remove it",
			lines[STREAM_EPOCHS]);
	}
	return true;
}

/* Weights go with a stream without epochs, and none is too small to be served. */
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
				"a stream with epochs (line %d) serves every window that often; "
				"remove it",
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
			"the weights do not sum to a finite number above 0; " PHRASE_WEIGHTS);
	enter_dataset(s, (size_t)fault.index, ".weight");
	return schema_refuse(s, stream->dataset[fault.index].weight_line, PHRASE_TINY,
		stream->dataset[fault.index].weight);
}

static bool take_stream(struct schema *s, yaml_node_t *node, int line, struct config_stream *stream)
{
	int lines[SCHEMA_COUNT(stream_keys)];
	struct reading_stream reading = {0};

	stream->line = line;
	reading.stream = *stream;
	bool read = schema_mapping(
		s, node, line, stream_keys, SCHEMA_COUNT(stream_keys), &reading, lines);

	*stream = reading.stream; /* even after a failure: the config frees it */
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
		const char *name = schema_scalar(s, name_node, at, PHRASE_NAME);
		char shown[64];

		if (!name)
			return false;
		size_t field = schema_enter(s, ".%s", schema_show(name, shown));

		if (!wire_name_ok(name))
			return schema_refuse(
				s, at, "'%s' is not a valid name; must be %s", shown, PHRASE_NAME);
		const struct config_stream *other = config_stream(config, name);

		if (other)
			return schema_refuse(
				s, at, PHRASE_TWICE "; remove it here or on line %d", other->line);
		memcpy(stream->name, name, strlen(name) + 1);
		config->streams = (uint32_t)i + 1;
		if (!take_stream(s, yaml_document_get_node(s->document, pair[i].value), at, stream))
			return false;
		schema_leave(s, field);
	}
	return true;
}
