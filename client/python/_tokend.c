/*
 * The handle of libtokend as a Python object, in the stable ABI. The package's loader.py is what users see;
 * this only moves values across and keeps the interpreter running while something waits.
 *
 * Threads. Python code asks for a loader's state from other threads than the one that reads, so calls are
 * serialised here: `turn` is held by a call that may wait, `state` by whoever touches the handle. next()
 * gives `state` up each time it looks whether Python wants something (a signal, the interpreter lock), so a
 * cursor can be read while it waits. Neither is ever waited for with the interpreter lock held.
 */
#include "client.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ERRORS = 9 };

struct module {
	PyObject *error;	    /* tokend.Error */
	PyObject *kind[ERRORS + 1]; /* its subclasses, by -enum tokend_error */
	PyObject *client;
};

/* ---- errors ---- */

static struct module *module_of(PyObject *self)
{
	return PyType_GetModuleState(Py_TYPE(self));
}

PyObject *raise_error(PyObject *self, int code, const char *why)
{
	struct module *m = module_of(self);
	PyObject *kind = code < 0 && code >= -ERRORS ? m->kind[-code] : m->error;

	/* Interrupted: what the signal's handler raised is set already. */
	if (!PyErr_Occurred())
		PyErr_SetString(kind, why);
	return NULL;
}

PyObject *raise_last(struct client *c, int code)
{
	return raise_error((PyObject *)c, code, tokend_why(c->t));
}

/* ---- taking turns ---- */

/* False: this thread has it. */
static bool lock(pthread_mutex_t *mutex)
{
	int error = pthread_mutex_trylock(mutex);

	if (error == 0)
		return true;
	Py_BEGIN_ALLOW_THREADS error = pthread_mutex_lock(mutex);
	Py_END_ALLOW_THREADS return error == 0;
}

/* Within a call of its own that waits, Python code runs in the same thread: a signal's handler, absent(). */
static bool busy(struct client *c)
{
	raise_error((PyObject *)c, 0,
		"busy: this loader is waiting in this very thread, which a signal's handler has interrupted: "
		"let the handler take a note, and do it when the call has returned");
	return false;
}

bool enter(struct client *c, bool waits)
{
	if (c->t && handle_forked(c->t)) {
		/* The locks were copied as they stood: leave them alone. */
		handle_check(c->t);
		raise_last(c, TOKEND_EFORKED);
		return false;
	}
	if (waits && !lock(&c->turn))
		return busy(c);
	atomic_fetch_add(&c->wanting, 1);

	bool locked = lock(&c->state);

	atomic_fetch_sub(&c->wanting, 1);
	if (locked && c->t)
		return true;
	if (locked)
		pthread_mutex_unlock(&c->state);
	if (waits)
		pthread_mutex_unlock(&c->turn);
	if (!locked)
		return busy(c);
	raise_error((PyObject *)c, 0, "closed: this loader was closed; make a new one");
	return false;
}

void leave(struct client *c, bool waits)
{
	pthread_mutex_unlock(&c->state);
	if (waits)
		pthread_mutex_unlock(&c->turn);
}

static int call_absent(const struct client *c)
{
	PyObject *result = PyObject_CallNoArgs(c->absent);

	Py_XDECREF(result);
	return result ? 0 : -1;
}

/* While the call that waits does not touch the handle. */
static int ask_python(struct client *c, bool absent)
{
	if (c->yields)
		pthread_mutex_unlock(&c->state);
	PyEval_RestoreThread(c->thread);

	int interrupted = absent ? call_absent(c) : PyErr_CheckSignals();

	c->thread = PyEval_SaveThread();
	if (c->yields) {
		/* Who waits for state goes first: a mutex alone would be ours again before they woke. */
		for (int i = 0; i < 1000 && atomic_load(&c->wanting) > 0; i++)
			usleep(50);
		pthread_mutex_lock(&c->state);
	}
	return interrupted;
}

static int on_idle(void *context)
{
	return ask_python(context, false);
}

static int on_absent(void *context)
{
	struct client *c = context;

	return c->absent ? ask_python(c, true) : 0;
}

/* ---- arguments ---- */

struct whole {
	const char *name;
	uint64_t most, value;
	bool given;
};

/* An "O&" converter: an integer from 0 to most, or None. */
static int to_whole(PyObject *object, void *out)
{
	struct whole *w = out;

	if (object == Py_None)
		return 1;

	PyObject *index = PyNumber_Index(object);

	if (!index) {
		PyErr_Format(PyExc_TypeError, "%s: %R, must be a whole number from 0 to %llu", w->name,
			object, (unsigned long long)w->most);
		return 0;
	}
	w->value = PyLong_AsUnsignedLongLong(index);
	w->given = true;
	Py_DECREF(index);
	if (!PyErr_Occurred() && w->value <= w->most)
		return 1;
	PyErr_Clear();
	PyErr_Format(
		PyExc_ValueError, "%s: %S, must be 0 to %llu", w->name, object, (unsigned long long)w->most);
	return 0;
}

#define WHOLE(name, most)                                                                                    \
	{                                                                                                    \
		name, most, 0, false                                                                         \
	}

/* ---- making and closing ---- */

static int client_init(PyObject *self, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"stream", "micro_batch", "socket", "run", "rank", "world", "peer", "slots",
		"deadline_ms", "connect_ms", "cursor", "tag", "position", "helper", "absent", NULL};
	struct client *c = (struct client *)self;
	struct tokend_options o = {.size = sizeof(o)};
	struct whole micro = WHOLE("micro_batch", UINT32_MAX), rank = WHOLE("rank", UINT64_MAX);
	struct whole world = {"world", UINT64_MAX, 1, false};
	struct whole peer = WHOLE("peer", UINT32_MAX), slots = WHOLE("slots", UINT32_MAX);
	struct whole deadline = WHOLE("deadline", UINT32_MAX), patience = WHOLE("connect", UINT32_MAX);
	struct whole position = WHOLE("start", UINT64_MAX);
	Py_ssize_t cursor_bytes = 0;
	const struct waiter waiter = {on_idle, on_absent, c};
	PyObject *absent = NULL;
	char why[1400];
	int r;

	if (c->t) {
		raise_error(self, 0, "attached already");
		return -1;
	}
	if (!PyArg_ParseTupleAndKeywords(args, keywords, "sO&|zzO&O&O&O&O&O&z#zO&pO", names, &o.stream,
		    to_whole, &micro, &o.socket, &o.run, to_whole, &rank, to_whole, &world, to_whole, &peer,
		    to_whole, &slots, to_whole, &deadline, to_whole, &patience, &o.cursor, &cursor_bytes,
		    &o.tag, to_whole, &position, &o.helper, &absent))
		return -1;
	o.rank = rank.value;
	o.world = world.value;
	o.micro_batch = (uint32_t)micro.value;
	o.peer = (uint32_t)peer.value;
	o.slots = (uint32_t)slots.value;
	o.deadline_ms = (uint32_t)deadline.value;
	o.connect_ms = (uint32_t)patience.value;
	o.cursor_bytes = (size_t)cursor_bytes;
	o.position = position.value;
	o.start_at_position = position.given;
	Py_XDECREF(c->absent);
	c->absent = absent && absent != Py_None ? Py_NewRef(absent) : NULL;
	WAITING(c, r = handle_attach(&c->t, &o, &waiter, why, sizeof(why)));
	if (r == 0)
		return 0;
	raise_error(self, r, why);
	return -1;
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
	allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
	struct client *c = (struct client *)allocate(type, 0);

	(void)args, (void)keywords;
	if (c) {
		pthread_mutexattr_t checked;

		pthread_mutexattr_init(&checked);
		pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
		pthread_mutex_init(&c->turn, &checked);
		pthread_mutex_init(&c->state, &checked);
		pthread_mutexattr_destroy(&checked);
	}
	return (PyObject *)c;
}

static void client_dealloc(PyObject *self)
{
	struct client *c = (struct client *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = PyType_GetSlot(type, Py_tp_free);

	views_detach(c);
	Py_XDECREF(c->absent);
	pthread_mutex_destroy(&c->turn);
	pthread_mutex_destroy(&c->state);
	release(self);
	Py_DECREF(type);
}

static PyObject *client_close(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!c->t || handle_forked(c->t))
		Py_RETURN_NONE;
	if (!enter(c, true)) {
		if (c->t)
			return NULL;
		PyErr_Clear();
		Py_RETURN_NONE;
	}
	/* It waits for copies under way, which may wait for somebody who needs the interpreter's lock. */
	WAITING(c, views_detach(c));
	leave(c, true);
	Py_RETURN_NONE;
}

/* ---- batches ---- */

/* What the rows say, as int64 [fields][rows]; -1 in padding rows. */
enum { POSITION, DATASET, EPOCH, WINDOW, SHARD, OFFSET, FIELDS };

static void copy_rows(const struct tokend_batch *b, int64_t *to, unsigned fields)
{
	for (uint32_t i = 0; i < b->rows; i++) {
		const struct tokend_row *row = &b->row[i];
		const uint64_t value[FIELDS] = {
			row->position, row->dataset, row->epoch, row->window, row->shard, row->offset};
		bool padding = row->position == TOKEND_PADDING;

		for (unsigned f = 0; f < fields; f++)
			to[(size_t)f * b->rows + i] = padding ? -1 : (int64_t)value[f];
	}
}

/*
 * What attention over packed documents asks for: position ids that begin again with each document, and where
 * documents begin in the flat list of all inputs, its length behind them. A row's end ends a document, too.
 * The last token of a window may be a label alone: a document that begins there is not one of the inputs.
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

/* In a stream without documents: the exception is set. */
static bool has_documents(struct client *c)
{
	char why[300];

	if (c->t->now->ring.geometry.documents)
		return true;
	snprintf(why, sizeof(why),
		"documents: stream %s does not carry them: its config must have documents: true, and eos",
		c->t->stream);
	raise_error((PyObject *)c, TOKEND_EARGUMENT, why);
	return false;
}

static PyObject *client_need_documents(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, false))
		return NULL;

	bool has = has_documents(c);

	leave(c, false);
	return has ? Py_NewRef(Py_None) : NULL;
}

static void pack(struct packing *p, const struct tokend *t, const struct tokend_batch *b, uint32_t seq)
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

/* The label of a token that losses leave out, as torch has it. */
#define IGNORE (-100)

static int64_t token_at(const struct tokend_batch *b, size_t i)
{
	return b->token_bytes == 2 ? ((const uint16_t *)b->tokens)[i] : ((const uint32_t *)b->tokens)[i];
}

/* The token that follows each input, IGNORE where there is none, in padding rows, and where the mask says so.
 */
static void copy_labels(const struct tokend *t, const struct tokend_batch *b, uint32_t seq, int64_t *to)
{
	uint32_t window = b->window_tokens, most = window > seq ? seq : window - 1;

	for (uint32_t r = 0; r < b->rows; r++, to += seq) {
		const uint8_t *row = (const uint8_t *)b->tokens + (size_t)r * window * b->token_bytes;
		const uint8_t *mask = tokend_loss_mask(t, b, r);
		uint32_t n = b->row[r].position == TOKEND_PADDING ? 0 : most;

		tokend_widen(to, row + b->token_bytes, n, b->token_bytes);
		for (uint32_t i = 0; mask && i < n; i++)
			if (!mask[i + 1])
				to[i] = IGNORE;
		for (uint32_t i = n; i < seq; i++)
			to[i] = IGNORE;
	}
}

/* The index of the first token that int32 cannot hold, or their number. */
static size_t narrow(int32_t *restrict to, const struct tokend_batch *b)
{
	size_t n = (size_t)b->rows * b->window_tokens;
	const uint16_t *two = b->tokens;
	const uint32_t *four = b->tokens;
	uint32_t all = 0;

	if (b->token_bytes == 2) {
		for (size_t i = 0; i < n; i++)
			to[i] = two[i];
		return n;
	}
	for (size_t i = 0; i < n; i++) {
		to[i] = (int32_t)four[i];
		all |= four[i];
	}
	for (size_t i = 0; all > INT32_MAX; i++)
		if (four[i] > INT32_MAX)
			return i;
	return n;
}

/* Where next_into() puts a batch; 0: not wanted. */
struct into {
	unsigned long long tokens, rows, labels, ids, starts;
	unsigned token_bytes, fields;
};

/* False, with the exception set: the dtype that was asked for cannot hold a token. */
static bool copy_tokens(struct client *c, const struct tokend_batch *b, const struct into *into)
{
	size_t n = (size_t)b->rows * b->window_tokens, bad;
	const struct tokend_row *row;
	char why[400];

	if (into->token_bytes == 8) {
		tokend_widen((int64_t *)(uintptr_t)into->tokens, b->tokens, n, b->token_bytes);
		return true;
	}
	bad = narrow((int32_t *)(uintptr_t)into->tokens, b);
	if (bad == n)
		return true;
	row = &b->row[bad / b->window_tokens];
	snprintf(why, sizeof(why),
		"dtype: int32 cannot hold token %lld (position %llu, dataset %s, shard %u, offset %llu): ask "
		"for "
		"int64",
		(long long)token_at(b, bad), (unsigned long long)row->position,
		tokend_dataset(c->t, row->dataset), row->shard,
		(unsigned long long)(row->offset + bad % b->window_tokens));
	raise_error((PyObject *)c, TOKEND_EARGUMENT, why);
	return false;
}

static bool fill(struct client *c, const struct tokend_batch *b, const struct into *into, struct packing *p)
{
	uint32_t seq = (uint32_t)c->t->origin.seq_len;

	if (into->tokens && !copy_tokens(c, b, into))
		return false;
	copy_rows(b, (int64_t *)(uintptr_t)into->rows, into->fields);
	if (into->labels)
		copy_labels(c->t, b, seq, (int64_t *)(uintptr_t)into->labels);
	if (into->ids)
		pack(p, c->t, b, seq);
	return true;
}

/* A vector of whole numbers, for it is called for every batch. */
static bool read_into(struct into *into, PyObject *const *args, Py_ssize_t n)
{
	unsigned long long number[] = {0, 0, 8, 2, 0, 0, 0};
	const Py_ssize_t most = sizeof(number) / sizeof(number[0]);

	if (n < 2 || n > most) {
		PyErr_Format(PyExc_TypeError, "next_into: takes 2 to %zd numbers, not %zd", most, n);
		return false;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		number[i] = PyLong_AsUnsignedLongLong(args[i]);
		if (number[i] == ULLONG_MAX && PyErr_Occurred())
			return false;
	}
	*into = (struct into){number[0], number[1], number[4], number[5], number[6], (unsigned)number[2],
		(unsigned)number[3]};
	return true;
}

static PyObject *client_next_into(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	struct client *c = (struct client *)self;
	struct tokend_batch b;
	struct into into;

	if (!read_into(&into, args, n) || !enter(c, true))
		return NULL;

	if (into.ids && !has_documents(c)) { /* a seek has led to a daemon of another config */
		leave(c, true);
		return NULL;
	}

	if (!views_before(c)) {
		leave(c, true);
		return NULL;
	}

	int r = UNLESS_LOST(c, tokend_try_next(c->t, &b));

	if (r == TOKEND_EAGAIN) {
		c->yields = true;
		WAITING(c, r = tokend_next(c->t, &b));
		c->yields = false;
	}
	if (r != 1) {
		if (r < 0)
			raise_last(c, r);
		leave(c, true);
		return r < 0 ? NULL : Py_NewRef(Py_None);
	}

	struct packing p = {
		.ids = (int64_t *)(uintptr_t)into.ids, .starts = (int32_t *)(uintptr_t)into.starts};
	bool filled = fill(c, &b, &into, &p);

	views_after(c, &b);
	c->batches++;
	c->tokens += (uint64_t)b.rows_valid * b.window_tokens;
	leave(c, true);
	if (!filled)
		return NULL;
	if (into.ids)
		return Py_BuildValue("IKII", b.rows_valid, (unsigned long long)b.next, p.n, p.longest);
	return Py_BuildValue("IK", b.rows_valid, (unsigned long long)b.next);
}

/* ---- saying where we are ---- */

static PyObject *client_cursor(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	PyObject *result = NULL;

	(void)none;

	char *bytes = PyMem_Malloc(TOKEND_CURSOR_BYTES);

	if (!bytes)
		return PyErr_NoMemory();
	if (enter(c, false)) {
		int64_t n = tokend_cursor(c->t, bytes, TOKEND_CURSOR_BYTES);

		result = n < 0 ? raise_last(c, (int)n) : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)n);
		leave(c, false);
	}
	PyMem_Free(bytes);
	return result;
}

static PyObject *client_position(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, false))
		return NULL;

	uint64_t position = handle_position(c->t);

	leave(c, false);
	return PyLong_FromUnsignedLongLong(position);
}

static PyObject *client_taken(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, false))
		return NULL;

	uint64_t taken = c->t->taken;

	leave(c, false);
	return PyLong_FromUnsignedLongLong(taken);
}

static PyObject *client_fingerprint(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, false))
		return NULL;

	uint64_t fingerprint = tokend_fingerprint(c->t);

	leave(c, false);
	return PyLong_FromUnsignedLongLong(fingerprint);
}

static PyObject *client_commit(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct whole next = WHOLE("next", UINT64_MAX);

	if (!PyArg_ParseTuple(args, "O&", to_whole, &next) || !enter(c, false))
		return NULL;

	int r = tokend_commit(c->t, next.value);
	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, false);
	return result;
}

static PyObject *client_shape(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	struct tokend_shape s;

	(void)none;
	if (!enter(c, false))
		return NULL;
	tokend_shape(c->t, &s);

	PyObject *batches =
		s.batches == TOKEND_ENDLESS ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(s.batches);
	PyObject *result = Py_BuildValue("{sIsIsIsIsKsKsKsNsKsKsKsdsKsKsKsO}", "rows", s.rows,
		"window_tokens", s.window_tokens, "token_bytes", s.token_bytes, "slots", s.slots, "seq_len",
		(unsigned long long)s.seq_len, "rank", (unsigned long long)s.rank, "world",
		(unsigned long long)s.world, "batches_in_all", batches, "data_bytes",
		(unsigned long long)s.data_bytes, "lost_wakes", (unsigned long long)s.lost_wakes,
		"reattached", (unsigned long long)s.reattached, "waited_s", (double)s.waited_ns / 1e9,
		"pinned_bytes", (unsigned long long)s.pinned_bytes, "batches", (unsigned long long)c->batches,
		"tokens", (unsigned long long)c->tokens, "masked",
		c->t->now->ring.geometry.loss_mask ? Py_True : Py_False);

	leave(c, false);
	return result;
}

static PyObject *client_datasets(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	PyObject *list = PyList_New(0);
	const char *name;

	(void)none;
	if (!list || !enter(c, false)) {
		Py_XDECREF(list);
		return NULL;
	}
	for (uint32_t d = 0; list && (name = tokend_dataset(c->t, d)); d++) {
		PyObject *text = PyUnicode_FromString(name);

		if (!text || PyList_Append(list, text) < 0)
			Py_CLEAR(list);
		Py_XDECREF(text);
	}
	leave(c, false);
	return list;
}

/* ---- going elsewhere ---- */

static PyObject *client_seek(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct whole rank = WHOLE("rank", UINT64_MAX), world = WHOLE("world", UINT64_MAX);
	struct whole micro = WHOLE("micro_batch", UINT32_MAX);
	const char *cursor;
	Py_ssize_t n;
	int r;

	if (!PyArg_ParseTuple(
		    args, "z#O&O&O&", &cursor, &n, to_whole, &rank, to_whole, &world, to_whole, &micro) ||
		!enter(c, true))
		return NULL;
	WAITING(c, r = tokend_seek(c->t, cursor, (size_t)n, rank.value, world.value, (uint32_t)micro.value));

	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, true);
	return result;
}

struct weights {
	const char **name; /* the texts belong to the list of names */
	double *weight;
	uint32_t n;
};

static void free_weights(struct weights *w)
{
	PyMem_Free(w->name);
	PyMem_Free(w->weight);
}

/* Of two lists. False with the exception set; free_weights() is the caller's either way. */
static bool read_weights(struct weights *w, PyObject *names, PyObject *weights)
{
	Py_ssize_t n = PyList_Size(names);

	*w = (struct weights){PyMem_Malloc((size_t)(n + 1) * sizeof(*w->name)),
		PyMem_Malloc((size_t)(n + 1) * sizeof(*w->weight)), (uint32_t)n};
	if (!w->name || !w->weight) {
		PyErr_NoMemory();
		return false;
	}
	if (PyList_Size(weights) != n) {
		PyErr_SetString(PyExc_ValueError, "mix: as many weights as names");
		return false;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		w->name[i] = PyUnicode_AsUTF8AndSize(PyList_GetItem(names, i), NULL);
		w->weight[i] = PyFloat_AsDouble(PyList_GetItem(weights, i));
		if (!w->name[i] || PyErr_Occurred())
			return false;
	}
	return true;
}

static PyObject *client_set_mix(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	PyObject *names, *weights, *result = NULL;
	uint64_t acts_from = 0;
	struct weights w;
	int r;

	if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &names, &PyList_Type, &weights))
		return NULL;
	if (read_weights(&w, names, weights) && enter(c, true)) {
		WAITING(c, r = tokend_set_mix(c->t, w.name, w.weight, w.n, &acts_from));
		result = r < 0 ? raise_last(c, r) : PyLong_FromUnsignedLongLong(acts_from);
		leave(c, true);
	}
	free_weights(&w);
	return result;
}

/* ---- the daemon's other services ---- */

static PyObject *client_checkpoint(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	char path[LIMIT_TEXT_BYTES + 1];
	const char *tag;
	int r;

	if (!PyArg_ParseTuple(args, "s", &tag) || !enter(c, true))
		return NULL;
	WAITING(c, r = tokend_checkpoint(c->t, tag, path, sizeof(path)));

	PyObject *result = r < 0 ? raise_last(c, r) : PyUnicode_DecodeFSDefault(path);

	leave(c, true);
	return result;
}

static PyObject *client_attend(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	int r;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(c, r = tokend_attend(c->t));
	leave(c, true);
	/* What is an error is the next batch's to raise; so is why no daemon can be started. */
	if (PyErr_Occurred() && PyErr_ExceptionMatches(module_of(self)->error))
		PyErr_Clear();
	return PyErr_Occurred() ? NULL : PyBool_FromLong(r == 1);
}

static PyObject *client_request_number(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, false))
		return NULL;

	uint64_t number = tokend_request_number(c->t);

	leave(c, false);
	return PyLong_FromUnsignedLongLong(number);
}

static PyObject *client_request(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	struct tokend_request request;
	int r;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(c, r = tokend_request(c->t, &request));

	PyObject *result =
		r < 0 ? raise_last(c, r)
		      : Py_BuildValue("Kss", (unsigned long long)request.number, request.kind, request.args);

	leave(c, true);
	return result;
}

static PyObject *client_obey(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	const char *kind, *text;
	uint64_t acts_from = 0;
	int r;

	if (!PyArg_ParseTuple(args, "ss", &kind, &text) || !enter(c, true))
		return NULL;
	WAITING(c, r = tokend_obey(c->t, kind, text, &acts_from));

	PyObject *result = r < 0 ? raise_last(c, r) : PyLong_FromUnsignedLongLong(acts_from);

	leave(c, true);
	return result;
}

static PyObject *client_answer(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct whole number = WHOLE("number", UINT64_MAX);
	const char *text;
	int outcome, r;

	if (!PyArg_ParseTuple(args, "O&is", to_whole, &number, &outcome, &text) || !enter(c, true))
		return NULL;
	WAITING(c, r = tokend_answer(c->t, number.value, (enum tokend_outcome)outcome, text));

	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, true);
	return result;
}

static PyObject *client_undo(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	int r;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(c, r = handle_undo(c->t));

	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, true);
	return result;
}

static PyObject *client_stream(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	PyObject *result = NULL;
	int64_t n;

	(void)none;

	char *bytes = PyMem_Malloc(TOKEND_CURSOR_BYTES);

	if (!bytes)
		return PyErr_NoMemory();
	if (enter(c, true)) {
		WAITING(c, n = tokend_stream(c->t, bytes, TOKEND_CURSOR_BYTES));
		result = n < 0 ? raise_last(c, (int)n) : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)n);
		leave(c, true);
	}
	PyMem_Free(bytes);
	return result;
}

static PyObject *client_record(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	PyObject *path = NULL;

	if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path))
		return NULL;
	if (!enter(c, true)) {
		Py_DECREF(path);
		return NULL;
	}

	int r = tokend_record(c->t, PyBytes_AsString(path));
	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, true);
	Py_DECREF(path);
	return result;
}

/* ---- cursors as values ---- */

/* An edit on its way: the library's view of it, and room for its result and for a line. */
struct draft {
	struct tokend_edit edit;
	char why[600];
};

static bool draft_begin(struct draft *d, const char *cursor, Py_ssize_t n)
{
	d->edit = (struct tokend_edit){cursor, (size_t)n, PyMem_Malloc(TOKEND_CURSOR_BYTES),
		TOKEND_CURSOR_BYTES, d->why, sizeof(d->why)};
	d->why[0] = 0;
	if (d->edit.to)
		return true;
	PyErr_NoMemory();
	return false;
}

static PyObject *raise_edit(PyObject *module, int code, const char *why)
{
	struct module *m = PyModule_GetState(module);

	PyErr_SetString(m->kind[code == TOKEND_EMEMORY ? -TOKEND_EMEMORY : -TOKEND_EARGUMENT], why);
	return NULL;
}

static PyObject *draft_end(PyObject *module, struct draft *d, int64_t length)
{
	PyObject *result = length < 0 ? raise_edit(module, (int)length, d->why)
				      : PyBytes_FromStringAndSize(d->edit.to, (Py_ssize_t)length);

	PyMem_Free(d->edit.to);
	return result;
}

typedef int64_t edit_to(const struct tokend_edit *edit, uint64_t number);

static PyObject *edit_number(PyObject *module, PyObject *args, const char *name, edit_to *edit)
{
	struct whole number = WHOLE(name, UINT64_MAX);
	const char *cursor;
	struct draft d;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "y#O&", &cursor, &n, to_whole, &number) || !draft_begin(&d, cursor, n))
		return NULL;
	return draft_end(module, &d, edit(&d.edit, number.value));
}

static PyObject *edit_seek(PyObject *module, PyObject *args)
{
	return edit_number(module, args, "position", tokend_cursor_seek);
}

static PyObject *edit_skip(PyObject *module, PyObject *args)
{
	return edit_number(module, args, "samples", tokend_cursor_skip);
}

static PyObject *edit_rewind(PyObject *module, PyObject *args)
{
	return edit_number(module, args, "position", tokend_cursor_rewind);
}

static PyObject *edit_mix(PyObject *module, PyObject *args)
{
	struct whole at = {"at", UINT64_MAX, TOKEND_SOON, false};
	PyObject *names, *weights, *result = NULL;
	struct weights w;
	const char *cursor;
	struct draft d;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "y#O!O!O&", &cursor, &n, &PyList_Type, &names, &PyList_Type, &weights,
		    to_whole, &at))
		return NULL;
	if (read_weights(&w, names, weights) && draft_begin(&d, cursor, n))
		result = draft_end(module, &d, tokend_cursor_mix(&d.edit, at.value, w.name, w.weight, w.n));
	free_weights(&w);
	return result;
}

static PyObject *edit_add(PyObject *module, PyObject *args)
{
	const char *cursor, *from, *name;
	Py_ssize_t n, from_bytes;
	struct draft d;

	if (!PyArg_ParseTuple(args, "y#y#s", &cursor, &n, &from, &from_bytes, &name) ||
		!draft_begin(&d, cursor, n))
		return NULL;
	return draft_end(module, &d, tokend_cursor_add(&d.edit, from, (size_t)from_bytes, name));
}

static PyObject *edit_remove(PyObject *module, PyObject *args)
{
	struct whole at = {"at", UINT64_MAX, TOKEND_SOON, false};
	const char *cursor, *name;
	struct draft d;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "y#sO&", &cursor, &n, &name, to_whole, &at) ||
		!draft_begin(&d, cursor, n))
		return NULL;
	return draft_end(module, &d, tokend_cursor_remove(&d.edit, name, at.value));
}

static PyObject *position_of(PyObject *module, PyObject *args)
{
	uint64_t position = 0;
	const char *cursor;
	Py_ssize_t n;
	char why[600];

	if (!PyArg_ParseTuple(args, "y#", &cursor, &n))
		return NULL;

	int r = tokend_cursor_position(cursor, (size_t)n, &position, why, sizeof(why));

	return r < 0 ? raise_edit(module, r, why) : PyLong_FromUnsignedLongLong(position);
}

/* order.md, 2. */
static PyObject *derive(PyObject *module, PyObject *args)
{
	unsigned long long seed, tag, value;

	(void)module;
	if (!PyArg_ParseTuple(args, "KKK", &seed, &tag, &value))
		return NULL;
	return PyLong_FromUnsignedLongLong(order_derive(seed, tag, value));
}

static PyObject *show(PyObject *module, PyObject *args)
{
	enum { JSON_BYTES = 4 << 20 };
	const char *cursor;
	Py_ssize_t n;
	char why[600] = "";

	if (!PyArg_ParseTuple(args, "y#", &cursor, &n))
		return NULL;

	char *json = PyMem_Malloc(JSON_BYTES);

	if (!json)
		return PyErr_NoMemory();

	int64_t length = tokend_cursor_show(cursor, (size_t)n, json, JSON_BYTES, why, sizeof(why));
	PyObject *result = length < 0 ? raise_edit(module, (int)length, why)
				      : PyUnicode_DecodeUTF8(json, (Py_ssize_t)length, "strict");

	PyMem_Free(json);
	return result;
}

/* ---- the module ---- */

static PyMethodDef client_methods[] = {
	{"next_into", (PyCFunction)(void (*)(void))client_next_into, METH_FASTCALL,
		"(tokens [rows, window], rows [fields, rows], bytes of a token = 8, fields = 2, labels "
		"[rows, seq], "
		"position_ids [rows, seq], int32 cu_seqlens [rows * seq + 1]): addresses of int64, or 0 → "
		"(rows_valid, next), with position_ids (…, documents, longest), or None at the end. Fields: "
		"position, "
		"dataset, epoch, window, shard, offset"},
	{"need_documents", client_need_documents, METH_NOARGS, "raises if the stream does not carry them"},
	{"cursor", client_cursor, METH_NOARGS, "bytes"},
	{"position", client_position, METH_NOARGS, "of the cursor"},
	{"taken", client_taken, METH_NOARGS, "position behind the last batch taken"},
	{"fingerprint", client_fingerprint, METH_NOARGS, "equal on all ranks at one step"},
	{"commit", client_commit, METH_VARARGS, "(next)"},
	{"shape", client_shape, METH_NOARGS, "a dict of sizes and counts"},
	{"datasets", client_datasets, METH_NOARGS, "their names, by index"},
	{"seek", client_seek, METH_VARARGS, "(cursor or None, rank, world, micro_batch)"},
	{"set_mix", client_set_mix, METH_VARARGS, "(names, weights) → where it acts from"},
	{"checkpoint", client_checkpoint, METH_VARARGS, "(tag) → path"},
	{"attend", client_attend, METH_NOARGS, "looks after the connection: is there one?"},
	{"request_number", client_request_number, METH_NOARGS, "of the operator's last request, or 0"},
	{"request", client_request, METH_NOARGS, "(number, kind, args)"},
	{"obey", client_obey, METH_VARARGS, "(kind, args) → where it acts from"},
	{"undo", client_undo, METH_NOARGS, "the last mix that obey() carried out"},
	{"answer", client_answer, METH_VARARGS, "(number, NOTED, DONE or FAILED, text)"},
	{"stream", client_stream, METH_NOARGS, "the stream's cursor at 0 as configured now"},
	{"lend", client_lend, METH_VARARGS,
		"(hold): from now on batches are lent by view(), the last @hold ones when the next is taken"},
	{"view", client_view, METH_NOARGS, "the batch that next_into() took, as a DLPack capsule"},
	{"pin", client_pin, METH_VARARGS,
		"(device): registers the ring with a GPU's driver, or raises why not"},
	{"copied", client_copied, METH_NOARGS, "is the batch that comes next on its way to a GPU?"},
	{"copy_next", client_copy_next, METH_VARARGS,
		"(to, stream, wait): copies the batch that comes next, without taking it; False: there is "
		"none"},
	{"record", client_record, METH_VARARGS, "(path): what is taken is recorded there"},
	{"close", client_close, METH_NOARGS, "gives everything back"},
	{0},
};

static PyType_Slot client_slots[] = {
	{Py_tp_doc, "One session with a daemon. See tokend.Loader."},
	{Py_tp_new, client_new},
	{Py_tp_init, client_init},
	{Py_tp_dealloc, client_dealloc},
	{Py_tp_methods, client_methods},
	{0},
};

static PyType_Spec client_spec = {
	"tokend._tokend.Client", sizeof(struct client), 0, Py_TPFLAGS_DEFAULT, client_slots};

static const struct {
	int code;
	const char *name, *doc;
	const char *beside; /* the built-in exception that it is too */
} errors[] = {
	{TOKEND_EARGUMENT, "ArgumentError", "A value that cannot be; nothing was changed.", "ValueError"},
	{TOKEND_ECONNECT, "ConnectError", "No daemon answers at the socket.", "ConnectionError"},
	{TOKEND_EREFUSED, "RefusedError", "The daemon refused: the text names the field.", NULL},
	{TOKEND_EDATA, "DataError", "The stream stopped: a shard is unreadable, truncated or replaced.",
		NULL},
	{TOKEND_EHELD, "HeldError", "All slots are held.", NULL},
	{TOKEND_EMEMORY, "ResourceError", "Out of memory or file descriptors.", "MemoryError"},
	{TOKEND_EPROTOCOL, "ProtocolError", "What answers is no tokend of a version we speak.", NULL},
	{TOKEND_EFORKED, "ForkedError", "Used in a child of the process that attached.", NULL},
	{TOKEND_EAGAIN, "NotNowError", "Not now: commit what was taken first.", NULL},
};

static PyObject *new_error(struct module *m, const char *name, const char *doc, const char *beside)
{
	PyObject *builtins = PyEval_GetBuiltins(); /* borrowed */
	PyObject *other = beside ? PyDict_GetItemString(builtins, beside) : NULL;
	PyObject *bases = other ? PyTuple_Pack(2, m->error, other) : PyTuple_Pack(1, m->error);
	char full[64];

	snprintf(full, sizeof(full), "tokend.%s", name);

	PyObject *error = bases ? PyErr_NewExceptionWithDoc(full, doc, bases, NULL) : NULL;

	Py_XDECREF(bases);
	return error;
}

static int execute(PyObject *module)
{
	struct module *m = PyModule_GetState(module);

	m->error = PyErr_NewExceptionWithDoc("tokend.Error", "Everything that tokend raises.", NULL, NULL);
	if (!m->error || PyModule_AddObjectRef(module, "Error", m->error) < 0)
		return -1;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		PyObject *error = new_error(m, errors[i].name, errors[i].doc, errors[i].beside);

		m->kind[-errors[i].code] = error;
		if (!error || PyModule_AddObjectRef(module, errors[i].name, error) < 0)
			return -1;
	}
	m->client = PyType_FromModuleAndSpec(module, &client_spec, NULL);
	if (!m->client || PyModule_AddObjectRef(module, "Client", m->client) < 0)
		return -1;
	if (PyModule_AddIntConstant(module, "NOTED", TOKEND_NOTED) < 0 ||
		PyModule_AddIntConstant(module, "DONE", TOKEND_DONE) < 0 ||
		PyModule_AddIntConstant(module, "FAILED", TOKEND_FAILED) < 0)
		return -1;
	return PyModule_AddStringConstant(module, "version", tokend_version());
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
	struct module *m = PyModule_GetState(module);

	Py_VISIT(m->error);
	Py_VISIT(m->client);
	for (int i = 0; i <= ERRORS; i++)
		Py_VISIT(m->kind[i]);
	return 0;
}

static int clear(PyObject *module)
{
	struct module *m = PyModule_GetState(module);

	Py_CLEAR(m->error);
	Py_CLEAR(m->client);
	for (int i = 0; i <= ERRORS; i++)
		Py_CLEAR(m->kind[i]);
	return 0;
}

static PyMethodDef module_methods[] = {
	{"cursor_seek", edit_seek, METH_VARARGS, "(cursor, position) → cursor"},
	{"cursor_skip", edit_skip, METH_VARARGS, "(cursor, samples) → cursor"},
	{"cursor_rewind", edit_rewind, METH_VARARGS, "(cursor, position) → cursor"},
	{"cursor_mix", edit_mix, METH_VARARGS, "(cursor, names, weights, at or None) → cursor"},
	{"cursor_add", edit_add, METH_VARARGS, "(cursor, cursor that has it, name) → cursor"},
	{"cursor_remove", edit_remove, METH_VARARGS, "(cursor, name, at or None) → cursor"},
	{"cursor_position", position_of, METH_VARARGS, "(cursor) → position"},
	{"cursor_show", show, METH_VARARGS, "(cursor) → JSON"},
	{"derive", derive, METH_VARARGS, "(seed, tag, value) → a key, as the order derives them"},
	{0},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0}};

static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "_tokend",
	.m_size = sizeof(struct module),
	.m_methods = module_methods,
	.m_slots = module_slots,
	.m_traverse = traverse,
	.m_clear = clear,
};

PyMODINIT_FUNC PyInit__tokend(void)
{
	return PyModuleDef_Init(&definition);
}
