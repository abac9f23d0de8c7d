/* A run as operators handle it: mixes, new and removed datasets, schedules, skips, rewinds,
 * restarts. */
#include "tests/prove/prove.h"

enum { DATASETS = 64 };

#define ACCEPTED(chain, ok, fault) PROVE((chain)->p, ok, "%s: %s", (fault).field, (fault).text)

static void check_at(const struct prove_chain *c, uint64_t next)
{
	PROVE(c->p, c->cursor.next == next, "at %" PRIu64 " instead of %" PRIu64, c->cursor.next,
		next);
}

void prove_chain_move(struct prove_chain *c, uint64_t next)
{
	struct fault fault;

	ACCEPTED(c, cursor_seek(&c->cursor, next, &fault), fault);
	check_at(c, next);
}

void prove_chain_save(struct prove_chain *c)
{
	uint8_t bytes[LIMIT_CURSOR_BYTES];
	size_t n = cursor_encode(&c->cursor, bytes, sizeof(bytes));

	PROVE(c->p, n > 0, "the cursor does not fit");
	if (c->saves == PROVE_SAVED) {
		free(c->saved[0].bytes);
		memmove(c->saved, c->saved + 1, --c->saves * sizeof(c->saved[0]));
	}
	c->saved[c->saves].bytes = prove_memory(c->p, n, 1);
	memcpy(c->saved[c->saves].bytes, bytes, n);
	c->saved[c->saves].n = n;
	c->saved[c->saves++].next = c->cursor.next;
}

/* Segment @now serves [now->start, then->start). Each dataset's count is within ⌈log2 D⌉ samples of
 * its share, half of that in the first segment; D counts the padded list. */
static void check_counts(const struct prove_chain *c, const struct order_segment *now,
	const struct order_segment *then)
{
	uint64_t length = then->start - now->start, whole = now->prefix[now->padded], sum = 0;
	unsigned bits = 0;

	while (now->padded >> bits > 1)
		bits++;
	for (uint32_t d = 0; d < now->datasets; d++) {
		uint64_t n = then->base[d] - now->base[d];
		unsigned __int128 served = (unsigned __int128)n * whole,
				  share = (unsigned __int128)length * now->units[d],
				  off = served > share ? served - share : share - served;

		PROVE(c->p,
			n <= length &&
				(now->start > 0 ? off : 2 * off) <= (unsigned __int128)bits * whole,
			"dataset %u of %u has %" PRIu64 " of %" PRIu64 " samples from %" PRIu64
			" on, with %" PRIu64 " of %" PRIu64 " units",
			d, now->datasets, n, length, now->start, now->units[d], whole);
		PROVE(c->p, now->units[d] > 0 || n == 0, "dataset %u has no weight", d);
		sum += then->base[d];
	}
	PROVE(c->p, sum == then->start, "%" PRIu64 " samples before %" PRIu64, sum, then->start);
}

/* ---- edits ---- */

static bool mix(struct prove_chain *c, uint64_t at, struct fault *fault)
{
	double weights[LIMIT_DATASETS];
	bool ok;

	prove_weights(&c->p->rng, &c->cursor, weights);
	ok = cursor_mix(&c->cursor, at, weights, fault);
	PROVE(c->p, ok || c->cursor.epochs || c->limited, "%s: %s", fault->field, fault->text);
	PROVE(c->p, !ok || !c->cursor.epochs, "a mix of a stream with epochs");
	for (uint32_t i = 1; ok && i < c->cursor.segments; i++)
		check_counts(c, c->cursor.segment[i - 1], c->cursor.segment[i]);
	return ok;
}

static bool mix_soon(struct prove_chain *c, struct fault *fault)
{
	return mix(c, cursor_mix_at(&c->cursor), fault);
}

static bool mix_later(struct prove_chain *c, struct fault *fault)
{
	return mix(c, cursor_mix_at(&c->cursor) + LIMIT_BLOCK * rng_below(&c->p->rng, 4), fault);
}

static bool add(struct prove_chain *c, struct fault *fault)
{
	char name[16];
	struct cursor_source source = prove_source(&c->p->rng, c->names, c->windows, name);

	if (c->cursor.datasets >= DATASETS)
		return mix_soon(c, fault);

	bool ok = cursor_add(&c->cursor, &source, fault);

	PROVE(c->p, ok != (c->cursor.epochs > 0), "%s: %s", fault->field, fault->text);
	c->names += ok;
	return ok && mix(c, cursor_mix_at(&c->cursor), fault);
}

static bool take_away(struct prove_chain *c, struct fault *fault)
{
	uint32_t d = (uint32_t)rng_below(&c->p->rng, c->cursor.datasets);

	return cursor_remove(&c->cursor, d,
		cursor_mix_at(&c->cursor) + LIMIT_BLOCK * rng_below(&c->p->rng, 2), fault);
}

/* A step and a ramp. */
static bool schedule(struct prove_chain *c, struct fault *fault)
{
	double first[LIMIT_DATASETS], second[LIMIT_DATASETS];
	uint64_t at = cursor_mix_at(&c->cursor) + LIMIT_BLOCK * rng_below(&c->p->rng, 2);
	uint64_t from = at + LIMIT_BLOCK * (1 + rng_below(&c->p->rng, 2));
	uint32_t steps = 1 + (uint32_t)rng_below(&c->p->rng, 4);
	struct cursor_step step[] = {
		{at, at, 1, first}, {from, from + steps * LIMIT_BLOCK, steps, second}};

	prove_weights(&c->p->rng, &c->cursor, first);
	prove_weights(&c->p->rng, &c->cursor, second);

	bool ok = cursor_schedule(&c->cursor, NULL, step, 2, NULL, fault);

	bool beyond = from + steps * LIMIT_BLOCK >= cursor_end(&c->cursor);

	PROVE(c->p, ok || c->cursor.epochs || c->limited || beyond, "%s: %s", fault->field,
		fault->text);
	return ok;
}

static bool rewind_some(struct prove_chain *c, struct fault *fault)
{
	uint64_t start = c->cursor.segment[0]->start;
	uint64_t least = c->first > start ? c->first : start;
	uint64_t back = rng_below(&c->p->rng, c->cursor.next - least + 1), next;

	if (rng_below(&c->p->rng, 2))
		back %= 5000;
	next = c->cursor.next - back;
	ACCEPTED(c, cursor_rewind(&c->cursor, next, fault), *fault);
	check_at(c, next);
	while (c->saves > 0 && c->saved[c->saves - 1].next > next)
		free(c->saved[--c->saves].bytes);
	return true;
}

static bool restart(struct prove_chain *c, struct fault *fault)
{
	if (c->saves == 0)
		return rewind_some(c, fault);

	unsigned i = (unsigned)rng_below(&c->p->rng, c->saves);

	cursor_free(&c->cursor);
	ACCEPTED(c, cursor_decode(&c->cursor, c->saved[i].bytes, c->saved[i].n, fault), *fault);
	while (c->saves > i + 1)
		free(c->saved[--c->saves].bytes);
	check_at(c, c->saved[i].next);
	return true;
}

static bool skip(struct prove_chain *c, struct fault *fault)
{
	uint64_t most = cursor_end(&c->cursor) - c->cursor.next, n = prove_log(&c->p->rng, 14);
	uint64_t next = c->cursor.next + (n < most ? n : most);

	ACCEPTED(c, cursor_skip(&c->cursor, next - c->cursor.next, fault), *fault);
	check_at(c, next);
	return true;
}

void prove_chain_edit(struct prove_chain *c, bool back)
{
	static bool (*const edits[])(struct prove_chain *, struct fault *) = {
		mix_soon, mix_later, add, take_away, schedule, skip, rewind_some, restart};
	uint64_t edit = rng_below(&c->p->rng, back ? 8 : 6);
	uint64_t before = cursor_fingerprint(&c->cursor, 1, 1);
	uint32_t datasets = c->cursor.datasets;
	struct fault fault;

	/* Adding a dataset is two edits. If the second, a mix, fails, the first remains. */
	if (!edits[edit](c, &fault) && c->cursor.datasets == datasets)
		PROVE(c->p, cursor_fingerprint(&c->cursor, 1, 1) == before,
			"an edit failed (%s: %s) and changed the cursor", fault.field, fault.text);
	prove_bytes(c->p, &c->cursor);
	prove_remember(c->p, &c->history, &c->cursor);
}

/* ---- beginning and end ---- */

void prove_chain_begin(
	struct prove_chain *c, struct prove *p, const struct cursor *identity, uint64_t windows)
{
	struct cursor_source sources[DATASETS];
	char names[DATASETS][16];
	uint32_t most = rng_below(&p->rng, 8) == 0 ? DATASETS : 8;
	uint32_t n = 1 + (uint32_t)rng_below(&p->rng, most - 2);
	struct cursor whole = *identity;
	struct fault fault;

	*c = (struct prove_chain){.p = p, .windows = windows, .names = n};
	memcpy(whole.stream, "train", 6);
	whole.seed = rng_next(&p->rng);
	whole.seq_len = whole.stride = 1;
	for (uint32_t d = 0; d < n; d++) {
		sources[d] = prove_source(&p->rng, d, windows, names[d]);
		sources[d].weight = 1e-3 + (double)rng_below(&p->rng, 1000);
		/* The first dataset has no limit, so that one is always left. */
		if (d > 0 && !whole.epochs && rng_below(&p->rng, 6) == 0) {
			sources[d].max_epochs = 1 + rng_below(&p->rng, 20);
			c->limited = true;
		}
	}
	ACCEPTED(c, cursor_begin(&c->cursor, &whole, sources, n, NULL, 0, &fault), fault);
	prove_bytes(p, &c->cursor);
	prove_remember(p, &c->history, &c->cursor);
}

void prove_chain_free(struct prove_chain *c)
{
	while (c->saves > 0)
		free(c->saved[--c->saves].bytes);
	cursor_free(&c->cursor);
	prove_forget(&c->history);
}
