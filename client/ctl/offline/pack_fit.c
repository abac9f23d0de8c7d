/*
 * Best-fit packing of documents into rows: largest first, each into the fullest row that it fits
 * (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The result depends only on the
 * documents' lengths. Needs 20 bytes of memory per document and 12 per row.
 */
#include "client/ctl/offline/shards.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/tokens.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { NONE = UINT32_MAX };

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

/* The least member from @i on, or NONE. */
static uint32_t set_next(const struct set *s, uint32_t i)
{
	for (i += s->leaves; !s->node[i]; i++) {
		while (i % 2 == 1) /* a right child: what is right of it is right of its parent */
			i /= 2;
		if (i == 0) /* the root was the last */
			return NONE;
	}
	while (i < s->leaves)
		i = 2 * i + !s->node[2 * i];
	return i - s->leaves;
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
		set_put(&b->free, n, false);
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
			set_put(&b->free, left, true);
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

static bool pack_bins(struct pack_rows *r, struct bins *b, const uint32_t *end, uint32_t documents)
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

/*
 * Packs @documents documents, of which i has tokens [end[i - 1], end[i]); none is empty, and the
 * last ends before 2^31. One longer than a row becomes full rows, and a rest that is packed. Rows
 * are in the order in which their first documents come, and so are the documents in a row. False:
 * out of memory.
 */
static bool fill_rows(
	struct pack_rows *r, uint32_t row_tokens, const uint32_t *end, uint32_t documents)
{
	struct bins b = {.count = 0};

	assert(row_tokens > 1 && documents > 0 && end[documents - 1] < UINT32_C(1) << 31);
	*r = (struct pack_rows){.row_tokens = row_tokens, .documents = documents};
	bool fine = pack_bins(r, &b, end, documents);

	free(b.free.node);
	free(b.head);
	free(b.next);
	free(b.bin_of);
	free(b.order);
	return fine;
}

/* ---- reading a window ---- */

enum { LOAD_TOKENS = 1 << 18 };

/* Reads the window into f->tokens, and the ends of its documents. Both are the caller's. */
static bool load(struct pack_fit *f, struct pack_reader *reader, const struct pack_how *how,
	uint64_t begin, uint64_t tokens, uint32_t **ends, uint32_t *documents, struct fault *fault)
{
	uint32_t *some = malloc(LOAD_TOKENS * sizeof(*some)), width = how->token_bytes;
	uint64_t room = 0, used = 0, got;
	bool fine = some || fault_memory(fault);

	for (uint64_t from = 0; fine && from < tokens; from += LOAD_TOKENS) {
		uint64_t n = tokens - from < LOAD_TOKENS ? tokens - from : LOAD_TOKENS;

		if (used + n > room) {
			room = 2 * room > used + n ? 2 * room : used + n;
			uint32_t *more = realloc(*ends, room * sizeof(*more));

			*ends = more ? more : *ends;
			fine = more || fault_memory(fault);
		}
		fine = fine &&
		       pack_read(reader, how, begin + from, n, some, *ends + used, &got, fault);
		if (!fine)
			break;
		memcpy((char *)f->tokens + from * width, some, n * width);
		for (; got > 0; got--)
			(*ends)[used++] += (uint32_t)from;
		ctl_progress_add(how->progress, n);
	}
	free(some);
	*documents = (uint32_t)used;
	return fine && pack_read_end(reader, fault);
}

/* A wrong --eos would make each input one document. */
static bool check_eos(const struct pack_fit *f, const struct pack_in *in, uint64_t begin,
	const uint32_t *end, uint32_t n, struct fault *fault)
{
	bool found = !in->has_eos || in->unindexed < in->sources;

	for (uint32_t d = 0; d < n && !found; d++)
		found = tokens_value(f->tokens, end[d] - 1, f->token_bytes) == in->eos;
	return found ||
	       fault_set(fault, FAULT_ARGUMENT, "eos",
		       "--eos %" PRIu64 ": does not occur in tokens %" PRIu64 " to %" PRIu64
		       " of the inputs, so there are no documents to pack; give the token "
		       "that ends one",
		       in->eos, begin, begin + end[n - 1]);
}

bool pack_fit_begin(struct pack_fit *f, struct pack_reader *reader, const struct pack_how *how,
	uint64_t begin, uint64_t end, struct fault *fault)
{
	uint64_t tokens = end - begin, row = how->row_tokens, at = begin;
	uint32_t *ends = NULL, n;
	bool fine;

	assert(tokens > 0 && tokens <= PACK_FIT_MOST);
	*f = (struct pack_fit){
		.tokens = malloc(tokens * how->token_bytes), .token_bytes = how->token_bytes};
	fine = (f->tokens || fault_memory(fault)) &&
	       load(f, reader, how, begin, tokens, &ends, &n, fault) &&
	       check_eos(f, reader->in, begin, ends, n, fault) &&
	       (fill_rows(&f->rows, how->row_tokens, ends, n) || fault_memory(fault));
	if (fine) {
		assert(ends[n - 1] == tokens);
		for (uint32_t d = 0; d < n; at = begin + ends[d++])
			f->split += at / row != (begin + ends[d] - 1) / row;
		f->pieces = f->rows.first[f->rows.rows];
		f->padding = f->rows.rows * row - tokens;
	}
	free(ends);
	return fine;
}

void pack_fit_end(struct pack_fit *f)
{
	free(f->rows.first);
	free(f->rows.piece);
	free(f->tokens);
	*f = (struct pack_fit){.pieces = 0};
}

/* ---- the list ---- */

enum { LIST_BYTES = 64 << 10, LINE_MOST = 48 };

struct list {
	z_stream z;
	FILE *file;
	unsigned char text[LIST_BYTES], packed[LIST_BYTES];
};

static bool deflate_text(struct list *l, size_t n, int flush)
{
	l->z.next_in = l->text;
	l->z.avail_in = (unsigned)n;
	do {
		l->z.next_out = l->packed;
		l->z.avail_out = LIST_BYTES;
		deflate(&l->z, flush);
		size_t some = LIST_BYTES - l->z.avail_out;

		if (fwrite(l->packed, 1, some, l->file) != some)
			return false;
	} while (l->z.avail_out == 0);
	return true;
}

static bool put_documents(const struct pack_fit *f, struct list *l)
{
	size_t n = 0;

	for (uint32_t r = 0; r < f->rows.rows; r++) {
		uint64_t at = (uint64_t)r * f->rows.row_tokens;

		for (uint32_t p = f->rows.first[r]; p < f->rows.first[r + 1]; p++) {
			uint64_t end = at + f->rows.piece[p].tokens;

			n += (size_t)snprintf((char *)l->text + n, LINE_MOST,
				"%" PRIu64 ",%" PRIu64 "\n", at, end);
			at = end;
			if (n + LINE_MOST <= LIST_BYTES)
				continue;
			if (!deflate_text(l, n, Z_NO_FLUSH))
				return false;
			n = 0;
		}
	}
	return deflate_text(l, n, Z_FINISH) && fflush(l->file) == 0 && fsync(fileno(l->file)) == 0;
}

bool pack_fit_list(const struct pack_fit *f, const char *path, struct fault *fault)
{
	unsigned char comment[96];
	gz_header head = {.os = 3, .comment = comment}; /* 3: Unix; no time, so equal bytes */
	struct list *l = calloc(1, sizeof(*l));

	if (!l || deflateInit2(&l->z, Z_BEST_SPEED, Z_DEFLATED, 16 + MAX_WBITS, 8,
			  Z_DEFAULT_STRATEGY) != Z_OK) { /* 16: gzip */
		free(l);
		return fault_memory(fault);
	}
	snprintf((char *)comment, sizeof(comment), BOUNDS_ROWS, (uint64_t)f->rows.row_tokens,
		f->padding);
	deflateSetHeader(&l->z, &head);
	l->file = fopen(path, "we");
	bool fine = l->file && put_documents(f, l);
	int error = errno;

	if (l->file)
		fclose(l->file);
	deflateEnd(&l->z);
	free(l);
	return fine || pack_fail(fault, path, error);
}
