#include "daemon/control/rehearsal.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 1000 };

/* A window, and memory for it. */
struct row {
	const struct dataset *dataset;
	uint64_t shard, offset;
};

struct buffers {
	void *tokens;
	uint32_t count, *start;
	uint8_t *loss_mask;
};

static bool buffers_new(struct buffers *b, const struct stream *s)
{
	uint64_t window = s->config->seq_len + s->config->extra;

	*b = (struct buffers){.tokens = calloc(window, s->token_bytes),
		.start = calloc(window, sizeof(*b->start)),
		.loss_mask = calloc(window, 1)};
	return b->tokens && b->start && b->loss_mask;
}

static void buffers_free(struct buffers *b)
{
	free(b->tokens);
	free(b->start);
	free(b->loss_mask);
}

/* Reads one row and waits for it. */
static bool read_row(const struct stream *s, struct reader *reader, const struct row *row,
	struct buffers *b, struct fault *fault)
{
	struct reader_done done;
	char path[PATH_MAX + 1];

	reader_queue(
		reader, &(struct reader_read){
				.stream = s->slot,
				.dataset = row->dataset,
				.shard = row->shard,
				.token = row->offset,
				.tokens = s->config->seq_len + s->config->extra,
				.to = b->tokens,
				.annotations = {.count = s->config->documents ? &b->count : NULL,
					.start = s->config->documents ? b->start : NULL,
					.loss_mask = s->config->loss_mask ? b->loss_mask : NULL},
			});
	reader_commit(reader);
	while (reader_reap(reader, &done, 1, WAIT_MS) == 0)
		continue;
	if (!done.fault)
		return true;
	*fault = *done.fault;
	dataset_shard_path(row->dataset, row->shard, path, sizeof(path));
	if (strncmp(fault->text, path, strlen(path)) == 0) /* a store's faults begin with it */
		return false;
	return fault_prefix(fault, "%s: token %" PRIu64 ": ", path, row->offset);
}

static void look_at(const struct stream *s, const struct buffers *b, struct rehearsal *out)
{
	uint64_t n = s->config->seq_len + s->config->extra;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t token = s->token_bytes == 2 ? ((const uint16_t *)b->tokens)[i]
						     : ((const uint32_t *)b->tokens)[i];

		out->least = token < out->least ? token : out->least;
		out->most = token > out->most ? token : out->most;
	}
	out->rows++;
}

/* The window @place of the order. */
static struct row row_at(const struct stream *s, const struct order_place *place)
{
	const struct dataset *d = &s->dataset[place->dataset];
	struct row row = {.dataset = d};

	assert(place->window < d->table.windows);
	table_locate(&d->table, &s->begin.order[place->dataset], s->begin.seed, place->epoch,
		place->window, &row.shard, &row.offset);
	return row;
}

bool rehearse(
	const struct stream *s, struct reader *reader, struct rehearsal *out, struct fault *fault)
{
	struct order order = cursor_order(&s->begin);
	bool *seen = calloc(s->config->datasets, sizeof(*seen));
	struct buffers buffers;
	bool fine = buffers_new(&buffers, s) && seen;

	*out = (struct rehearsal){.least = UINT32_MAX};
	if (!fine)
		fault_memory(fault);
	for (uint64_t at = 0; fine && at < REHEARSAL_ROWS + s->config->datasets; at++) {
		struct order_place place = {.dataset = (uint32_t)(at - REHEARSAL_ROWS)};
		bool any = at < REHEARSAL_ROWS ? order_at(&order, at, &place)
					       : !seen[place.dataset] &&
							 order.dataset[place.dataset].windows > 0;

		if (!any || (seen[place.dataset] && s->dataset[place.dataset].objects))
			continue;

		if (at >= REHEARSAL_ROWS)
			place.window =
				order_window(&order.dataset[place.dataset], order.seed, 0, 0);

		struct row row = row_at(s, &place);

		seen[place.dataset] = true;
		fine = read_row(s, reader, &row, &buffers, fault);
		if (fine)
			look_at(s, &buffers, out);
		else
			out->dataset = row.dataset;
	}
	buffers_free(&buffers);
	free(seen);
	return fine;
}
