/* Feeds as the engine plans them, one at a time, on a ring in plain memory. */
#include "tests/prove/prove.h"

#include "daemon/engine/feed.h"

struct prove_feeds {
	const struct prove *p;
	struct ring ring;
	void *meta, *data;
	uint32_t datasets;
	struct table *table;	    /* [datasets] of one shard each */
	uint64_t *tokens, *first;   /* [datasets], [2 × datasets] */
	struct feed_source *source; /* [datasets] */
};

struct prove_feeds *prove_feeds_new(
	const struct prove *p, const struct cursor *cursor, uint32_t micro_batch)
{
	struct prove_feeds *f = prove_memory(p, 1, sizeof(*f));
	struct ring_geometry g;
	struct fault fault;

	f->p = p;
	f->datasets = cursor->datasets;
	f->table = prove_memory(p, f->datasets, sizeof(*f->table));
	f->tokens = prove_memory(p, f->datasets, sizeof(*f->tokens));
	f->first = prove_memory(p, f->datasets, 2 * sizeof(*f->first));
	f->source = prove_memory(p, f->datasets, sizeof(*f->source));
	for (uint32_t d = 0; d < f->datasets; d++) {
		f->table[d] = (struct table){.window_tokens = 1,
			.stride = 1,
			.shards = 1,
			.tokens = &f->tokens[d],
			.first_window = &f->first[2 * d]};
		f->tokens[d] = order_path_windows(&cursor->order[d]);
		table_number(&f->table[d]);
		f->source[d].table = &f->table[d];
	}
	PROVE(p, ring_geometry(&g, PROVE_SLOTS, micro_batch, 1, 2, 0, &fault), "%s", fault.text);
	f->meta = aligned_alloc(RING_PAGE, g.meta_bytes);
	f->data = aligned_alloc(RING_PAGE, g.data_bytes);
	PROVE(p, f->meta && f->data, "memory");
	memset(f->meta, 0, g.meta_bytes);
	memset(f->data, 0, g.data_bytes);
	ring_format(&f->ring, &g, f->meta, f->data);
	return f;
}

void prove_feeds_free(struct prove_feeds *f)
{
	free(f->meta);
	free(f->data);
	free(f->table);
	free(f->tokens);
	free(f->first);
	free(f->source);
	free(f);
}

/* Reports the rows of slot @s to @seen. */
static void report_slot(
	struct prove_feeds *f, const struct feed *feed, uint64_t s, prove_row *seen, void *context)
{
	const struct ring_slot *slot = ring_slot(&f->ring, s);
	const struct ring_row *rows = ring_rows(&f->ring, s);

	for (uint32_t r = 0; r < f->ring.geometry.rows; r++) {
		bool valid = r < slot->rows_valid;
		struct order_place place = {.dataset = rows[r].dataset,
			.epoch = rows[r].epoch,
			.window = rows[r].window};

		PROVE(f->p, valid == (rows[r].position != RING_PADDING),
			"row %u of slot %" PRIu64 " of rank %" PRIu64 ": rows_valid is %u", r, s,
			feed->options.rank, slot->rows_valid);
		PROVE(f->p, !valid || rows[r].position == slot->position + r,
			"row %u of slot %" PRIu64 " of rank %" PRIu64 " is at %" PRIu64
			", its slot at %" PRIu64,
			r, s, feed->options.rank, rows[r].position, slot->position);
		PROVE(f->p, !valid || rows[r].offset == rows[r].window, "the table moved a window");
		seen(context, feed->options.rank, s, r, rows[r].position, valid ? &place : NULL);
	}
}

uint64_t prove_feed(struct prove_feeds *f, const struct cursor *cursor, uint64_t rank,
	uint64_t world, uint64_t batches, prove_row *seen, void *context)
{
	struct feed_options options = {
		.rank = rank, .world = world, .ring = f->ring, .source = f->source};
	struct feed *feed = feed_new(cursor, &options);
	struct engine_action read;
	uint64_t planned;

	PROVE(f->p, feed && cursor->datasets == f->datasets && batches <= PROVE_SLOTS, "memory");
	while (feed->planned < batches && feed_room(feed) == FEED_ROOM) {
		if (feed_plan(feed, &read)) { /* as if read at once */
			feed->reading--;
			feed->left[(uint32_t)read.tag / f->ring.geometry.rows]--;
		}
		feed_publish(feed);
	}
	planned = feed->planned;
	PROVE(f->p, planned == batches || feed_room(feed) == FEED_ENDED,
		"rank %" PRIu64 " stops after %" PRIu64 " micro-batches", rank, planned);
	for (uint64_t s = 0; s < planned; s++)
		report_slot(f, feed, s, seen, context);
	feed_free(feed);
	return planned;
}
