#include "client/ctl/offline/pack_fit.h"

#include "client/ctl/common/progress.h"
#include "client/ctl/offline/stores.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/bounds.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { LOAD_TOKENS = 1 << 20, LIST_BYTES = 64 << 10, LINE_MOST = 48 };

/* ---- reading the window ---- */

/* Documents that end in a piece of LOAD_TOKENS tokens. */
struct ends {
	uint32_t *at; /* relative to the piece */
	int64_t count;
};

struct load {
	struct pack_fit *fit;
	struct pack_in *in;
	const struct pack_how *how;
	uint64_t begin, tokens, pieces;
	struct ends *ends;		     /* [pieces] */
	uint32_t *scratch[PARALLEL_THREADS]; /* [2 * LOAD_TOKENS] */
};

static void *token_at(const struct pack_fit *f, uint64_t i)
{
	return (char *)f->tokens + i * f->token_bytes;
}

static uint32_t value_at(const struct pack_fit *f, uint64_t i)
{
	return f->token_bytes == 2 ? ((const uint16_t *)f->tokens)[i]
				   : ((const uint32_t *)f->tokens)[i];
}

static bool load_piece(const struct parallel *p, struct fault *fault)
{
	struct load *l = p->context;
	uint64_t from = p->i * LOAD_TOKENS, left = l->tokens - from;
	uint64_t n = left < LOAD_TOKENS ? left : LOAD_TOKENS;
	uint32_t width = l->fit->token_bytes, **scratch = &l->scratch[p->thread];
	struct ends *e = &l->ends[p->i];
	void *to = token_at(l->fit, from);

	if (!*scratch && !(*scratch = malloc(2 * LOAD_TOKENS * sizeof(**scratch))))
		return fault_memory(fault);
	uint32_t *at = *scratch + LOAD_TOKENS;

	if (!pack_in_read(l->in, l->begin + from, n, to, width,
		    width == 2 ? UINT16_MAX : UINT32_MAX, *scratch, fault))
		return false;
	e->count = pack_in_documents(l->in, l->begin + from, n, to, width, at, fault);
	if (e->count < 0)
		return false;
	e->at = malloc((size_t)e->count * sizeof(*at) + 1);
	if (!e->at)
		return fault_memory(fault);
	memcpy(e->at, at, (size_t)e->count * sizeof(*at));
	ctl_progress_add(l->how->progress, n * width);
	return true;
}

/* Joins the ends of all pieces. NULL: out of memory. */
static uint32_t *join(const struct load *l, uint32_t *documents)
{
	uint64_t n = 0;

	for (uint64_t p = 0; p < l->pieces; p++)
		n += (uint64_t)l->ends[p].count;
	uint32_t *end = malloc(n * sizeof(*end) + 1);

	*documents = 0;
	for (uint64_t p = 0; end && p < l->pieces; p++)
		for (int64_t i = 0; i < l->ends[p].count; i++)
			end[(*documents)++] = (uint32_t)(p * LOAD_TOKENS) + l->ends[p].at[i];
	return end;
}

/* ---- packing it ---- */

/* A wrong --eos would make each input one document. */
static bool check_eos(const struct load *l, const uint32_t *end, uint32_t n, struct fault *fault)
{
	const struct pack_in *in = l->in;
	bool found = !in->has_eos || in->unindexed < in->sources;

	for (uint32_t d = 0; d < n && !found; d++)
		found = value_at(l->fit, end[d] - 1) == in->eos;
	return found ||
	       fault_set(fault, FAULT_ARGUMENT, "eos",
		       "--eos %" PRIu64 ": does not occur in tokens %" PRIu64 " to %" PRIu64
		       " of the inputs, so there are no documents to pack; give the token "
		       "that ends one",
		       in->eos, l->begin, l->begin + l->tokens);
}

static void count_split(const struct load *l, const uint32_t *end, uint32_t n)
{
	uint64_t row = l->how->row_tokens, at = l->begin;

	for (uint32_t d = 0; d < n; at = l->begin + end[d++])
		l->fit->split += at / row != (l->begin + end[d] - 1) / row;
}

static bool pack(struct load *l, struct fault *fault)
{
	struct pack_fit *f = l->fit;
	uint32_t n, *end = join(l, &n);

	if (!end)
		return fault_memory(fault);
	assert(n > 0 && end[n - 1] == l->tokens);
	bool fine = check_eos(l, end, n, fault);

	if (fine) {
		count_split(l, end, n);
		fine = pack_rows_fill(&f->rows, l->how->row_tokens, end, n) || fault_memory(fault);
	}
	free(end);
	if (!fine)
		return false;
	f->pieces = f->rows.first[f->rows.rows];
	f->padding = f->rows.rows * f->row_tokens - l->tokens;
	return true;
}

bool pack_fit_begin(struct pack_fit *f, struct pack_in *in, const struct pack_how *how,
	uint64_t begin, uint64_t end, struct fault *fault)
{
	struct load l = {.fit = f,
		.in = in,
		.how = how,
		.begin = begin,
		.tokens = end - begin,
		.pieces = (end - begin + LOAD_TOKENS - 1) / LOAD_TOKENS};
	unsigned threads = in->stores ? CTL_GETS : parallel_processors();

	assert(l.tokens > 0 && l.tokens <= PACK_FIT_MOST);
	*f = (struct pack_fit){.row_tokens = how->row_tokens, .token_bytes = how->token_bytes};
	f->tokens = malloc(l.tokens * f->token_bytes);
	l.ends = calloc(l.pieces, sizeof(*l.ends));
	if (!f->tokens || !l.ends) {
		free(l.ends);
		return fault_memory(fault);
	}
	bool fine = parallel_for(l.pieces, threads, load_piece, &l, fault) == l.pieces;

	for (unsigned i = 0; i < PARALLEL_THREADS; i++)
		free(l.scratch[i]);
	fine = fine && pack_in_same(in, begin, end, fault) && pack(&l, fault);
	for (uint64_t p = 0; p < l.pieces; p++)
		free(l.ends[p].at);
	free(l.ends);
	return fine;
}

void pack_fit_end(struct pack_fit *f)
{
	pack_rows_free(&f->rows);
	free(f->tokens);
	f->tokens = NULL;
}

/* ---- rows ---- */

/* Copies tokens [from, to) of row @row. */
static char *copy_row(const struct pack_fit *f, uint64_t row, uint64_t from, uint64_t to, char *out)
{
	uint64_t at = 0, begin, end;
	const struct pack_piece *p = f->rows.piece + f->rows.first[row],
				*last = f->rows.piece + f->rows.first[row + 1] - 1;

	for (; p <= last; at += p++->tokens) {
		begin = at > from ? at : from;
		end = at + p->tokens < to ? at + p->tokens : to;
		if (begin >= end)
			continue;
		memcpy(out, token_at(f, p->from + (begin - at)), (end - begin) * f->token_bytes);
		out += (end - begin) * f->token_bytes;
	}
	for (at = at > from ? at : from; at < to; at++, out += f->token_bytes)
		memcpy(out, token_at(f, last->from + last->tokens - 1), f->token_bytes);
	return out;
}

void pack_fit_read(const struct pack_fit *f, uint64_t token, uint64_t n, void *to)
{
	char *out = to;

	for (uint64_t end = token + n; token < end;) {
		uint64_t row = token / f->row_tokens, from = token % f->row_tokens;
		uint64_t left = f->row_tokens - from,
			 some = left < end - token ? left : end - token;

		out = copy_row(f, row, from, from + some, out);
		token += some;
	}
}

/* ---- the list ---- */

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
		uint64_t at = r * f->row_tokens;

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
	snprintf((char *)comment, sizeof(comment), BOUNDS_ROWS, f->row_tokens, f->padding);
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
