#include "tests/sim/order.h"

#include "tests/unit/order_plain.h"

enum { MIX = 1, SHUF, BLK, TAIL, GRP, SLIDE, PART };

/* ---- hashing ---- */

static uint64_t add(uint64_t h, uint64_t v)
{
	return plain_mix64((h ^ v) + PLAIN_GOLDEN);
}

static uint64_t derive(uint64_t seed, uint64_t a)
{
	return add(plain_mix64(seed + PLAIN_GOLDEN), a);
}

static uint64_t name_hash(const char *name)
{
	uint64_t h = UINT64_C(0xCBF29CE484222325);

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001B3);
	return h;
}

static uint64_t permute(uint64_t n, uint64_t key, uint64_t x)
{
	static uint64_t known_n, known_root; /* the root costs the most */

	if (n != known_n)
		known_root = plain_root(n);
	known_n = n;
	return plain_permute(n, known_root, key, x);
}

/* ---- between datasets ---- */

static uint64_t weight(const struct plan_segment *s, unsigned lo, unsigned hi)
{
	uint64_t sum = 0;

	while (lo < hi)
		sum += s->units[lo++];
	return sum;
}

static unsigned padded(uint32_t datasets)
{
	unsigned n = 1;

	while (n < datasets)
		n *= 2;
	return n;
}

static void units_of(const double *weights, uint32_t n, uint64_t *units)
{
	double part[PADDED], sum = 0;
	uint64_t missing = UINT64_C(1) << 32;

	for (uint32_t d = 0; d < n; d++)
		sum += weights[d];
	for (uint32_t d = 0; d < n; d++) {
		double share = weights[d] / sum * 4294967296.0;

		units[d] = (uint64_t)share;
		part[d] = share - (double)units[d];
		missing -= units[d];
	}
	for (; missing > 0; missing--) {
		uint32_t best = 0;

		for (uint32_t d = 1; d < n; d++)
			if (part[d] > part[best])
				best = d;
		units[best]++;
		part[best] = -1;
	}
}

static void halves(struct plan_segment *s, unsigned lo, unsigned hi)
{
	if (hi - lo < 2)
		return;
	s->phase[(lo + hi) / 2] = weight(s, lo, hi) / 2;
	halves(s, lo, (lo + hi) / 2);
	halves(s, (lo + hi) / 2, hi);
}

/* The counts of the first @j samples of the segment @s, and the phases of the next one. */
static void walk(const struct plan_segment *s, unsigned lo, unsigned hi, uint64_t j,
	struct plan_segment *next)
{
	uint64_t w = weight(s, lo, hi);
	unsigned middle = (lo + hi) / 2;

	if (w == 0)
		return;
	if (hi - lo == 1) {
		next->base[lo] += j;
		return;
	}
	wide product = (wide)j * weight(s, lo, middle) + s->phase[middle];
	uint64_t left = (uint64_t)(product / w), rest = (uint64_t)(product % w);

	next->phase[middle] = (uint64_t)((wide)rest * weight(next, lo, hi) / w);
	walk(s, lo, middle, left, next);
	walk(s, middle, hi, j - left, next);
}

uint64_t plan_path_windows(const struct stream_plan *stream, const struct source *s)
{
	uint64_t window = stream->seq_len + stream->extra, windows = 0;

	for (uint64_t i = 0; i < s->shards; i++)
		if (s->tokens[i] >= window)
			windows += (s->tokens[i] - window) / stream->stride + 1;
	return windows;
}

/* Walks the runs of 64 windows that the source has, in their order: *@window is the @y-th window of
 * these. Returns how many there are. */
static uint64_t walk_part(
	const struct stream_plan *stream, const struct source *s, uint64_t y, uint64_t *window)
{
	uint64_t all = plan_path_windows(stream, s), runs = (all + 63) / 64, found = 0;

	if (s->lo == 0 && s->hi == UINT64_C(1) << 32) {
		*window = y;
		return all;
	}
	for (uint64_t x = s->lo * runs >> 32; x < s->hi * runs >> 32; x++) {
		uint64_t run = permute(runs, add(derive(0, PART), all), x);
		uint64_t n = run * 64 + 64 <= all ? 64 : all - run * 64;

		if (y >= found && y < found + n)
			*window = run * 64 + y - found;
		found += n;
	}
	return found;
}

static void number_windows(struct plan *p, uint32_t d)
{
	const struct source *s = &p->stream->source[p->source[d]];
	uint64_t none;

	p->hash[d] = name_hash(s->name);
	p->windows[d] = walk_part(p->stream, s, UINT64_MAX, &none);
}

void plan_begin(struct plan *p, const struct stream_plan *stream, uint32_t datasets)
{
	struct plan_segment *s = &p->segment[0];
	double weights[PADDED];

	*p = (struct plan){
		.stream = stream, .datasets = datasets, .segments = 1, .end = UINT64_MAX};
	for (uint32_t d = 0; d < datasets; d++) {
		p->source[d] = d;
		number_windows(p, d);
		weights[d] = stream->source[d].weight;
		s->units[d] = stream->epochs * p->windows[d];
	}
	if (stream->epochs)
		p->end = weight(s, 0, PADDED);
	else
		units_of(weights, datasets, s->units);
	s->datasets = datasets;
	if (stream->samples)
		p->end = stream->samples;
	halves(s, 0, padded(datasets));
}

void plan_add(struct plan *p, unsigned source)
{
	CHECK(p->datasets < PADDED);
	p->source[p->datasets] = source;
	number_windows(p, p->datasets++);
}

void plan_mix(struct plan *p, uint64_t at, const double *weights)
{
	struct plan_segment next = {.start = at, .datasets = p->datasets};
	unsigned size = padded(p->datasets);

	while (p->segments > 1 && p->segment[p->segments - 1].start >= at)
		p->segments--;
	CHECK(p->segments < SEGMENTS);

	const struct plan_segment *s = &p->segment[p->segments - 1];

	CHECK(at > s->start && at % 1024 == 0);
	units_of(weights, p->datasets, next.units);
	halves(&next, 0, size);
	memcpy(next.base, s->base, sizeof(next.base));
	walk(s, 0, padded(s->datasets), at - s->start, &next);
	/* A node that is new, or had no units, has its half. */
	p->segment[p->segments++] = next;
}

/* ---- within a dataset ---- */

static uint64_t in_blocks(const struct plan *p, uint32_t d, uint64_t epoch, uint64_t x)
{
	const struct source *s = &p->stream->source[p->source[d]];
	uint64_t seed = p->stream->seed, n = p->windows[d], kb = (uint64_t)s->block * s->group;
	uint64_t groups = (n + kb - 1) / kb, g = (uint64_t)((((wide)x + 1) * groups - 1) / n);
	uint64_t lo = (uint64_t)((wide)g * n / groups), hi = (uint64_t)(((wide)g + 1) * n / groups);
	uint64_t y = lo + permute(hi - lo, add(add(add(derive(seed, GRP), p->hash[d]), epoch), g),
				  x - lo);
	uint64_t full = n / s->block, tail = n % s->block;
	uint64_t at =
		(uint64_t)((wide)add(add(derive(seed, TAIL), p->hash[d]), epoch) * (full + 1) >>
			   64) *
		s->block;

	if (tail > 0 && y >= at && y < at + tail)
		return full * s->block + y - at;
	if (y >= at + tail)
		y -= tail;
	return permute(full, add(add(derive(seed, BLK), p->hash[d]), epoch), y / s->block) *
		       s->block +
	       y % s->block;
}

static void place_window(const struct plan *p, struct plan_place *to)
{
	const struct stream_plan *stream = p->stream;
	const struct source *s = &stream->source[p->source[to->dataset]];
	uint64_t window = stream->seq_len + stream->extra, left = to->window;

	for (uint64_t i = 0;; i++) {
		uint64_t n =
			s->tokens[i] >= window ? (s->tokens[i] - window) / stream->stride + 1 : 0;

		if (left >= n) {
			left -= n;
			continue;
		}
		to->shard = i;
		to->offset = left * stream->stride;
		if (s->slide) {
			uint64_t slack = (s->tokens[i] - window) % stream->stride;
			uint64_t h = add(add(add(derive(stream->seed, SLIDE), p->hash[to->dataset]),
						 to->epoch),
				i);

			to->offset += (uint64_t)((wide)h * (slack + 1) >> 64);
		}
		return;
	}
}

/* ---- the whole ---- */

static uint64_t scramble(const struct plan *p, const struct plan_segment *s, uint64_t i)
{
	uint64_t block = i / 1024, n = 1024;
	unsigned mixed = 0;

	for (uint32_t d = 0; d < p->datasets; d++)
		mixed += s->units[d] > 0;
	if (mixed < 2)
		return i;
	if (p->stream->epochs && p->end - block * 1024 < 1024)
		n = p->end - block * 1024;
	return block * 1024 + permute(n, add(derive(p->stream->seed, MIX), block), i % 1024);
}

void plan_at(const struct plan *p, uint64_t i, struct plan_place *to)
{
	const struct plan_segment *s = &p->segment[p->segments - 1];
	unsigned lo = 0, hi = padded(p->datasets);

	while (s->start > i)
		s--;

	uint64_t j = scramble(p, s, i) - s->start;

	while (hi - lo > 1) {
		unsigned middle = (lo + hi) / 2;
		uint64_t w = weight(s, lo, hi), wl = weight(s, lo, middle);
		uint64_t l = (uint64_t)(((wide)j * wl + s->phase[middle]) / w);
		uint64_t after = (uint64_t)((((wide)j + 1) * wl + s->phase[middle]) / w);

		if (after > l) {
			hi = middle;
			j = l;
		} else {
			lo = middle;
			j -= l;
		}
	}
	uint64_t k = s->base[lo] + j, x = k % p->windows[lo];
	const struct source *source = &p->stream->source[p->source[lo]];

	*to = (struct plan_place){.dataset = lo, .epoch = k / p->windows[lo], .window = x};
	if (source->shuffle == ORDER_GLOBAL)
		to->window = permute(p->windows[lo],
			add(add(derive(p->stream->seed, SHUF), p->hash[lo]), to->epoch), x);
	else if (source->shuffle == ORDER_BLOCK)
		to->window = in_blocks(p, lo, to->epoch, x);
	walk_part(p->stream, source, to->window, &to->window);
	place_window(p, to);
}
