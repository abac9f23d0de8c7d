/* Copies batches to arrays: tokens and labels as int64 or int32, rows, documents. */
#include "client/python/src/client.h"

#include <inttypes.h>
#include <stdio.h>

#define IGNORE (-100) /* torch's label for tokens without a loss */

/* Fields of rows: position, dataset, epoch, window, shard, offset. */
enum { FIELDS = 6 };

/* Arguments of look_into(): addresses (0: not wanted); and the results of pack(). */
struct into {
	uint64_t version;	/* of shape(), for which they were made */
	uint64_t tokens;	/* [rows, width] of token_bytes, 4 or 8 */
	uint64_t labels;	/* [rows, seq] of label_bytes, 4 or 8 */
	uint64_t ids;		/* int64 [rows, seq], with */
	uint64_t starts;	/* int32 [rows * seq + 1] */
	uint64_t field[FIELDS]; /* int64 [rows]; -1 in padding rows */
	unsigned token_bytes, label_bytes, width;
	uint32_t seq, documents, longest;
};

/* The address as a pointer. */
static void *at(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

/* ---- rows and documents ---- */

static void copy_fields(const struct tokend_batch *b, const struct into *into)
{
	for (uint32_t i = 0; i < b->rows; i++) {
		const struct tokend_row *row = &b->row[i];
		const uint64_t value[FIELDS] = {row->position, row->dataset, row->epoch,
			row->window, row->shard, row->offset};
		bool padding = row->position == TOKEND_PADDING;

		for (unsigned f = 0; f < FIELDS && into->field[f]; f++)
			((int64_t *)at(into->field[f]))[i] = padding ? -1 : (int64_t)value[f];
	}
}

static void pack_document(struct into *into, uint32_t first, uint32_t length)
{
	int64_t *ids = (int64_t *)at(into->ids) + first;
	int32_t *starts = at(into->starts);

	for (uint32_t i = 0; i < length; i++)
		ids[i] = i;
	starts[into->documents++] = (int32_t)first;
	if (length > into->longest)
		into->longest = length;
}

/*
 * Input of attention over packed documents: position ids, which restart at each document, and the
 * starts of documents in the flat list of all inputs, followed by the list's length. A document
 * ends at the end of its row. The last token of a window may be a label only: a document that
 * begins there is not part of the inputs.
 */
static void pack(const struct tokend *t, const struct tokend_batch *b, struct into *into)
{
	for (uint32_t r = 0; r < b->rows; r++) {
		uint32_t begin = 0, count;
		const uint32_t *start = tokend_documents(t, b, r, &count);

		for (uint32_t i = 0; i < count && start[i] > begin && start[i] < into->seq; i++) {
			pack_document(into, r * into->seq + begin, start[i] - begin);
			begin = start[i];
		}
		pack_document(into, r * into->seq + begin, into->seq - begin);
	}
	((int32_t *)at(into->starts))[into->documents] = (int32_t)(b->rows * into->seq);
}

/* ---- tokens and labels ---- */

/* Sets the exception: of row @r, a token from @first on does not fit into int32. */
static void raise_narrow(struct client *c, const struct tokend_batch *b, uint32_t r, uint32_t first)
{
	const uint32_t *token = (const uint32_t *)b->tokens + (size_t)r * b->window_tokens;
	const struct tokend_row *row = &b->row[r];
	uint32_t i = first;
	char why[400];

	while (token[i] <= INT32_MAX)
		i++;
	snprintf(why, sizeof(why),
		"dtype: token %u does not fit into int32 (position %" PRIu64
		", dataset %s, shard %u, offset %" PRIu64 "); use int64",
		token[i], row->position, tokend_dataset(c->t, row->dataset), row->shard,
		row->offset + i);
	raise_error(TOKEND_EARGUMENT, why);
}

/* Copies @n tokens of row @r, from token @first on, as integers of @bytes. Returns false, with the
 * exception set, if one does not fit. */
static bool copy_tokens(struct client *c, const struct tokend_batch *b, uint32_t r, uint32_t first,
	uint32_t n, void *to, unsigned bytes)
{
	const char *from =
		(const char *)b->tokens + ((size_t)r * b->window_tokens + first) * b->token_bytes;

	if (bytes == 8)
		tokend_widen(to, from, n, b->token_bytes);
	else if (tokend_widen_int32(to, from, n, b->token_bytes) < 0)
		return raise_narrow(c, b, r, first), false;
	return true;
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
static bool copy_labels(struct client *c, const struct tokend_batch *b, uint32_t r,
	const struct into *into, char *to)
{
	uint32_t most = b->window_tokens > into->seq ? into->seq : b->window_tokens - 1;
	uint32_t n = b->row[r].position == TOKEND_PADDING ? 0 : most;
	const uint8_t *mask = tokend_loss_mask(c->t, b, r);

	if (!copy_tokens(c, b, r, 1, n, to, into->label_bytes))
		return false;
	for (uint32_t i = 0; mask && i < n; i++)
		if (!mask[i + 1])
			ignore(to, i, into->label_bytes);
	for (uint32_t i = n; i < into->seq; i++)
		ignore(to, i, into->label_bytes);
	return true;
}

/* Row by row: the second copy finds the tokens in the CPU's cache. */
static bool copy_rows(struct client *c, const struct tokend_batch *b, const struct into *into)
{
	size_t tokens = (size_t)into->width * into->token_bytes;
	size_t labels = (size_t)into->seq * into->label_bytes;

	for (uint32_t r = 0; r < b->rows; r++) {
		if (into->tokens && !copy_tokens(c, b, r, 0, into->width,
					    at(into->tokens + r * tokens), into->token_bytes))
			return false;
		if (into->labels && !copy_labels(c, b, r, into, at(into->labels + r * labels)))
			return false;
	}
	return true;
}

/* ---- look_into() and take() ---- */

uint64_t client_version(const struct client *c)
{
	return c->moves << 2 | tokend_annotations(c->t);
}

/*
 * Waits for the next batch, without taking it. Returns 1, 0 at the end, or an error.
 *
 * A ready batch is found without releasing the interpreter's lock. The search for a lost daemon
 * may call idle(), which takes that lock.
 */
static int await_batch(struct client *c, struct tokend_batch *b)
{
	int r = tokend_lost(c->t) ? (int)TOKEND_EAGAIN : tokend_peek(c->t, b, 0);

	if (r == TOKEND_EAGAIN) {
		c->yields = true;
		WAITING(r = tokend_peek(c->t, b, 1));
		c->yields = false;
	}
	return r;
}

static PyObject *copy_batch(struct client *c, const struct tokend_batch *b, struct into *into)
{
	struct tokend_shape shape;

	if (into->version != client_version(c))
		return Py_NewRef(Py_False);
	tokend_shape(c->t, &shape);
	into->seq = (uint32_t)shape.seq_len;
	if (!copy_rows(c, b, into))
		return NULL;
	copy_fields(b, into);
	if (into->ids)
		pack(c->t, b, into);
	return Py_BuildValue("IkII", b->rows_valid, b->handle, into->documents, into->longest);
}

PyObject *client_look_into(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct into into = {0};
	uint64_t *f = into.field;
	struct tokend_batch b;
	int r;

	if (!PyArg_ParseTuple(args, "kkIIkIkk|kkkkkk", &into.version, &into.tokens,
		    &into.token_bytes, &into.width, &into.labels, &into.label_bytes, &into.ids,
		    &into.starts, &f[0], &f[1], &f[2], &f[3], &f[4], &f[5]) ||
		!enter(c, true))
		return NULL;
	r = await_batch(c, &b);
	return leave(c, true, r, r > 0 ? copy_batch(c, &b, &into) : Py_NewRef(Py_None));
}

/*
 * Takes the batch that look_into() copied. If it is not the next one any more, its tokens may be
 * others: another thread took it, or the session moved.
 *
 * A setter, because Python calls signal handlers after a function returns, but not after an
 * assignment. So no handler's exception comes between it and a `return batch` that follows.
 */
int client_set_takes(PyObject *self, PyObject *value, void *none)
{
	struct client *c = (struct client *)self;
	struct tokend_batch b;
	uint64_t handle;
	int keep = 0, r;

	(void)none;
	if (!PyArg_ParseTuple(value, "k|p", &handle, &keep) || !enter(c, true))
		return -1;
	r = await_batch(c, &b);
	if (r > 0 && b.handle == handle && !PyErr_Occurred()) {
		r = tokend_try_next(c->t, &b);
		if (r > 0) {
			PyErr_Clear(); /* of a warning: the batch is taken */
			if (!keep)
				tokend_release(c->t, &b);
			c->batches++;
			c->tokens += (uint64_t)b.rows_valid * b.window_tokens;
		}
	} else if (r >= 0 && !PyErr_Occurred()) {
		PyErr_SetNone(PyExc_LookupError);
	}
	leave(c, true, r, NULL);
	return PyErr_Occurred() ? -1 : 0;
}
