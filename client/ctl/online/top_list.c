#include "client/ctl/online/top_list.h"

#include "client/ctl/online/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void push(struct top_rates *r, double rate)
{
	memmove(r->of, r->of + 1, (TOP_HISTORY - 1) * sizeof(r->of[0]));
	r->of[TOP_HISTORY - 1] = (float)rate;
	if (r->n < TOP_HISTORY)
		r->n++;
}

void top_list_begin(struct top_list *l, uint64_t now_ms)
{
	l->now_ms = now_ms;
	l->update++;
	l->founds = 0;
	l->rate = 0;
}

/* Tokens per second since the status before. */
static double rate(
	const struct top_row *row, const json_t *session, uint64_t released, uint64_t now_ms)
{
	if (row->ms == 0 || released < row->released || now_ms <= row->ms)
		return 0;
	return (double)(released - row->released) * (double)status_number(session, "micro") *
	       (double)status_number(session, "seq_len") * 1000 / (double)(now_ms - row->ms);
}

void top_list_add(struct top_list *l, const json_t *session)
{
	uint64_t id = status_number(session, "session"), pid = status_number(session, "pid"),
		 released = status_number(session, "released");

	if (id >= LIMIT_SESSIONS)
		return;

	struct top_row *row = &l->row[id];

	/* With another pid, or with fewer batches released, it is another session. */
	if (row->pid != pid || released < row->released)
		*row = (struct top_row){0};

	bool again = row->update == l->update;

	row->rate = rate(row, session, released, l->now_ms);
	row->pid = pid;
	row->rank = status_number(session, "rank");
	row->world = status_number(session, "world");
	row->position = status_number(session, "position");
	row->released = released;
	row->ready = status_number(session, "ready");
	row->slots = status_number(session, "slots");
	row->full_ms = status_number(session, "full_ms");
	row->store_ms = status_number(session, "store_wait_ms");
	row->request = status_number(session, "request") != 0;
	row->ms = l->now_ms;
	row->update = l->update;
	snprintf(row->stream, sizeof(row->stream), "%s", status_text(session, "stream"));
	snprintf(row->run, sizeof(row->run), "%s", status_text(session, "run"));
	if (!again)
		l->found[l->founds++] = (uint32_t)id;
	l->rate += row->rate;
	push(&row->rates, row->rate);
}

void top_list_end(struct top_list *l)
{
	memcpy(l->order, l->found, l->founds * sizeof(l->order[0]));
	l->n = l->founds;
	push(&l->rates, l->rate);
}

void top_list_pause(struct top_list *l)
{
	for (unsigned i = 0; i < l->n; i++) {
		struct top_row *row = &l->row[l->order[i]];

		row->rate = 0;
		push(&row->rates, 0);
	}
	l->rate = 0;
	push(&l->rates, 0);
}

static int by_number(double a, double b)
{
	return (a > b) - (a < b);
}

static int by_column(const struct top_row *a, const struct top_row *b, enum top_column by)
{
	switch (by) {
	case TOP_STREAM:
		return strcmp(a->stream, b->stream);
	case TOP_RUN:
		return strcmp(a->run, b->run);
	case TOP_RANK:
		return by_number((double)a->rank, (double)b->rank);
	case TOP_POSITION:
		return by_number((double)a->position, (double)b->position);
	case TOP_RATE:
		return by_number(a->rate, b->rate);
	case TOP_READY:
		return by_number((double)a->ready, (double)b->ready);
	default: /* those whose trainer waits come first, then those that have been full longest */
		return (a->ready == 0) != (b->ready == 0)
			       ? (a->ready == 0) - (b->ready == 0)
			       : by_number((double)a->full_ms, (double)b->full_ms);
	}
}

struct sorting {
	const struct top_row *row;
	enum top_column by;
	bool descending;
};

static int compare(const void *a, const void *b, void *context)
{
	const struct sorting *s = context;
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	int order = by_column(&s->row[i], &s->row[j], s->by);

	if (order == 0)
		return (i > j) - (i < j);
	return s->descending ? -order : order;
}

void top_list_sort(struct top_list *l, enum top_column by, bool descending)
{
	struct sorting s = {l->row, by, descending};

	qsort_r(l->order, l->n, sizeof(l->order[0]), compare, &s);
}
