/*
 * A handle of libtokend as a Python object, in the stable ABI. Users call the package's loader.py,
 * which also checks integers. This code converts values and releases the interpreter's lock while
 * a call waits.
 */
#include "client/python/src/client.h"

#include <string.h>

/* Unlocks after a call. Returns None, or NULL with the exception of @r < 0. */
static PyObject *done(struct client *c, bool waits, int r)
{
	return leave(c, waits, r < 0 ? raise_last(c, r) : Py_NewRef(Py_None));
}

/* ---- members ---- */

static uint64_t (*const numbers[])(const struct tokend *t) = {
	tokend_position, tokend_taken, tokend_contents, tokend_fingerprint, tokend_request_number};

static PyObject *get_number(PyObject *self, void *member)
{
	uint64_t (*const *of)(const struct tokend *t) = member;
	struct client *c = (struct client *)self;

	if (!enter(c, false))
		return NULL;
	return leave(c, false, PyLong_FromUnsignedLongLong((*of)(c->t)));
}

static PyObject *get_cursor(PyObject *self, void *none)
{
	struct client *c = (struct client *)self;
	char *bytes = PyMem_Malloc(TOKEND_CURSOR_BYTES);
	PyObject *result = NULL;

	(void)none;
	if (!bytes)
		return PyErr_NoMemory();
	if (enter(c, false)) {
		int64_t n = tokend_cursor(c->t, bytes, TOKEND_CURSOR_BYTES);

		result = leave(c, false,
			n < 0 ? raise_last(c, (int)n)
			      : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)n));
	}
	PyMem_Free(bytes);
	return result;
}

/* An "O&" converter of Py_BuildValue(): a text that may be a path. NULL: None. */
static PyObject *from_path(void *text)
{
	return text ? PyUnicode_DecodeFSDefault(text) : Py_NewRef(Py_None);
}

static PyObject *client_shape(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	struct tokend_shape s;

	(void)none;
	if (!enter(c, false))
		return NULL;
	tokend_shape(c->t, &s);

	return leave(c, false,
		Py_BuildValue("{sIsIsIsIsKsKsKsKsKsdsKsKsIsO&sO&sO&}", "rows", s.rows,
			"window_tokens", s.window_tokens, "token_bytes", s.token_bytes, "slots",
			s.slots, "seq_len", (unsigned long long)s.seq_len, "rank",
			(unsigned long long)s.rank, "world", (unsigned long long)s.world,
			"lost_wakes", (unsigned long long)s.lost_wakes, "reattached",
			(unsigned long long)s.reattached, "waited_s", (double)s.waited_ns / 1e9,
			"batches", (unsigned long long)c->batches, "tokens",
			(unsigned long long)c->tokens, "annotations", tokend_annotations(c->t),
			"run", from_path, tokend_run(c->t), "socket", from_path,
			tokend_socket(c->t), "config", from_path, tokend_config(c->t)));
}

/* ---- position ---- */

static PyObject *client_commit(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	unsigned long long next;

	if (!PyArg_ParseTuple(args, "K", &next) || !enter(c, false))
		return NULL;
	return done(c, false, tokend_commit(c->t, next));
}

static PyObject *client_seek(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	unsigned long long rank, world;
	const char *cursor;
	unsigned rows;
	int again = 0, r;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "z#KKI|p", &cursor, &n, &rank, &world, &rows, &again) ||
		!enter(c, true))
		return NULL;
	WAITING(r = (again ? tokend_seek_pass : tokend_seek)(
			c->t, cursor, (size_t)n, rank, world, rows));
	return done(c, true, r);
}

static PyObject *client_set_mix(PyObject *self, PyObject *by_name)
{
	struct client *c = (struct client *)self;
	PyObject *result = NULL;
	uint64_t acts_from = 0;
	struct weights w;
	int r;

	if (read_weights(&w, by_name) && enter(c, true)) {
		WAITING(r = tokend_set_mix(c->t, w.name, w.weight, w.n, &acts_from));
		result = leave(
			c, true, r < 0 ? raise_last(c, r) : PyLong_FromUnsignedLongLong(acts_from));
	}
	free_weights(&w);
	return result;
}

static PyObject *client_checkpoint(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	char path[4096];
	const char *tag;
	int r;

	if (!PyArg_ParseTuple(args, "s", &tag) || !enter(c, true))
		return NULL;
	WAITING(r = tokend_checkpoint(c->t, tag, path, sizeof(path)));
	return leave(c, true, r < 0 ? raise_last(c, r) : PyUnicode_DecodeFSDefault(path));
}

static PyObject *client_record(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	PyObject *path, *result = NULL;

	if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path))
		return NULL;
	if (enter(c, true))
		result = done(c, true, tokend_record(c->t, PyBytes_AsString(path)));
	Py_DECREF(path);
	return result;
}

/* ---- an operator's requests ---- */

static PyObject *client_attend(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING((void)tokend_attend(c->t));
	/* The call that takes the next batch raises the library's errors. */
	return done(c, true, 0);
}

static PyObject *client_request(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	struct tokend_request request;
	int r;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(r = tokend_request(c->t, &request));
	return leave(c, true,
		r < 0 ? raise_last(c, r)
		      : Py_BuildValue("Kss", (unsigned long long)request.number, request.kind,
				request.args));
}

static PyObject *client_obey(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	const char *kind, *text;
	uint64_t acts_from = 0;
	int r;

	if (!PyArg_ParseTuple(args, "ss", &kind, &text) || !enter(c, true))
		return NULL;
	WAITING(r = tokend_obey(c->t, kind, text, &acts_from));
	return leave(c, true, r < 0 ? raise_last(c, r) : PyLong_FromUnsignedLongLong(acts_from));
}

static PyObject *client_undo(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING((void)tokend_undo(c->t));
	return done(c, true, 0);
}

static PyObject *client_answer(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	unsigned long long number;
	const char *text;
	int outcome, r;

	if (!PyArg_ParseTuple(args, "Kis", &number, &outcome, &text) || !enter(c, true))
		return NULL;
	WAITING(r = tokend_answer(c->t, number, (enum tokend_outcome)outcome, text));
	return done(c, true, r);
}

/* ---- the ring's memory, for device.py ---- */

/* Libtokend unmaps a ring. @context: the callable of client_memory(), which must not use the
 * client. */
static void on_gone(void *context, void *base, uint64_t bytes)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *gone = context, *result, *type, *value, *trace;
	bool interrupted = false;

	PyErr_Fetch(&type, &value, &trace); /* that of the call */
	/* It must complete: a Ctrl-C is delivered afterwards. */
	while (!(result = PyObject_CallFunction(gone, "KK", (unsigned long long)(uintptr_t)base,
			 (unsigned long long)bytes)) &&
		PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
		PyErr_Clear();
		interrupted = true;
	}
	if (!result)
		PyErr_WriteUnraisable(gone);
	if (interrupted)
		PyErr_SetInterrupt();
	Py_XDECREF(result);
	Py_DECREF(gone);
	PyErr_Restore(type, value, trace);
	PyGILState_Release(state);
}

static PyObject *client_memory(PyObject *self, PyObject *gone)
{
	struct client *c = (struct client *)self;
	uint64_t bytes;
	void *base;

	if (!enter(c, false))
		return NULL;

	int r = tokend_memory(c->t, &base, &bytes, on_gone, gone);

	if (r != 1)
		return done(c, false, r);
	Py_INCREF(gone);
	return leave(c, false,
		Py_BuildValue(
			"KK", (unsigned long long)(uintptr_t)base, (unsigned long long)bytes));
}

static PyObject *client_slot(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	struct tokend_batch b;
	int r;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(r = tokend_peek(c->t, &b, 0));
	if (r != 1) /* the call that takes the batch raises the error */
		return done(c, true, 0);
	return leave(c, true,
		Py_BuildValue("KIIIK", (unsigned long long)(uintptr_t)b.tokens, b.rows,
			b.window_tokens, b.token_bytes, (unsigned long long)b.handle));
}

static PyObject *client_release(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	unsigned long long handle;

	if (!PyArg_ParseTuple(args, "K", &handle) || !enter(c, true))
		return NULL;

	struct tokend_batch b = {.handle = handle};

	WAITING(tokend_release(c->t, &b)); /* may call on_gone() */
	return done(c, true, 0);
}

/* ---- attach and close ---- */

/* Ends the session. */
static void client_detach(struct client *c)
{
	tokend_detach(c->t);
	c->t = NULL;
}

/* An "O&" converter to PyObject *, a path as bytes, which the caller releases. None: NULL. */
static int to_path(PyObject *object, void *out)
{
	return object == Py_None ? 1 : PyUnicode_FSConverter(object, out);
}

static int client_init(PyObject *self, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"stream", "micro_batch", "socket", "run", "rank", "world", "peer",
		"slots", "deadline_ms", "connect_ms", "cursor", "tag", "position", "helper",
		"strict", "config", "max_wait_ms", NULL};
	struct client *c = (struct client *)self;
	unsigned long long rank = 0, world = 1, max_wait = 0;
	struct tokend_options o = {.size = sizeof(o),
		.idle = on_idle,
		.notice = on_notice,
		.context = c,
		.warn = on_warn,
		.warn_context = c};
	Py_ssize_t cursor_bytes = 0;
	PyObject *config = NULL, *position = Py_None;
	char why[1400];
	int r;

	if (!PyArg_ParseTupleAndKeywords(args, keywords, "sI|zzKKIIIIz#zOppO&K", names, &o.stream,
		    &o.micro_batch, &o.socket, &o.run, &rank, &world, &o.peer, &o.slots,
		    &o.deadline_ms, &o.connect_ms, &o.cursor, &cursor_bytes, &o.tag, &position,
		    &o.helper, &o.strict, to_path, &config, &max_wait))
		return -1;
	o.rank = rank;
	o.world = world;
	o.cursor_bytes = (size_t)cursor_bytes;
	o.start_at_position = position != Py_None;
	o.position = o.start_at_position ? PyLong_AsUnsignedLongLong(position) : 0;
	o.max_wait_ms = max_wait;
	o.config = config ? PyBytes_AsString(config) : NULL;
	WAITING(r = tokend_attach(&c->t, &o, why, sizeof(why)));
	Py_XDECREF(config);
	if (r < 0)
		raise_error(self, r, why);
	else if (PyErr_Occurred())
		WAITING(client_detach(c)); /* a warning that the user made an error */
	return c->t ? 0 : -1;
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

	client_detach(c);
	pthread_mutex_destroy(&c->turn);
	pthread_mutex_destroy(&c->state);
	release(self);
	Py_DECREF(type);
}

static PyObject *client_close(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!c->t || tokend_forked(c->t))
		Py_RETURN_NONE;
	if (!enter(c, true)) {
		if (c->t)
			return NULL;
		PyErr_Clear();
		Py_RETURN_NONE;
	}
	/* Waits for copies, which may wait for a thread that needs the interpreter's lock. */
	WAITING(client_detach(c));
	return done(c, true, 0);
}

/* ---- the class ---- */

/* Without a description: as the function of tokend.h with this name. */
static PyMethodDef client_methods[] = {
	{"look_into", client_look_into, METH_VARARGS,
		"look_into(tokens, token_bytes, width, rows, labels, label_bytes, position_ids, "
		"cu_seqlens, *fields)\n\n"
		"Waits for the next batch and copies it to these addresses (0: not wanted):\n"
		"tokens        [rows, width] of token_bytes, 4 or 8\n"
		"labels        [rows, seq_len] of label_bytes, 4 or 8\n"
		"position_ids  int64 [rows, seq_len], with\n"
		"cu_seqlens    int32 [rows * seq_len + 1]\n"
		"fields        int64 [rows] each: position, dataset, epoch, window, shard, "
		"offset\n\n"
		"Returns (rows_valid, next, documents, longest, annotations), or None at the end "
		"of the stream. Does not take the batch: call take() then."},
	{"shape", client_shape, METH_NOARGS, "Sizes, counters and names, as a dict."},
	{"commit", client_commit, METH_VARARGS, NULL},
	{"seek", client_seek, METH_VARARGS,
		"seek(cursor or None, rank, world, micro_batch, again=False)\n\n"
		"Moves to a cursor (None: the last batch taken). again: another pass over a finite "
		"stream."},
	{"set_mix", client_set_mix, METH_O,
		"set_mix(weights by name)\n\nReturns the first position of the new mix."},
	{"checkpoint", client_checkpoint, METH_VARARGS, "checkpoint(tag)\n\nReturns the path."},
	{"record", client_record, METH_VARARGS, NULL},
	{"attend", client_attend, METH_NOARGS, NULL},
	{"request", client_request, METH_NOARGS, "Returns (number, kind, args)."},
	{"obey", client_obey, METH_VARARGS,
		"obey(kind, args)\n\nReturns the first position at which the order differs."},
	{"undo", client_undo, METH_NOARGS, NULL},
	{"answer", client_answer, METH_VARARGS, "answer(number, outcome, text)"},
	{"memory", client_memory, METH_O,
		"memory(gone)\n\nAddress and bytes of the ring's slots; None: the same ring as in "
		"the former call. gone(address, bytes) is called before it is unmapped."},
	{"slot", client_slot, METH_NOARGS,
		"(address, rows, window, token_bytes, handle) of the next batch's tokens; None: it "
		"is not ready."},
	{"release", client_release, METH_VARARGS,
		"release(handle)\n\nReleases a batch that was taken with keep."},
	{"close", client_close, METH_NOARGS, "Ends the session and frees everything."},
	{0},
};

/* The same. */
static PyGetSetDef client_members[] = {
	{"cursor", get_cursor, NULL, "Bytes.", NULL},
	{"takes", NULL, client_set_takes,
		"Set it to (next, keep) to take the batch with the next of look_into(). "
		"LookupError: "
		"another thread was faster. keep: release() releases it.",
		NULL},
	{"position", get_number, NULL, NULL, (void *)&numbers[0]},
	{"taken", get_number, NULL, NULL, (void *)&numbers[1]},
	{"contents", get_number, NULL, NULL, (void *)&numbers[2]},
	{"fingerprint", get_number, NULL, NULL, (void *)&numbers[3]},
	{"request_number", get_number, NULL, NULL, (void *)&numbers[4]},
	{0},
};

static PyType_Slot client_slots[] = {
	{Py_tp_doc, "One session with a daemon. Private: use tokend.Loader."},
	{Py_tp_new, client_new},
	{Py_tp_init, client_init},
	{Py_tp_dealloc, client_dealloc},
	{Py_tp_methods, client_methods},
	{Py_tp_getset, client_members},
	{0},
};

PyType_Spec client_spec = {
	"tokend._tokend.Client", sizeof(struct client), 0, Py_TPFLAGS_DEFAULT, client_slots};
