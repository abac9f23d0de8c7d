/* The proof: the rows of a range of positions, compared with the order and with the shards. */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/shard/format.h"
#include "proto/phrases.h"

#include <endian.h>
#include <stdlib.h>

struct row {
	const struct record_section *section;
	uint64_t position, checksum;
	struct order_place place;
};

struct work {
	struct proof *p;
	struct ctl_windows *reader;
	size_t bytes; /* of a window */
	void *other;  /* of one window, in the other width */
};

static void add_finding(struct proof *p, enum finding_kind kind, struct finding fault)
{
	p->found[kind] += fault.count;
	if (p->shown[kind] < PROOF_SHOWN)
		p->finding[kind][p->shown[kind]++] = fault;
}

/* ---- rows ---- */

/* Are the row's tokens those of the order? */
static bool has_tokens(const struct work *w, const struct row *row, const void *tokens)
{
	if (record_checksum(row->position, tokens, w->bytes) == row->checksum)
		return true;
	/* The stream may have had another width when the row was taken. */
	uint32_t width = w->p->records->s->stream->token_bytes, other = width == 2 ? 4 : 2;
	uint64_t n = w->bytes / width;

	return convert_tokens(width == 2 ? SHARD_U16 : SHARD_U32, other, tokens, n, w->other) &&
	       record_checksum(row->position, w->other, n * other) == row->checksum;
}

/* False: the position was already taken. */
static bool take(struct proof *p, uint64_t position)
{
	uint64_t i = position - p->from, bit = UINT64_C(1) << i % 64;

	if (p->taken[i / 64] & bit)
		return false;
	p->taken[i / 64] |= bit;
	return true;
}

static const struct record_order *order_of(const struct proof *p, const struct record_section *s)
{
	return &p->records->order[s->order];
}

/* Is the row the one that the order in force has there? */
static bool in_force(struct proof *p, const struct row *row)
{
	const struct record_force *force = records_in_force(p->peer, row->position);
	const struct record_order *own = order_of(p, row->section),
				  *right = &p->records->order[force->order];
	struct order_place place;

	if (own == right)
		return true;
	if (order_at(&right->order, row->position, &place) && place.epoch == row->place.epoch &&
		place.window == row->place.window &&
		right->name[place.dataset] == own->name[row->place.dataset])
		return true;
	if (!p->files[0] || row->position < p->differ_at) {
		p->files[0] = p->records->file[row->section->file].path;
		p->files[1] = p->records->file[force->file].path;
		p->differ_at = row->position;
	}
	return false;
}

static void count_served(
	struct proof *p, const struct record_order *order, const struct order_place *place)
{
	struct proof_served *served = &p->served[order->name[place->dataset]];

	served->samples++;
	if (place->epoch >= served->epochs)
		served->epochs = place->epoch + 1;
}

static bool is_past(const struct record_order *o, const struct row *row)
{
	return o->order.end && row->position >= o->order.end;
}

/* A row that counts: of the range, or past the end of the stream. @tokens: NULL if the order does
 * not have it. */
static bool judge_row(void *context, const void *item, const void *tokens)
{
	const struct row *row = item;
	struct work *w = context;
	struct proof *p = w->p;
	const struct record_order *order = order_of(p, row->section);
	const struct finding here = {row->position, 1, row->section->file};

	if (is_past(order, row)) {
		add_finding(p, ALTERED, here);
		return true;
	}
	if (!take(p, row->position)) {
		add_finding(p, REPEATED, here);
	} else {
		p->samples++;
		p->sum += row->checksum;
		if (tokens)
			count_served(p, order, &row->place);
	}
	if (!tokens || !has_tokens(w, row, tokens) || !in_force(p, row))
		add_finding(p, ALTERED, here);
	return true;
}

static bool see_row(struct work *w, struct row *row)
{
	struct proof *p = w->p;
	const struct record_order *order = order_of(p, row->section);
	struct ctl_window window = {.cursor = &order->cursor};

	if (row->position >= row->section->limit) {
		p->voided++;
		return true;
	}
	if (!is_past(order, row) && (row->position < p->from || row->position >= p->to)) {
		p->outside++;
		return true;
	}
	/* Also past the end: findings stay in order. */
	if (!order_at(&order->order, row->position, &row->place))
		return ctl_windows_add(w->reader, row, NULL);
	window.dataset = order->map[row->place.dataset];
	window.place = row->place;
	return ctl_windows_add(w->reader, row, &window);
}

static bool see_section(struct work *w, const struct record_section *s)
{
	const char *path = w->p->records->file[s->file].path;
	size_t bytes;
	const uint64_t(*entry)[2] = ctl_map(path, &bytes);
	bool done = entry;

	if (entry && bytes / RECORD_ENTRY_BYTES < s->entry + s->rows)
		done = ctl_error("%s: was truncated while it was read", path);
	for (uint64_t i = s->entry; done && i < s->entry + s->rows; i++)
		done = see_row(w, &(struct row){.section = s,
					  .position = le64toh(entry[i][0]),
					  .checksum = le64toh(entry[i][1])});
	if (entry)
		ctl_unmap(entry, bytes);
	return done;
}

static bool see_rows(struct work *w)
{
	const struct record_peer *peer = w->p->peer;

	for (size_t i = 0; i < peer->sections; i++)
		if (!see_section(w, &peer->section[i]))
			return false;
	return ctl_windows_flush(w->reader);
}

/* ---- missing positions ---- */

static int by_from(const void *a, const void *b)
{
	const struct stretch *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

static bool is_taken(const struct proof *p, uint64_t position)
{
	uint64_t i = position - p->from;

	return p->taken[i / 64] >> i % 64 & 1;
}

/* The first position from @at on that is taken, or not; p->to if there is none. */
static uint64_t find(const struct proof *p, uint64_t at, bool taken)
{
	while (at < p->to && is_taken(p, at) != taken) {
		uint64_t i = at - p->from, word = p->taken[i / 64];

		if (i % 64 == 0 && word == (taken ? 0 : UINT64_MAX)) /* none of these 64 */
			at = p->to - at > 64 ? at + 64 : p->to;
		else
			at++;
	}
	return at;
}

/* Finds the ranges that were skipped by request, except those in which a row was taken and those
 * that a restart went back to. */
static void find_skips(struct proof *p)
{
	size_t n = 0;

	for (size_t i = 0; i < p->peer->sections; i++) {
		const struct record_section *s = &p->peer->section[i];
		uint64_t to = s->begin.position < s->limit ? s->begin.position : s->limit;
		struct stretch one = {
			s->begin.left > p->from ? s->begin.left : p->from, to < p->to ? to : p->to};

		if (one.from < one.to &&
			find(p, one.from, true) >=
				one.to) /* otherwise the ranks did not all skip it at one step */
			p->skip[n++] = one;
	}
	qsort(p->skip, n, sizeof(*p->skip), by_from);
	for (size_t i = 0; i < n; i++)
		if (p->skips == 0 || p->skip[i].from > p->skip[p->skips - 1].to)
			p->skip[p->skips++] = p->skip[i];
		else if (p->skip[i].to > p->skip[p->skips - 1].to)
			p->skip[p->skips - 1].to = p->skip[i].to;
}

/* Counts the missing positions: as skipped by request, otherwise as lost. */
static void count_gaps(struct proof *p)
{
	find_skips(p);
	for (size_t i = 0; i < p->skips; i++) {
		p->skipped += p->skip[i].to - p->skip[i].from;
		for (uint64_t at = p->skip[i].from; at < p->skip[i].to; at++)
			take(p, at);
	}
	for (uint64_t at = find(p, p->from, false); at < p->to;) {
		uint64_t to = find(p, at, true);

		add_finding(p, LOST, (struct finding){at, to - at, 0});
		at = find(p, to, false);
	}
}

/* ---- all of it ---- */

static bool prove(struct work *w)
{
	struct proof *p = w->p;
	const struct stream *stream = p->records->s->stream;
	size_t tokens = stream->begin.seq_len + stream->begin.extra;

	w->bytes = tokens * stream->token_bytes;
	w->other = malloc(tokens * sizeof(uint32_t));
	p->taken = calloc((p->to - p->from + 63) / 64, sizeof(*p->taken));
	p->served = calloc(p->records->datasets, sizeof(*p->served));
	p->skip = calloc(p->peer->sections, sizeof(*p->skip));
	if (!w->other || !p->taken || !p->served || !p->skip)
		return ctl_error(PHRASE_MEMORY);
	w->reader = ctl_windows_open(p->records->s, sizeof(struct row), judge_row, w);
	if (!w->reader || !see_rows(w))
		return false;
	count_gaps(p);
	return true;
}

bool proof_run(struct proof *p)
{
	struct work w = {.p = p};
	bool done = prove(&w);

	ctl_windows_close(w.reader);
	free(w.other);
	return done;
}

void proof_free(struct proof *p)
{
	free(p->taken);
	free(p->served);
	free(p->skip);
}
