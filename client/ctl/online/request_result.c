#include "client/ctl/common/error.h"
#include "client/ctl/common/share.h"
#include "client/ctl/online/request.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
	LISTED = 16,	 /* lists all ranks of a new world up to this size */
	LISTED_EDGE = 4, /* of a larger one, only so many first and last ones */
};

static void put_rank(struct request *r, uint64_t rank, uint64_t micro_batch)
{
	uint64_t end = cursor_end(&r->cursor);
	uint64_t first = order_rank_position(r->cursor.next, 0, rank, r->world, micro_batch);
	uint64_t rows = first >= end ? 0 : end - first < micro_batch ? end - first : micro_batch;
	char line[160];

	if (!r->json) {
		if (rows)
			snprintf(line, sizeof(line),
				"  rank %" PRIu64 " begins with %" PRIu64 "..%" PRIu64 "\n", rank,
				first, first + rows - 1);
		else
			snprintf(
				line, sizeof(line), "  rank %" PRIu64 " gets padding only\n", rank);
		ctl_put(&r->out, line);
		return;
	}
	ctl_put(&r->out, rank ? ",{" : "{");
	ctl_put_pair(&r->out, "rank", rank);
	if (rows)
		snprintf(line, sizeof(line), ",\"first\":%" PRIu64 ",\"last\":%" PRIu64 "}", first,
			first + rows - 1);
	else
		snprintf(line, sizeof(line), ",\"first\":null,\"last\":null}");
	ctl_put(&r->out, line);
}

static void put_ranks(struct request *r, uint64_t micro_batch)
{
	bool all = r->json || r->world <= LISTED;

	for (uint64_t rank = 0; rank < r->world && !r->out.failed; rank++) {
		if (!all && rank == LISTED_EDGE) {
			ctl_put(&r->out, "  …\n");
			rank = r->world - LISTED_EDGE;
		}
		put_rank(r, rank, micro_batch);
	}
}

/* The number of batches that each rank still gets, padded ones included. */
static uint64_t batches(const struct cursor *c, uint64_t global)
{
	uint64_t left = cursor_end(c) - c->next;

	assert(global > 0); /* request_answered() has checked it */
	return left / global + (left % global != 0);
}

static void put_steps(struct request *r, uint64_t before, uint64_t after)
{
	const char *change =
		before == after	      ? "unchanged"
		: after % before == 0 ? "a multiple of the old one"
		: before % after == 0
			? "a divisor of the old one"
			: "neither a multiple nor a divisor of the old one, so steps no "
			  "longer end at the same positions";
	char line[300];

	snprintf(line, sizeof(line), "global batch %" PRIu64 " -> %" PRIu64 ": %s\n", before, after,
		change);
	ctl_put(&r->out, line);
	if (cursor_end(&r->cursor) != UINT64_MAX) {
		snprintf(line, sizeof(line),
			"until the end at position %" PRIu64 ": %" PRIu64
			" batches per old rank, %" PRIu64 " per new rank\n",
			cursor_end(&r->cursor), batches(&r->cursor, before),
			batches(&r->cursor, after));
		ctl_put(&r->out, line);
	}
}

static void put_rescale(struct request *r)
{
	uint64_t micro_batch = r->micro_batch ? r->micro_batch : r->micro_batch_before;
	uint64_t before = r->world_before * r->micro_batch_before, after = r->world * micro_batch;
	char line[200];

	if (!r->json) {
		snprintf(line, sizeof(line),
			"world %" PRIu64 " -> %" PRIu64 ", micro-batch %" PRIu64 " -> %" PRIu64
			": the next job begins at position %" PRIu64 "\n",
			r->world_before, r->world, r->micro_batch_before, micro_batch,
			r->cursor.next);
		ctl_put(&r->out, line);
		put_ranks(r, micro_batch);
		put_steps(r, before, after);
		return;
	}
	const struct {
		const char *key;
		uint64_t value;
	} pairs[] = {{"world_before", r->world_before}, {"micro_before", r->micro_batch_before},
		{"global_before", before}, {"world", r->world}, {"micro", micro_batch},
		{"global", after}};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		ctl_put(&r->out, ",");
		ctl_put_pair(&r->out, pairs[i].key, pairs[i].value);
	}
	if (cursor_end(&r->cursor) != UINT64_MAX) {
		ctl_put(&r->out, ",");
		ctl_put_pair(&r->out, "batches_before", batches(&r->cursor, before));
		ctl_put(&r->out, ",");
		ctl_put_pair(&r->out, "batches", batches(&r->cursor, after));
	}
	ctl_put(&r->out, ",\"ranks\":[");
	put_ranks(r, micro_batch);
	ctl_put(&r->out, "]");
}

/* The mix at @position. */
static const struct order_segment *mix_at(const struct cursor *c, uint64_t position)
{
	uint32_t i = 0;

	while (i + 1 < c->segments && c->segment[i + 1]->start <= position)
		i++;
	return c->segment[i];
}

/* Each dataset's share before and after. */
static void put_mix(struct request *r)
{
	const struct order_segment *before =
					   mix_at(r->has_before ? &r->before : &r->cursor, r->from),
				   *after = mix_at(&r->cursor, r->acts_from);

	for (uint32_t d = 0; r->has_acts_from && d < r->cursor.datasets; d++) {
		char line[160];

		if (!r->json) {
			ctl_put(&r->out, "  ");
			ctl_put_left(&r->out, r->cursor.dataset[d].name, 0);
			snprintf(line, sizeof(line), " %s -> %s\n", ctl_share(before, d).text,
				ctl_share(after, d).text);
			ctl_put(&r->out, line);
			continue;
		}
		ctl_put(&r->out, d ? ",{\"dataset\":" : "{\"dataset\":");
		ctl_put_string(&r->out, r->cursor.dataset[d].name);
		snprintf(line, sizeof(line), ",\"before\":%.9g,\"after\":%.9g}",
			ctl_fraction(before, d), ctl_fraction(after, d));
		ctl_put(&r->out, line);
	}
}

static void put_optional(struct request *r, const char *key, uint64_t value, bool there)
{
	ctl_put(&r->out, ",");
	if (there) {
		ctl_put_pair(&r->out, key, value);
		return;
	}
	ctl_put(&r->out, "\"");
	ctl_put(&r->out, key);
	ctl_put(&r->out, "\":null");
}

static void put_result_json(struct request *r)
{
	struct ctl_out *out = &r->out;

	ctl_put(out, "{");
	ctl_put_pair(out, "request", r->number);
	ctl_put(out, ",\"kind\":");
	ctl_put_string(out, r->kind);
	ctl_put(out, ",\"stream\":");
	ctl_put_string(out, r->stream);
	ctl_put(out, ",\"run\":");
	ctl_put_string(out, r->run_name);
	ctl_put(out, ",");
	ctl_put_pair(out, "sessions", r->participants);
	put_optional(r, "position", r->cursor.next, true);
	if (strcmp(r->kind, "mix") == 0 || strcmp(r->kind, "skip") == 0) {
		put_optional(r, "from", r->from, r->has_acts_from);
		put_optional(r, "acts_from", r->acts_from, r->has_acts_from);
		if (strcmp(r->kind, "mix") == 0) {
			ctl_put(out, ",\"mix\":[");
			put_mix(r);
			ctl_put(out, "]");
		}
	} else {
		ctl_put(out, ",\"tag\":");
		if (r->tag)
			ctl_put_string(out, r->tag);
		else
			ctl_put(out, "null");
	}
	if (r->world)
		put_rescale(r);
	ctl_put(out, "}\n");
}

static void put_result(struct request *r)
{
	bool mix = strcmp(r->kind, "mix") == 0, skip = strcmp(r->kind, "skip") == 0;
	char line[300];

	if ((mix || skip) && !r->has_acts_from)
		snprintf(line, sizeof(line), "%s: done, the run is at position %" PRIu64 "\n",
			r->kind, r->cursor.next);
	else if (mix)
		snprintf(line, sizeof(line),
			"the new mix begins at position %" PRIu64 "; the run is at %" PRIu64 "\n",
			r->acts_from, r->from);
	else if (skip)
		snprintf(line, sizeof(line), "skipped from position %" PRIu64 " to %" PRIu64 "\n",
			r->from, r->acts_from);
	else
		snprintf(line, sizeof(line), "saved at position %" PRIu64 "%s%s\n", r->cursor.next,
			r->tag ? ", tag " : "", r->tag ? r->tag : "");
	ctl_put(&r->out, line);
	if (mix)
		put_mix(r);
	if (r->world)
		put_rescale(r);
}

int request_conclude(struct request *r)
{
	char names[REQUEST_NAMES_BYTES], one[160];
	bool differ = false;

	for (size_t i = 0; i < r->participants; i++) {
		const struct participant *a = &r->participant[i];

		if (a->outcome == WIRE_FAILED)
			return ctl_fail("%s: %s", participant_name(a, one, sizeof(one)), a->text);
		differ |= a->outcome == WIRE_DONE && !a->same;
	}
	if (participants_name(r, 1 << WIRE_GONE, names, sizeof(names)))
		return ctl_fail("%s ended without an answer; the job's next checkpoint shows "
				"whether the request was carried out",
			names);
	if (!r->has_cursor)
		return ctl_fail("the job reported success without a position");
	if (differ) {
		size_t length = 0, n = 0;

		for (size_t i = 0; i < r->participants; i++)
			if (!r->participant[i].same && n++ < REQUEST_NAMED)
				length += (size_t)snprintf(names + length, sizeof(names) - length,
					"%s%s", n > 1 ? ", " : "",
					participant_name(&r->participant[i], one, sizeof(one)));
		return ctl_fail(
			"the ranks are not at the same position: the cursors of %s%s differ from "
			"the first one received, at position %" PRIu64,
			names, n > REQUEST_NAMED ? " and others" : "", r->cursor.next);
	}
	(r->json ? put_result_json : put_result)(r);
	return ctl_finish(&r->out, CTL_OK);
}
