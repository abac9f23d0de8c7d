/* Copies batches to arrays: tokens and labels as int64 or int32, rows, documents. */
#include "client/python/src/client.h"

#include <limits.h>
#include <stdio.h>

/* The fields of rows, as int64 [rows] each; -1 in padding rows. */
enum { POSITION, DATASET, EPOCH, WINDOW, SHARD, OFFSET, FIELDS };

static void copy_rows(const struct tokend_batch *b, int64_t *const to[], unsigned fields)
{
	for (uint32_t i = 0; i < b->rows; i++) {
		const struct tokend_row *row = &b->row[i];
		const uint64_t value[FIELDS] = {row->position, row->dataset, row->epoch,
			row->window, row->shard, row->offset};
		bool padding = row->position == TOKEND_PADDING;

		for (unsigned f = 0; f < fields; f++)
			to[f][i] = padding ? -1 : (int64_t)value[f];
	}
}

/*
 * Input of attention over packed documents: position ids, which restart at each document, and the
 * starts of documents in the flat list of all inputs, followed by the list's length. A document
 * ends at the end of its row. The last token of a window may be a label only: a document that
 * begins there is not part of the inputs.
 */
struct packing {
	int64_t *ids;	 /* [rows × seq] */
	int32_t *starts; /* [rows × seq + 1] */
	uint32_t n, longest;
};

static void pack_document(struct packing *p, uint32_t at, uint32_t length)
{
	int64_t *ids = p->ids + at;

	for (uint32_t i = 0; i < length; i++)
		ids[i] = i;
	p->starts[p->n++] = (int32_t)at;
	if (length > p->longest)
		p->longest = length;
}

/* Sets the exception if the stream carries no document starts. */
static bool has_documents(struct client *c)
{
	char why[300];

	if (tokend_annotations(c->t) & TOKEND_DOCUMENTS)
		return true;
	snprintf(why, sizeof(why),
		"documents: stream %s carries none; set documents: true and eos in the daemon's "
		"config",
		tokend_stream_name(c->t));
	raise_error((PyObject *)c, TOKEND_EARGUMENT, why);
	return false;
}

PyObject *client_need_documents(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, false))
		return NULL;

	bool has = has_documents(c);

	leave(c, false);
	return has ? Py_NewRef(Py_None) : NULL;
}

static void pack(
	struct packing *p, const struct tokend *t, const struct tokend_batch *b, uint32_t seq)
{
	p->n = p->longest = 0;
	for (uint32_t r = 0; r < b->rows; r++) {
		uint32_t begin = 0, count;
		const uint32_t *start = tokend_documents(t, b, r, &count);

		for (uint32_t i = 0; i < count && start[i] > begin && start[i] < seq; i++) {
			pack_document(p, r * seq + begin, start[i] - begin);
			begin = start[i];
		}
		pack_document(p, r * seq + begin, seq - begin);
	}
	p->starts[p->n] = (int32_t)(b->rows * seq);
}

static int64_t token_at(const struct tokend_batch *b, size_t i)
{
	return b->token_bytes == 2 ? ((const uint16_t *)b->tokens)[i]
				   : ((const uint32_t *)b->tokens)[i];
}

/* Destinations of look_into(), as addresses; 0: not wanted. */
struct into {
	unsigned long long tokens, labels, ids, starts;
	unsigned token_bytes, label_bytes;
	unsigned width; /* number of first tokens of each row */
	unsigned fields;
	int64_t *field[FIELDS];
};

/* Sets the exception: the requested dtype cannot hold token @i of row @r. */
static void raise_narrow(struct client *c, const struct tokend_batch *b, uint32_t r, uint32_t i)
{
	const struct tokend_row *row = &b->row[r];
	char why[400];

	snprintf(why, sizeof(why),
		"dtype: token %lld does not fit into int32 (position %llu, dataset %s, shard %u, "
		"offset %llu); use int64",
		(long long)token_at(b, (size_t)r * b->window_tokens + i),
		(unsigned long long)row->position, tokend_dataset(c->t, row->dataset), row->shard,
		(unsigned long long)(row->offset + i));
	raise_error((PyObject *)c, TOKEND_EARGUMENT, why);
}

/* The first of @n tokens that does not fit into int32; @n: none. */
static uint32_t first_wide(const uint32_t *token, uint32_t n)
{
	uint32_t all = 0, i = 0;

	for (uint32_t k = 0; k < n; k++)
		all |= token[k];
	while (i < n && all > INT32_MAX && token[i] <= INT32_MAX)
		i++;
	return all > INT32_MAX ? i : n;
}

static bool narrow_tokens(const struct into *into)
{
	return into->tokens && into->token_bytes == 4;
}

static bool narrow_labels(const struct into *into)
{
	return into->labels && into->label_bytes == 4;
}

/* Returns false, with the exception set, if a token of the batch does not fit into int32. */
static bool fits(struct client *c, const struct tokend_batch *b, const struct into *into)
{
	if (b->token_bytes != 4 || !(narrow_tokens(into) || narrow_labels(into)))
		return true;

	struct tokend_shape shape;

	tokend_shape(c->t, &shape);

	bool labels = narrow_labels(into);
	uint32_t begin = narrow_tokens(into) ? 0 : 1, end = 0;
	uint32_t last =
		shape.seq_len < b->window_tokens ? (uint32_t)shape.seq_len + 1 : b->window_tokens;

	if (narrow_tokens(into))
		end = into->width;
	for (uint32_t row = 0; row < b->rows; row++) {
		/* padding rows have no labels */
		bool both = labels && b->row[row].position != TOKEND_PADDING;
		uint32_t to = both && last > end ? last : end;
		const uint32_t *token =
			(const uint32_t *)b->tokens + (size_t)row * b->window_tokens;
		uint32_t i = begin < to ? begin + first_wide(token + begin, to - begin) : to;

		if (i < to) {
			raise_narrow(c, b, row, i);
			return false;
		}
	}
	return true;
}

/* Copies @n tokens of row @r, from token @first on, as integers of @bytes. fits() was true. */
static void copy_row(const struct tokend_batch *b, uint32_t r, uint32_t first, size_t n, void *to,
	unsigned bytes)
{
	const uint8_t *from = (const uint8_t *)b->tokens +
			      ((size_t)r * b->window_tokens + first) * b->token_bytes;

	if (bytes == 8) {
		tokend_widen(to, from, n, b->token_bytes);
	} else {
		int fit = tokend_widen_int32(to, from, n, b->token_bytes);

		(void)fit;
	}
}

static void copy_tokens(const struct tokend_batch *b, const struct into *into)
{
	char *to = (char *)(uintptr_t)into->tokens;

	for (uint32_t r = 0; r < b->rows; r++, to += (size_t)into->width * into->token_bytes)
		copy_row(b, r, 0, into->width, to, into->token_bytes);
}

#define IGNORE (-100) /* torch's label for tokens without a loss */

static void ignore(void *labels, size_t i, unsigned bytes)
{
	if (bytes == 8)
		((int64_t *)labels)[i] = IGNORE;
	else
		((int32_t *)labels)[i] = IGNORE;
}

/* Labels: the token after each input. IGNORE if there is none, in padding rows, and where the loss
 * mask is 0. */
static void copy_labels(
	struct client *c, const struct tokend_batch *b, const struct into *into, uint32_t seq)
{
	uint32_t most = b->window_tokens > seq ? seq : b->window_tokens - 1;
	unsigned bytes = into->label_bytes;
	char *to = (char *)(uintptr_t)into->labels;

	for (uint32_t r = 0; r < b->rows; r++, to += (size_t)seq * bytes) {
		const uint8_t *mask = tokend_loss_mask(c->t, b, r);
		uint32_t n = b->row[r].position == TOKEND_PADDING ? 0 : most;

		copy_row(b, r, 1, n, to, bytes);
		for (uint32_t i = 0; mask && i < n; i++)
			if (!mask[i + 1])
				ignore(to, i, bytes);
		for (uint32_t i = n; i < seq; i++)
			ignore(to, i, bytes);
	}
}

/* True if inputs and labels have one type, and there is no loss mask: copy_pair() can be used. */
static bool is_pair(
	const struct client *c, const struct tokend_batch *b, const struct into *into, uint32_t seq)
{
	return into->tokens && into->labels && into->token_bytes == into->label_bytes &&
	       into->width == seq && b->window_tokens > seq &&
	       !(tokend_annotations(c->t) & TOKEND_LOSS_MASK);
}

/* Inputs and labels in one pass over the slot. */
static void copy_pair(const struct tokend_batch *b, const struct into *into, uint32_t seq)
{
	unsigned bytes = into->token_bytes;
	char *tokens = (char *)(uintptr_t)into->tokens, *labels = (char *)(uintptr_t)into->labels;
	size_t step = (size_t)seq * bytes;
	int fit = 0; /* fits() was true */

	for (uint32_t r = 0; r < b->rows; r++, tokens += step, labels += step) {
		const uint8_t *row =
			(const uint8_t *)b->tokens + (size_t)r * b->window_tokens * b->token_bytes;

		if (bytes == 8)
			tokend_widen_pair(
				(int64_t *)tokens, (int64_t *)labels, row, seq, b->token_bytes);
		else
			fit = tokend_widen_pair_int32(
				(int32_t *)tokens, (int32_t *)labels, row, seq, b->token_bytes);
		for (uint32_t i = 0; b->row[r].position == TOKEND_PADDING && i < seq; i++)
			ignore(labels, i, bytes);
	}
	(void)fit;
}

static void fill(
	struct client *c, const struct tokend_batch *b, const struct into *into, struct packing *p)
{
	struct tokend_shape shape;

	tokend_shape(c->t, &shape);

	uint32_t seq = (uint32_t)shape.seq_len;

	bool pair = is_pair(c, b, into, seq);

	if (pair)
		copy_pair(b, into, seq);
	if (!pair && into->tokens)
		copy_tokens(b, into);
	copy_rows(b, into->field, into->fields);
	if (!pair && into->labels)
		copy_labels(c, b, into, seq);
	if (into->ids)
		pack(p, c->t, b, seq);
}

/* Reads the arguments, integers only: parsing must be fast, as it is done for every batch. */
static bool read_into(struct into *into, PyObject *const *args, Py_ssize_t n)
{
	enum { FIRST_FIELD = 7, MOST = FIRST_FIELD + FIELDS };
	unsigned long long number[MOST];

	if (n < FIRST_FIELD || n > MOST) {
		PyErr_Format(PyExc_TypeError, "look_into: %zd arguments; must be %d to %d integers",
			n, FIRST_FIELD, MOST);
		return false;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		number[i] = PyLong_AsUnsignedLongLong(args[i]);
		if (number[i] == ULLONG_MAX && PyErr_Occurred())
			return false;
	}
	*into = (struct into){.tokens = number[0],
		.token_bytes = (unsigned)number[1],
		.width = (unsigned)number[2],
		.labels = number[3],
		.label_bytes = (unsigned)number[4],
		.ids = number[5],
		.starts = number[6],
		.fields = (unsigned)n - FIRST_FIELD};
	for (unsigned f = 0; f < into->fields; f++)
		into->field[f] = (int64_t *)(uintptr_t)number[FIRST_FIELD + f];
	return true;
}

/* Waits for the next batch, without taking it. 1, 0: the end, or an error with the exception set.
 */
static int await_batch(struct client *c, struct tokend_batch *b)
{
	int r = UNLESS_LOST(c, tokend_peek(c->t, b, 0));

	if (r == TOKEND_EAGAIN) {
		c->yields = true;
		WAITING(c, r = tokend_peek(c->t, b, 1));
		c->yields = false;
	}
	if (r < 0)
		raise_last(c, r);
	return r;
}

static PyObject *copy_batch(struct client *c, const struct into *into)
{
	struct packing p = {.ids = (int64_t *)(uintptr_t)into->ids,
		.starts = (int32_t *)(uintptr_t)into->starts};
	struct tokend_batch b;

	/* The stream may carry none after a seek to a daemon with another config. */
	if (into->ids && !has_documents(c))
		return NULL;

	int r = await_batch(c, &b);

	if (r == 0)
		return Py_NewRef(Py_None);
	if (r < 0 || !fits(c, &b, into))
		return NULL;
	fill(c, &b, into, &p);
	return Py_BuildValue("IKII", b.rows_valid, (unsigned long long)b.next, p.n, p.longest);
}

PyObject *client_look_into(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	struct client *c = (struct client *)self;
	struct into into;

	if (!read_into(&into, args, n) || !enter(c, true))
		return NULL;

	PyObject *result = copy_batch(c, &into);

	leave(c, true);
	/* Python may turn a warning into an exception. */
	if (result && !say_notice(c))
		Py_CLEAR(result);
	return result;
}

/*
 * A setter, because Python calls signal handlers after a function returns, but not after an
 * assignment. So no handler's exception comes between it and a `return batch` that follows.
 */
int client_set_takes(PyObject *self, PyObject *value, void *none)
{
	struct client *c = (struct client *)self;
	unsigned long long next;
	struct tokend_batch b;
	bool taken = false;
	int keep = 0;

	(void)none;
	if (!PyArg_ParseTuple(value, "K|p", &next, &keep) || !enter(c, true))
		return -1;

	int r = await_batch(c, &b);

	if (r == 1 && b.next == next) {
		r = tokend_try_next(c->t, &b);
		taken = r == 1;
		if (!taken)
			raise_last(c, r);
		if (taken && !keep)
			tokend_release(c->t, &b);
		c->batches += taken;
		c->tokens += taken ? (uint64_t)b.rows_valid * b.window_tokens : 0;
	} else if (r >= 0) {
		PyErr_SetString(PyExc_LookupError, "another thread took this batch");
	}
	leave(c, true);
	return taken ? 0 : -1;
}
