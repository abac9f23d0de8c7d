#include "daemon/control/gauges.h"

#include "daemon/control/control.h"

static void add_session(struct stream_gauges *g, const struct session *s, uint64_t now_ms)
{
	struct feed_counters c = feed_counters(s->feed);
	uint64_t ready = c.published - c.released,
		 full_ms = s->full_since_ms ? now_ms - s->full_since_ms : 0;
	char text[LIMIT_TEXT_BYTES];
	unsigned wait_s = store_report_wait(&s->control->stores, s->id, text, sizeof(text));

	g->least_ready = g->sessions == 0 || ready < g->least_ready ? ready : g->least_ready;
	g->sessions++;
	g->waiting += c.waits;
	g->slots += s->slots;
	g->ready += ready;
	g->published += c.published;
	g->released += c.released;
	g->lost_wakes += c.lost_wakes;
	g->full_ms = full_ms > g->full_ms ? full_ms : g->full_ms;
	g->store_wait_s = wait_s > g->store_wait_s ? wait_s : g->store_wait_s;
}

struct stream_gauges gauges_update(struct control *control)
{
	struct stream_gauges all = {0};
	struct stream_counts *counts;
	uint64_t now = uv_now(control->loop);

	SLIST_FOREACH(counts, &control->counts.streams, next)
	counts->now = (struct stream_gauges){0};
	for (uint32_t id = 0; id < LIMIT_SESSIONS; id++) {
		const struct session *s = control->sessions.of[id];

		if (!session_is_live(s))
			continue;
		add_session(&s->stream->counts->now, s, now);
		add_session(&all, s, now);
	}
	return all;
}
