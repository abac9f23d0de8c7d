#include "client/ctl/offline/pack_rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX, LEVELS = 6 };

/* ---- a set of numbers up to a row's length: a bitmap, with a bitmap of its words, and so on ----
 */

struct set {
	uint64_t *word[LEVELS];
	uint32_t words[LEVELS];
	unsigned levels;
};

static bool set_new(struct set *s, uint32_t most)
{
	*s = (struct set){.levels = 0};
	do {
		assert(s->levels < LEVELS);
		most = most / 64 + 1;
		s->words[s->levels] = most;
		s->word[s->levels] = calloc(most, sizeof(uint64_t));
		if (!s->word[s->levels++])
			return false;
	} while (most > 1);
	return true;
}

static void set_free(struct set *s)
{
	for (unsigned l = 0; l < s->levels; l++)
		free(s->word[l]);
}

static void set_add(struct set *s, uint32_t i)
{
	for (unsigned l = 0; l < s->levels; l++, i /= 64)
		s->word[l][i / 64] |= UINT64_C(1) << i % 64;
}

static void set_remove(struct set *s, uint32_t i)
{
	for (unsigned l = 0; l < s->levels; l++, i /= 64) {
		s->word[l][i / 64] &= ~(UINT64_C(1) << i % 64);
		if (s->word[l][i / 64])
			return;
	}
}

/* The least member from @i on, or NONE. */
static uint32_t set_next(const struct set *s, uint32_t i)
{
	for (unsigned l = 0; l < s->levels && i / 64 < s->words[l]; l++) {
		uint64_t bits = s->word[l][i / 64] >> i % 64;

		if (!bits) {
			i = i / 64 + 1;
			continue;
		}
		for (i += (uint32_t)__builtin_ctzll(bits); l > 0; l--)
			i = i * 64 + (uint32_t)__builtin_ctzll(s->word[l - 1][i]);
		return i;
	}
	return NONE;
}

/* ---- bins: rows that are not full ---- */

struct bins {
	struct set free;  /* the numbers of free tokens that some bin has */
	uint32_t *head;	  /* [row_tokens + 1] the last bin with so many free tokens */
	uint32_t *next;	  /* [documents] the bin before it with as many; later, the bin's row */
	uint32_t *bin_of; /* [documents] of the document's rest */
	uint32_t *order;  /* [documents] those with a rest, by its length, the largest first */
	uint32_t count, rests;
};

static uint32_t length(const uint32_t *end, uint32_t d)
{
	return end[d] - (d ? end[d - 1] : 0);
}

/* Sorts by counting; documents of equal length keep their order. */
static void sort(struct bins *b, uint32_t row_tokens, const uint32_t *end, uint32_t documents)
{
	uint32_t *at = b->head, before = 0;

	memset(at, 0, (row_tokens + UINT64_C(1)) * sizeof(*at));
	for (uint32_t d = 0; d < documents; d++)
		at[length(end, d) % row_tokens]++;
	for (uint32_t n = row_tokens; n-- > 1;) {
		uint32_t some = at[n];

		at[n] = before;
		before += some;
	}
	b->rests = before;
	for (uint32_t d = 0; d < documents; d++)
		if (length(end, d) % row_tokens > 0)
			b->order[at[length(end, d) % row_tokens]++] = d;
}

/* Removes a bin from those with the least free tokens ≥ @tokens, and sets *@left to its. NONE:
 * there is none. */
static uint32_t take(struct bins *b, uint32_t tokens, uint32_t *left)
{
	uint32_t n = set_next(&b->free, tokens), bin;

	if (n == NONE)
		return NONE;
	bin = b->head[n];
	b->head[n] = b->next[bin];
	if (b->head[n] == NONE)
		set_remove(&b->free, n);
	*left = n;
	return bin;
}

static void fill(struct bins *b, uint32_t row_tokens, const uint32_t *end)
{
	memset(b->head, 0xff, (row_tokens + UINT64_C(1)) * sizeof(*b->head));
	for (uint32_t i = 0; i < b->rests; i++) {
		uint32_t d = b->order[i], rest = length(end, d) % row_tokens, left = row_tokens;
		uint32_t bin = take(b, rest, &left);

		if (bin == NONE)
			bin = b->count++;
		b->bin_of[d] = bin;
		left -= rest;
		if (left == 0)
			continue;
		if (b->head[left] == NONE)
			set_add(&b->free, left);
		b->next[bin] = b->head[left];
		b->head[left] = bin;
	}
}

/* ---- rows ---- */

/* Gives each row its number, and sets first[r + 1] to its number of pieces. */
static void count_pieces(
	struct pack_rows *r, struct bins *b, const uint32_t *end, uint32_t documents)
{
	memset(b->next, 0xff, documents * sizeof(*b->next));
	for (uint32_t d = 0; d < documents; d++) {
		uint32_t tokens = length(end, d), *row = &b->next[b->bin_of[d]];

		r->cut += tokens > r->row_tokens;
		for (; tokens >= r->row_tokens; tokens -= r->row_tokens)
			r->first[++r->rows] = 1;
		if (tokens == 0)
			continue;
		if (*row == NONE) {
			*row = r->rows++;
			r->first[r->rows] = 0;
		}
		r->first[*row + 1]++;
	}
	for (uint32_t i = 0; i < r->rows; i++)
		r->first[i + 1] += r->first[i];
}

/* Row i's first[i] becomes the end of its pieces, and is moved back at the end. */
static void put_pieces(
	struct pack_rows *r, const struct bins *b, const uint32_t *end, uint32_t documents)
{
	uint32_t rows = 0;

	for (uint32_t d = 0; d < documents; d++) {
		uint32_t tokens = length(end, d), from = end[d] - tokens;

		for (; tokens >= r->row_tokens; tokens -= r->row_tokens) {
			r->piece[r->first[rows++]++] = (struct pack_piece){from, r->row_tokens};
			from += r->row_tokens;
		}
		if (tokens == 0)
			continue;
		uint32_t row = b->next[b->bin_of[d]];

		r->piece[r->first[row]++] = (struct pack_piece){from, tokens};
		rows += row == rows;
	}
	assert(rows == r->rows);
	memmove(r->first + 1, r->first, rows * sizeof(*r->first));
	r->first[0] = 0;
}

static bool pack(struct pack_rows *r, struct bins *b, const uint32_t *end, uint32_t documents)
{
	uint64_t full = end[documents - 1] / r->row_tokens;

	b->head = malloc((r->row_tokens + UINT64_C(1)) * sizeof(*b->head));
	b->next = malloc(documents * sizeof(*b->next));
	b->bin_of = calloc(documents, sizeof(*b->bin_of));
	b->order = malloc(documents * sizeof(*b->order));
	if (!set_new(&b->free, r->row_tokens) || !b->head || !b->next || !b->bin_of || !b->order)
		return false;
	sort(b, r->row_tokens, end, documents);
	fill(b, r->row_tokens, end);
	free(b->order);
	b->order = NULL;
	r->first = calloc(full + b->count + 1, sizeof(*r->first));
	if (!r->first)
		return false;
	count_pieces(r, b, end, documents);
	r->piece = malloc(r->first[r->rows] * sizeof(*r->piece));
	if (!r->piece)
		return false;
	put_pieces(r, b, end, documents);
	return true;
}

bool pack_rows_fill(
	struct pack_rows *r, uint32_t row_tokens, const uint32_t *end, uint32_t documents)
{
	struct bins b = {.count = 0};

	assert(row_tokens > 1 && documents > 0 && end[documents - 1] < UINT32_C(1) << 31);
	*r = (struct pack_rows){.row_tokens = row_tokens, .documents = documents};
	bool fine = pack(r, &b, end, documents);

	set_free(&b.free);
	free(b.head);
	free(b.next);
	free(b.bin_of);
	free(b.order);
	return fine;
}

void pack_rows_free(struct pack_rows *r)
{
	free(r->first);
	free(r->piece);
	*r = (struct pack_rows){.rows = 0};
}
