#include "client/lib/slow.h"

#include "client/lib/map.h"
#include "client/lib/wait.h"

#include <inttypes.h>
#include <stdio.h>

/* If every batch is slow, one line a minute is enough. */
#define QUIET_NS (60 * INT64_C(1000000000))

void slow_begin(const struct tokend *t, struct warnings *w)
{
	bool said = w->said;

	warn_begin(w, wait_now());
	w->said = said;
	if (t->slowed && w->since - t->slowed < QUIET_NS)
		w->next = 1;
}

/*
 * Writes which shard the daemon reads for the next slot, from the rows that it has planned. It
 * writes them meanwhile, so a row counts only if it has the position that belongs there.
 */
static void name_shards(const struct tokend *t, uint64_t due, char *text, size_t bytes)
{
	const struct mapping *m = t->mapping;
	const volatile struct ring_row *row = ring_rows(&m->ring, m->queue.taken);
	const char *name = NULL;
	uint32_t dataset = 0, shard = 0, others = 0;

	for (uint32_t r = 0; r < m->ring.geometry.rows; r++) {
		uint32_t d = row[r].dataset, s = row[r].shard; /* read once */

		if (row[r].position != due + r || d >= t->origin.datasets)
			continue;
		if (name) {
			others += d != dataset || s != shard;
			continue;
		}
		dataset = d;
		shard = s;
		name = t->origin.dataset[d].name;
	}
	if (!name)
		snprintf(text, bytes, "has not begun to read it, so it hangs or is overloaded");
	else
		snprintf(text, bytes,
			"reads shard %" PRIu32 " of dataset %s%s, so storage is slow or it hangs",
			shard, name, others ? " and others" : "");
}

int slow_warn(struct tokend *t, struct warnings *w)
{
	uint64_t due = t->taken + t->rank * t->micro_batch;
	char doing[LIMIT_NAME_BYTES + 96], reason[RING_REASON_BYTES];

	if (!warn_due(w) || release_queue_full(&t->mapping->queue))
		return 0;
	if (ring_reason(&t->mapping->ring, reason))
		return warn_say(t, w, "stream %s: waiting %" PRId64 " s for %s", t->stream,
			warn_waited(w), reason);
	name_shards(t, due, doing, sizeof(doing));
	return warn_say(t, w,
		"stream %s: waiting for position %" PRIu64 " since %" PRId64
		" s: the daemon at %s %s; see tokctl status",
		t->stream, due, warn_waited(w), t->socket, doing);
}

int64_t slow_until(const struct tokend *t, const struct warnings *w)
{
	return w->since + t->max_wait_ns;
}

int slow_limit(struct tokend *t, const struct warnings *w)
{
	char doing[LIMIT_NAME_BYTES + 96], reason[RING_REASON_BYTES];
	int64_t now = wait_now();

	if (now < slow_until(t, w) || release_queue_full(&t->mapping->queue))
		return 0;
	if (w->said)
		t->slowed = now;

	double limit = (double)t->max_wait_ns / 1e9;

	if (ring_reason(&t->mapping->ring, reason))
		return handle_fail(t, TOKEND_EWAIT, "max_wait",
			"stream %s: no batch within %g s, waiting for %s; call next() again",
			t->stream, limit, reason);
	name_shards(t, t->taken + t->rank * t->micro_batch, doing, sizeof(doing));
	return handle_fail(t, TOKEND_EWAIT, "max_wait",
		"stream %s: no batch within %g s: the daemon at %s %s; see tokctl status, and call "
		"next() again",
		t->stream, limit, t->socket, doing);
}

int slow_over(struct tokend *t, struct warnings *w)
{
	if (w->said)
		t->slowed = wait_now();
	return warn_over(t, w);
}
