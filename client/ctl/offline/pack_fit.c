/*
 * Best-fit packing of documents into rows: largest first, each into the fullest row that it fits
 * (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The result depends only on the
 * documents' lengths. Needs 20 bytes of memory per document and 6 per token of a row.
 */
#include "client/ctl/offline/shards.h"
#include "daemon/shard/tokens.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- a set of numbers up to a row's length: a binary tree, whose leaves are the numbers ---- */

struct set {
	uint8_t *node; /* [2 * leaves] is a number below it in the set? 1: the root */
	uint32_t leaves;
};

static bool set_new(struct set *s, uint32_t most)
{
	for (s->leaves = 1; s->leaves <= most;)
		s->leaves *= 2;
	s->node = calloc(s->leaves, 2);
	return s->node;
}

static void set_put(struct set *s, uint32_t i, bool in)
{
	i += s->leaves;
	for (s->node[i] = in; i > 1; i /= 2)
		s->node[i / 2] = s->node[i] | s->node[i ^ 1];
}

/* The least member from @i on, or PACK_NONE. */
static uint32_t set_next(const struct set *s, uint32_t i)
{
	for (i += s->leaves; !s->node[i]; i++) {
		while (i % 2 == 1) /* a right child: what is right of it is right of its parent */
			i /= 2;
		if (i == 0) /* the root was the last */
			return PACK_NONE;
	}
	while (i < s->leaves)
		i = 2 * i + !s->node[2 * i];
	return i - s->leaves;
}

/* ---- bins: the rows of the rests, which are what is left of documents after full rows ---- */

struct bins {
	struct set free; /* the numbers of free tokens that some bin has */
	uint32_t *head;	 /* [row_tokens + 1] the last bin with so many free tokens */
	uint32_t *next;	 /* [documents] the bin before it with as many */
	uint32_t *order; /* [documents] those with a rest, by its length, the largest first */
	uint32_t rests;
};

uint32_t pack_fit_rest(const struct pack_fit *f, uint32_t d)
{
	return (f->end[d] - (d ? f->end[d - 1] : 0)) % f->row_tokens;
}

/* Sorts by counting; documents of equal length keep their order. */
static void sort(struct bins *b, const struct pack_fit *f)
{
	uint32_t *at = b->head, before = 0;

	memset(at, 0, (f->row_tokens + UINT64_C(1)) * sizeof(*at));
	for (uint32_t d = 0; d < f->documents; d++)
		at[pack_fit_rest(f, d)]++;
	for (uint32_t n = f->row_tokens; n-- > 1;) {
		uint32_t some = at[n];

		at[n] = before;
		before += some;
	}
	b->rests = before;
	for (uint32_t d = 0; d < f->documents; d++)
		if (pack_fit_rest(f, d) > 0)
			b->order[at[pack_fit_rest(f, d)]++] = d;
}

/* Removes a bin from those with the least free tokens ≥ @tokens, and sets *@left to its. PACK_NONE:
 * there is none. */
static uint32_t take(struct bins *b, uint32_t tokens, uint32_t *left)
{
	uint32_t n = set_next(&b->free, tokens), bin;

	if (n == PACK_NONE)
		return PACK_NONE;
	bin = b->head[n];
	b->head[n] = b->next[bin];
	if (b->head[n] == PACK_NONE)
		set_put(&b->free, n, false);
	*left = n;
	return bin;
}

/* Gives each rest its bin. Returns the number of bins. */
static uint32_t fill(struct bins *b, struct pack_fit *f)
{
	uint32_t bins = 0;

	memset(b->head, 0xff, (f->row_tokens + UINT64_C(1)) * sizeof(*b->head));
	for (uint32_t i = 0; i < b->rests; i++) {
		uint32_t rest = pack_fit_rest(f, b->order[i]), left = f->row_tokens;
		uint32_t bin = take(b, rest, &left);

		if (bin == PACK_NONE)
			bin = bins++;
		f->bin[b->order[i]] = bin;
		left -= rest;
		if (left == 0)
			continue;
		if (b->head[left] == PACK_NONE)
			set_put(&b->free, left, true);
		b->next[bin] = b->head[left];
		b->head[left] = bin;
	}
	return bins;
}

/* Packs the documents. False: out of memory. */
static bool fill_rows(struct pack_fit *f)
{
	struct bins b = {.head = malloc((f->row_tokens + UINT64_C(1)) * sizeof(*b.head)),
		.next = malloc(f->documents * sizeof(*b.next)),
		.order = malloc(f->documents * sizeof(*b.order))};
	bool fine = set_new(&b.free, f->row_tokens) && b.head && b.next && b.order;

	f->bin = malloc(f->documents * sizeof(*f->bin));
	if (fine && f->bin) {
		sort(&b, f);
		f->rows = fill(&b, f);
		f->pieces = b.rests;
		f->first = b.next;
		f->after = b.order;
		memset(f->first, 0xff, f->documents * sizeof(*f->first));
		for (uint32_t d = f->documents; d-- > 0;)
			if (pack_fit_rest(f, d) > 0) {
				f->after[d] = f->first[f->bin[d]];
				f->first[f->bin[d]] = d;
			}
	} else {
		free(b.next);
		free(b.order);
	}
	free(b.free.node);
	free(b.head);
	return fine && f->bin;
}

/* ---- reading a window ---- */

enum { LOAD_TOKENS = 1 << 18 };

/* Reads the window and the ends of its documents. */
static bool load(struct pack_fit *f, struct pack_reader *r, uint64_t begin, uint64_t tokens,
	struct fault *fault)
{
	uint32_t *at = malloc(LOAD_TOKENS * sizeof(*at)), width = r->how->token_bytes;
	bool fine;

	/* pack_read() needs 4 bytes a token while it reads. */
	f->tokens = malloc(tokens * width + LOAD_TOKENS * sizeof(uint32_t));
	fine = (at && f->tokens) || fault_memory(fault);
	for (uint64_t from = 0; fine && from < tokens; from += LOAD_TOKENS) {
		uint64_t n = tokens - from < LOAD_TOKENS ? tokens - from : LOAD_TOKENS, ends = 0;

		fine = pack_read(r, begin + from, n, (uint32_t *)(f->tokens + from * width), at,
			&ends, fault);
		for (uint64_t i = 0; fine && i < ends; i++) {
			fine = ctl_grow((void **)&f->end, f->documents, sizeof(*f->end)) ||
			       fault_memory(fault);
			if (fine)
				f->end[f->documents++] = (uint32_t)from + at[i];
		}
		if (fine)
			ctl_progress_add(r->how->progress, n);
	}
	free(at);
	return fine && pack_read_end(r, fault);
}

/* A wrong --eos would make each input one document. */
static bool check_eos(
	const struct pack_fit *f, const struct pack_in *in, uint64_t begin, struct fault *fault)
{
	bool found = !in->has_eos || in->has[PACK_UNINDEXED].sources < in->sources;

	for (uint32_t d = 0; d < f->documents && !found; d++)
		found = tokens_value(f->tokens, f->end[d] - 1, f->token_bytes) == in->eos;
	return found ||
	       fault_set(fault, FAULT_ARGUMENT, "eos",
		       "--eos %" PRIu64 ": does not occur in tokens %" PRIu64 " to %" PRIu64
		       " of the inputs, so there are no documents to pack; give the token "
		       "that ends one",
		       in->eos, begin, begin + f->end[f->documents - 1]);
}

bool pack_fit_begin(struct pack_fit *f, struct pack_reader *r, uint64_t begin, uint64_t end,
	struct fault *fault)
{
	uint64_t tokens = end - begin, row = r->how->row_tokens, at = begin;

	assert(row > 1 && tokens > 0 && tokens <= PACK_FIT_MOST);
	*f = (struct pack_fit){.row_tokens = (uint32_t)row, .token_bytes = r->how->token_bytes};
	if (!load(f, r, begin, tokens, fault) || !check_eos(f, r->in, begin, fault))
		return false;
	assert(f->documents > 0 && f->end[f->documents - 1] == tokens);
	if (!fill_rows(f))
		return fault_memory(fault);
	for (uint32_t d = 0; d < f->documents; at = begin + f->end[d++]) {
		uint64_t last = begin + f->end[d] - 1;
		uint32_t full = (uint32_t)((last + 1 - at) / row);

		f->split += at / row != last / row;
		f->cut += last + 1 - at > row;
		f->rows += full;
		f->pieces += full;
	}
	f->padding = f->rows * row - tokens;
	return true;
}

void pack_fit_end(struct pack_fit *f)
{
	free(f->tokens);
	free(f->end);
	free(f->bin);
	free(f->first);
	free(f->after);
}
