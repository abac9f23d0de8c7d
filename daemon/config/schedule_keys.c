/*
 * A stream's `schedule:`. Each entry is one change of the mix (at:) or a ramp (from:, to:, steps:).
 */
#include "daemon/config/schedule_keys.h"

#include "daemon/config/keys.h"
#include "proto/nearest.h"
#include "proto/order.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char STEP_WEIGHTS_RIGHT[] =
	"a mapping of dataset names to weights, such as {web: 0.7, code: 0.3}";

enum { STEP_AT, STEP_FROM, STEP_TO, STEP_STEPS, STEP_WEIGHTS };

struct reading_step {
	uint64_t at, from, to;
	uint32_t steps;
	yaml_node_t *weights;
};

#define POSITION_KEY(name, field)                                                                  \
	name, schema_number, offsetof(struct reading_step, field),                                 \
		.right = "a position, a multiple of 1024", .max = UINT64_MAX

static const struct schema_key step_keys[] = {
	[STEP_AT] = {POSITION_KEY("at", at),
		.help = "Change the mix at this position. Not together with from, to and steps."},
	[STEP_FROM] = {POSITION_KEY("from", from),
		.help = "Begin a ramp from the mix before it at this position."},
	[STEP_TO] = {POSITION_KEY("to", to),
		.help = "End the ramp: the weights are in effect from this position."},
	[STEP_STEPS] = {"steps", schema_number32, offsetof(struct reading_step, steps), .min = 1,
		.max = UINT32_MAX, .unit = "steps", .preset = "1",
		.help = "Equal steps of the ramp: at most (to - from) / 1024. Required with from "
			"and to."},
	[STEP_WEIGHTS] = {"weights", schema_keep, offsetof(struct reading_step, weights),
		.right = STEP_WEIGHTS_RIGHT, .required = true,
		.help = "The new weights. A dataset that is not named gets 0."},
};

const struct schema_table step_table = {step_keys, SCHEMA_COUNT(step_keys)};

static bool refuse_dataset(
	struct schema *s, const struct config_stream *stream, int line, const char *name)
{
	const char *known[LIMIT_DATASETS];
	char list[NEAREST_LIST_BYTES];

	for (uint32_t d = 0; d < stream->datasets; d++)
		known[d] = stream->dataset[d].name;
	return schema_refuse(s, line, "is not a dataset of the stream, which has %s",
		nearest_list(list, name, known, stream->datasets));
}

/* One "dataset: weight". @seen has the lines of the datasets that were named before. */
static bool take_step_weight(struct schema *s, const struct config_stream *stream,
	const yaml_node_pair_t *pair, double *weights, int *seen)
{
	static const struct schema_key weight_key = {"weight", schema_real, .right = PHRASE_WEIGHT};
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
			s, line, PHRASE_TWICE "; remove it here or on line %d", seen[d]);
	seen[d] = line;
	if (!schema_real(s, &weight_key, yaml_document_get_node(s->document, pair->value), line,
		    &weights[d]))
		return false;
	schema_leave(s, field);
	return true;
}

/* The current field is `weights`. @seen: lines of the datasets that are named. */
static bool check_step_weights(struct schema *s, const struct config_stream *stream,
	const double *weights, int line, const int *seen)
{
	uint64_t units[LIMIT_DATASETS];
	struct fault fault;
	char shown[64];

	if (order_units(weights, stream->datasets, units, &fault))
		return true;
	if (fault.index == FAULT_NO_INDEX)
		return schema_refuse(
			s, line, "they do not sum to a finite number above 0; " PHRASE_WEIGHTS);
	schema_enter(s, ".%s", schema_show(stream->dataset[fault.index].name, shown));
	return schema_refuse(s, seen[fault.index], PHRASE_TINY, weights[fault.index]);
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
		return schema_refuse_memory(s, line);
	for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
		p++)
		if (!take_step_weight(s, stream, p, step->weights, seen))
			return false;
	if (!check_step_weights(s, stream, step->weights, line, seen))
		return false;
	schema_leave(s, field);
	return true;
}

/* An entry has `at` alone, or `from`, `to` and `steps`. */
static bool check_step_keys(struct schema *s, const int *lines, int line)
{
	static const int ramp[] = {STEP_FROM, STEP_TO, STEP_STEPS};

	for (size_t i = 0; i < SCHEMA_COUNT(ramp); i++) {
		int key = ramp[i];

		if (lines[STEP_AT] && lines[key])
			return SCHEMA_REFUSE_KEY(s, lines[key], "",
				"has at (line %d) and %s; must have either at, or from, to "
				"and steps",
				lines[STEP_AT], step_keys[key].name);
		if (!lines[STEP_AT] && !lines[key])
			return SCHEMA_REFUSE_KEY(s, line, "",
				"has no %s; must have either at, or from, to and steps",
				step_keys[key].name);
	}
	return true;
}

static bool check_step_position(struct schema *s, const char *name, uint64_t at, int line)
{
	uint64_t down = at / LIMIT_BLOCK * LIMIT_BLOCK;

	if (at == down)
		return true;
	if (down == 0 || down > UINT64_MAX - LIMIT_BLOCK)
		return SCHEMA_REFUSE_KEY(s, line, name, PHRASE_MULTIPLE, at, LIMIT_BLOCK,
			down ? down : (uint64_t)LIMIT_BLOCK);
	return SCHEMA_REFUSE_KEY(s, line, name, PHRASE_MULTIPLE " or %" PRIu64, at, LIMIT_BLOCK,
		down, down + LIMIT_BLOCK);
}

/* @before: the step before it, or NULL. */
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
		return SCHEMA_REFUSE_KEY(s, from, name,
			"0 is the beginning of the run; must be later (the run begins with the "
			"datasets' weights)");
	if (ramp && step->to <= step->from)
		return SCHEMA_REFUSE_KEY(s, lines[STEP_TO], ".to",
			"%" PRIu64 " is not after from (%" PRIu64 "); must be a later position",
			step->to, step->from);
	if (ramp && step->steps > most)
		return SCHEMA_REFUSE_KEY(s, lines[STEP_STEPS], ".steps",
			"%" PRIu32 " is more than the %" PRIu64
			" blocks of %d samples between from and to; must be 1 to %" PRIu64,
			step->steps, most, LIMIT_BLOCK, most);
	if (before && (ramp ? step->from < before->to : step->from <= before->to))
		return SCHEMA_REFUSE_KEY(s, from, name,
			"%" PRIu64
			" is not after the previous entry (line %d), which ends at %" PRIu64
			"; list the entries in ascending order",
			step->from, before->line, before->to);
	return true;
}

static bool take_step(struct schema *s, yaml_node_t *node, struct config_stream *stream)
{
	struct config_step *step = &stream->step[stream->steps++];
	int lines[SCHEMA_COUNT(step_keys)], line = (int)node->start_mark.line + 1;
	struct reading_step reading = {0};

	step->line = line;
	if (!schema_mapping(s, node, line, step_keys, SCHEMA_COUNT(step_keys), &reading, lines) ||
		!check_step_keys(s, lines, line))
		return false;
	step->from = lines[STEP_AT] ? reading.at : reading.from;
	step->to = lines[STEP_AT] ? reading.at : reading.to;
	step->steps = reading.steps;
	return check_step(s, step, stream->steps > 1 ? step - 1 : NULL, lines) &&
	       take_step_weights(s, stream, reading.weights, lines[STEP_WEIGHTS], step);
}

bool schedule_take(struct schema *s, yaml_node_t *node, struct config_stream *stream)
{
	int line = stream->schedule_line;
	/* As many mixes as a cursor may have; see proto/cursor_schedule.c. */
	size_t most = LIMIT_CURSOR_BYTES / (stream->datasets + 4);
	size_t whole = schema_enter(s, ".schedule");

	if (!schema_node(s, node, YAML_SEQUENCE_NODE, line, CONFIG_SCHEDULE_RIGHT))
		return false;
	size_t n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);

	if (n > most)
		return schema_refuse(s, line, "has %zu entries; must have at most %zu", n, most);
	stream->step = calloc(n + 1, sizeof(*stream->step));
	if (!stream->step)
		return schema_refuse_memory(s, line);
	for (size_t i = 0; i < n; i++) {
		size_t field = schema_enter_item(s, i);

		if (!take_step(s,
			    yaml_document_get_node(s->document, node->data.sequence.items.start[i]),
			    stream))
			return false;
		schema_leave(s, field);
	}
	schema_leave(s, whole);
	return true;
}
