/* Copies batches to arrays: tokens and labels as int64 or int32, rows, documents. */
#include "client/python/src/client.h"

#include <stdio.h>

#define IGNORE (-100) /* torch's label for tokens without a loss */

/* The fields of rows, as int64 [rows] each; -1 in padding rows. */
enum { POSITION, DATASET, EPOCH, WINDOW, SHARD, OFFSET, FIELDS };

enum { FIRST_FIELD = 8 }; /* arguments of look_into() before the fields' addresses */

/* Destinations of look_into(). NULL: not wanted. */
struct into {
	char *tokens, *labels;
	unsigned token_bytes, label_bytes;
	uint32_t width, seq; /* tokens and labels of a row */
	uint32_t rows;	     /* of the arrays */
	unsigned fields;
	int64_t *field[FIELDS];
	int64_t *ids;	 /* [rows × seq] */
	int32_t *starts; /* [rows × seq + 1] */
	uint32_t documents, longest;
};

/* ---- rows and documents ---- */

static void copy_fields(const struct tokend_batch *b, const struct into *into)
{
	for (uint32_t i = 0; i < b->rows; i++) {
		const struct tokend_row *row = &b->row[i];
		const uint64_t value[FIELDS] = {row->position, row->dataset, row->epoch,
			row->window, row->shard, row->offset};
		bool padding = row->position == TOKEND_PADDING;

		for (unsigned f = 0; f < into->fields; f++)
			into->field[f][i] = padding ? -1 : (int64_t)value[f];
	}
}

static void pack_document(struct into *into, uint32_t at, uint32_t length)
{
	int64_t *ids = into->ids + at;

	for (uint32_t i = 0; i < length; i++)
		ids[i] = i;
	into->starts[into->documents++] = (int32_t)at;
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
	into->starts[into->documents] = (int32_t)(b->rows * into->seq);
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
		"dtype: token %lld does not fit into int32 (position %llu, dataset %s, shard %u, "
		"offset %llu); use int64",
		(long long)token[i], (unsigned long long)row->position,
		tokend_dataset(c->t, row->dataset), row->shard,
		(unsigned long long)(row->offset + i));
	raise_error((PyObject *)c, TOKEND_EARGUMENT, why);
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
		if (into->tokens && !copy_tokens(c, b, r, 0, into->width, into->tokens + r * tokens,
					    into->token_bytes))
			return false;
		if (into->labels && !copy_labels(c, b, r, into, into->labels + r * labels))
			return false;
	}
	return true;
}

/* ---- look_into() and take() ---- */

static bool read_into(struct into *into, PyObject *args)
{
	unsigned long long tokens, labels, ids, starts, f[FIELDS];

	*into = (struct into){0};
	if (!PyArg_ParseTuple(args, "KIIIKIKK|KKKKKK", &tokens, &into->token_bytes, &into->width,
		    &into->rows, &labels, &into->label_bytes, &ids, &starts, &f[POSITION],
		    &f[DATASET], &f[EPOCH], &f[WINDOW], &f[SHARD], &f[OFFSET]))
		return false;
	into->tokens = (char *)(uintptr_t)tokens;
	into->labels = (char *)(uintptr_t)labels;
	into->ids = (int64_t *)(uintptr_t)ids;
	into->starts = (int32_t *)(uintptr_t)starts;
	into->fields = (unsigned)PyTuple_Size(args) - FIRST_FIELD;
	for (unsigned i = 0; i < into->fields; i++)
		into->field[i] = (int64_t *)(uintptr_t)f[i];
	return true;
}

/*
 * Waits for the next batch, without taking it. 1, 0: the end, or an error with the exception set.
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
	if (r < 0)
		raise_last(c, r);
	return r;
}

static PyObject *copy_batch(struct client *c, struct into *into)
{
	struct tokend_shape shape;
	struct tokend_batch b;
	int r = await_batch(c, &b);

	if (r == 0)
		return Py_NewRef(Py_None);
	if (r < 0)
		return NULL;
	tokend_shape(c->t, &shape);
	into->seq = (uint32_t)shape.seq_len;
	if (b.rows != into->rows)
		return raise_error((PyObject *)c, TOKEND_EARGUMENT,
			"a signal handler or another thread sought during next(); call it again");
	if (!copy_rows(c, &b, into))
		return NULL;
	copy_fields(&b, into);
	if (into->ids)
		pack(c->t, &b, into);
	return Py_BuildValue("IKIII", b.rows_valid, (unsigned long long)b.next, into->documents,
		into->longest, tokend_annotations(c->t));
}

PyObject *client_look_into(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct into into;

	if (!read_into(&into, args) || !enter(c, true))
		return NULL;
	return leave(c, true, copy_batch(c, &into));
}

/* Takes the batch that the last look_into() copied. */
static PyObject *take(struct client *c, uint64_t next, bool keep)
{
	struct tokend_batch b;
	int r = await_batch(c, &b);

	if (r < 0 || PyErr_Occurred())
		return NULL;
	if (r == 0 || b.next != next)
		return Py_NewRef(Py_False);
	r = tokend_try_next(c->t, &b);
	if (r != 1)
		return raise_last(c, r);
	PyErr_Clear(); /* of a warning: the batch is taken */
	if (!keep)
		tokend_release(c->t, &b);
	c->batches++;
	c->tokens += (uint64_t)b.rows_valid * b.window_tokens;
	return Py_NewRef(Py_True);
}

/*
 * A setter, because Python calls signal handlers after a function returns, but not after an
 * assignment. So no handler's exception comes between it and a `return batch` that follows.
 */
int client_set_takes(PyObject *self, PyObject *value, void *none)
{
	struct client *c = (struct client *)self;
	unsigned long long next;
	int keep = 0;

	(void)none;
	if (!PyArg_ParseTuple(value, "K|p", &next, &keep) || !enter(c, true))
		return -1;
	PyObject *taken = leave(c, true, take(c, next, keep));

	if (taken == Py_False)
		PyErr_SetNone(PyExc_LookupError);
	Py_XDECREF(taken);
	return taken == Py_True ? 0 : -1;
}
