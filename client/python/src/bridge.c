/* For tokend/_tokend.py, which has the same structs: batches copied into arrays, and callbacks. */
#include "client/lib/tokend.h"

#include <stdbool.h>

enum { MOVED = 2, WIDE }; /* results of look() */

#define IGNORE (-100) /* torch's label for tokens without a loss */

/* Position, dataset, epoch, window, shard, offset of rows: int64 [rows]; -1 in padding rows. */
enum { FIELDS = 6 };

struct look {
	/* Where the next batch is copied to. NULL: not wanted. */
	char *tokens;	 /* [rows][width] of token_bytes, 4 or 8 */
	char *labels;	 /* [rows][seq_len] of label_bytes, 4 or 8 */
	int64_t *ids;	 /* [rows][seq_len] position ids, with */
	int32_t *starts; /* [rows × seq_len + 1] */
	int64_t *field[FIELDS];
	uint32_t rows, width, token_bytes, label_bytes;
	/* About the batch. */
	uint32_t seq, rows_valid, documents, longest, annotations;
	uint32_t stored_window, stored_bytes; /* its tokens in the ring, as tokend_batch has them */
	const void *stored;
	uint64_t next, handle;
	uint64_t position, wide; /* of WIDE: the row's, and the token */
};

/* ---- rows and documents ---- */

static void copy_fields(const struct tokend_batch *b, const struct look *to)
{
	for (uint32_t i = 0; i < b->rows; i++) {
		const struct tokend_row *row = &b->row[i];
		const uint64_t value[FIELDS] = {row->position, row->dataset, row->epoch,
			row->window, row->shard, row->offset};
		bool padding = row->position == TOKEND_PADDING;

		for (unsigned f = 0; f < FIELDS; f++)
			if (to->field[f])
				to->field[f][i] = padding ? -1 : (int64_t)value[f];
	}
}

static void pack_document(struct look *to, uint32_t at, uint32_t length)
{
	int64_t *ids = to->ids + at;

	for (uint32_t i = 0; i < length; i++)
		ids[i] = i;
	to->starts[to->documents++] = (int32_t)at;
	if (length > to->longest)
		to->longest = length;
}

/*
 * Input of attention over packed documents: position ids, which restart at each document, and the
 * starts of documents in the flat list of all inputs, followed by the list's length. A document
 * ends at the end of its row. The last token of a window may be a label only: a document that
 * begins there is not part of the inputs.
 */
static void pack(const struct tokend *t, const struct tokend_batch *b, struct look *to)
{
	to->documents = to->longest = 0;
	for (uint32_t r = 0; r < b->rows; r++) {
		uint32_t begin = 0, count;
		const uint32_t *start = tokend_documents(t, b, r, &count);

		for (uint32_t i = 0; i < count && start[i] > begin && start[i] < to->seq; i++) {
			pack_document(to, r * to->seq + begin, start[i] - begin);
			begin = start[i];
		}
		pack_document(to, r * to->seq + begin, to->seq - begin);
	}
	to->starts[to->documents] = (int32_t)(b->rows * to->seq);
}

/* ---- tokens and labels ---- */

/* Copies @n tokens of row @r, from token @first on, to @to as integers of @bytes. Returns false if
 * one does not fit. */
static bool copy_tokens(const struct tokend_batch *b, uint32_t r, uint32_t first, uint32_t n,
	void *to, unsigned bytes, struct look *look)
{
	const char *from =
		(const char *)b->tokens + ((size_t)r * b->window_tokens + first) * b->token_bytes;
	const uint32_t *wide = (const void *)from;

	if (bytes == 8)
		tokend_widen(to, from, n, b->token_bytes);
	if (bytes == 8 || tokend_widen_int32(to, from, n, b->token_bytes) == 0)
		return true;
	while (*wide <= INT32_MAX)
		wide++;
	look->wide = *wide;
	look->position = b->row[r].position;
	return false;
}

static void ignore(char *labels, size_t i, unsigned bytes)
{
	if (bytes == 8)
		((int64_t *)(void *)labels)[i] = IGNORE;
	else
		((int32_t *)(void *)labels)[i] = IGNORE;
}

/* Labels of row @r: the token after each input. IGNORE if there is none, in padding rows, and where
 * the loss mask is 0. */
static bool copy_labels(
	const struct tokend *t, const struct tokend_batch *b, uint32_t r, struct look *into)
{
	char *to = into->labels + (size_t)r * into->seq * into->label_bytes;
	uint32_t most = b->window_tokens > into->seq ? into->seq : b->window_tokens - 1;
	uint32_t n = b->row[r].position == TOKEND_PADDING ? 0 : most;
	const uint8_t *mask = tokend_loss_mask(t, b, r);

	if (!copy_tokens(b, r, 1, n, to, into->label_bytes, into))
		return false;
	for (uint32_t i = 0; mask && i < n; i++)
		if (!mask[i + 1])
			ignore(to, i, into->label_bytes);
	for (uint32_t i = n; i < into->seq; i++)
		ignore(to, i, into->label_bytes);
	return true;
}

/* Row by row: the second copy finds the tokens in the CPU's cache. */
static int copy_rows(const struct tokend *t, const struct tokend_batch *b, struct look *to)
{
	for (uint32_t r = 0; r < b->rows; r++) {
		char *tokens = to->tokens + (size_t)r * to->width * to->token_bytes;

		if (to->tokens && !copy_tokens(b, r, 0, to->width, tokens, to->token_bytes, to))
			return WIDE;
		if (to->labels && !copy_labels(t, b, r, to))
			return WIDE;
	}
	return 1;
}

/* ---- calls ---- */

/*
 * Copies the next batch, without taking it. Returns 1; 0 at the end of the stream; MOVED: it has
 * another shape; WIDE: a token does not fit; or an error. @wait 0: EAGAIN if it is not ready, and
 * without a daemon, because the search for one may take long.
 */
TOKEND_API int tokend_python_look(struct tokend *t, struct look *to, int wait)
{
	struct tokend_shape shape;
	struct tokend_batch b;
	int r = !wait && tokend_lost(t) ? (int)TOKEND_EAGAIN : tokend_peek(t, &b, wait);

	if (r != 1)
		return r;
	if (b.rows != to->rows)
		return MOVED;
	tokend_shape(t, &shape);
	to->seq = (uint32_t)shape.seq_len;
	to->rows_valid = b.rows_valid;
	to->next = b.next;
	to->handle = b.handle;
	to->stored = b.tokens;
	to->stored_window = b.window_tokens;
	to->stored_bytes = b.token_bytes;
	to->annotations = tokend_annotations(t);
	copy_fields(&b, to);
	if (to->ids)
		pack(t, &b, to);
	return copy_rows(t, &b, to);
}

/* Takes the batch whose `next` is @next. Returns 1; 0 if it is not the next one, or @t NULL; or an
 * error.
 * @counts: batches and tokens taken. @keep 0: it is released. */
TOKEND_API int tokend_python_take(struct tokend *t, uint64_t counts[2], uint64_t next, int keep)
{
	struct tokend_batch b;
	int r = t ? tokend_peek(t, &b, 0) : 0;

	if (r == 0 || r == TOKEND_EAGAIN || (r == 1 && b.next != next))
		return 0;
	if (r == 1)
		r = tokend_try_next(t, &b);
	if (r != 1)
		return r;
	if (!keep)
		tokend_release(t, &b);
	counts[0]++;
	counts[1] += (uint64_t)b.rows_valid * b.window_tokens;
	return 1;
}

/* ---- callbacks of struct tokend_options and tokend_memory(); @context is the package's ---- */

typedef int said(const char *line);
typedef void gone(void *base, uint64_t bytes, int *done);

TOKEND_API int tokend_python_warn(void *context, const char *line)
{
	return ((said *)context)(line);
}

/* It must complete. A signal's handler may raise before the first line of Python. */
TOKEND_API void tokend_python_gone(void *context, void *base, uint64_t bytes)
{
	for (int done = 0; !done;)
		((gone *)context)(base, bytes, &done);
}
