/*
 * A handle of libtokend as a Python object, in the stable ABI. Users call the package's loader.py,
 * which also checks integers. This code converts values and releases the interpreter's lock while
 * a call waits.
 */
#include "client/python/src/client.h"

#include <string.h>

/* ---- members ---- */

static uint64_t (*const numbers[])(const struct tokend *t) = {
	tokend_position, tokend_taken, tokend_contents, tokend_fingerprint, tokend_request_number};

static PyObject *get_number(PyObject *self, void *member)
{
	uint64_t (*const *of)(const struct tokend *t) = member;
	struct client *c = (struct client *)self;

	if (!enter(c, false))
		return NULL;
	return leave(c, false, 0, PyLong_FromUnsignedLong((*of)(c->t)));
}

static PyObject *get_cursor(PyObject *self, void *none)
{
	char bytes[TOKEND_CURSOR_BYTES];

	(void)none;
	CALL(false, (int)tokend_cursor(c->t, bytes, sizeof(bytes)),
		PyBytes_FromStringAndSize(bytes, r));
}

/* An "O&" converter of Py_BuildValue(): a text that may be a path. NULL: None. */
static PyObject *from_path(void *text)
{
	return text ? PyUnicode_DecodeFSDefault(text) : Py_NewRef(Py_None);
}

static PyObject *client_shape(PyObject *self, PyObject *none)
{
	struct tokend_shape s;

	(void)none;
	CALL(false, (tokend_shape(c->t, &s), 0),
		Py_BuildValue("{sIsIsIsksksksksksdsksksIsksO&sO&sO&}", "rows", s.rows,
			"window_tokens", s.window_tokens, "slots", s.slots, "seq_len", s.seq_len,
			"rank", s.rank, "world", s.world, "lost_wakes", s.lost_wakes, "reattached",
			s.reattached, "waited_s", (double)s.waited_ns / 1e9, "batches", c->batches,
			"tokens", c->tokens, "annotations", tokend_annotations(c->t), "version",
			client_version(c), "run", from_path, tokend_run(c->t), "socket", from_path,
			tokend_socket(c->t), "config", from_path, tokend_config(c->t)));
}

/* ---- position ---- */

static PyObject *client_commit(PyObject *self, PyObject *args)
{
	uint64_t next;

	if (!PyArg_ParseTuple(args, "k", &next))
		return NULL;
	CALL(false, tokend_commit(c->t, next), Py_NewRef(Py_None));
}

static PyObject *client_seek(PyObject *self, PyObject *args)
{
	uint64_t rank, world;
	const char *cursor;
	unsigned rows;
	Py_ssize_t n;
	int again;

	if (!PyArg_ParseTuple(args, "z#kkIp", &cursor, &n, &rank, &world, &rows, &again) ||
		!may_move((struct client *)self))
		return NULL;
	CALL(true,
		(c->moves++, (again ? tokend_seek_pass : tokend_seek)(
				     c->t, cursor, (size_t)n, rank, world, rows)),
		Py_NewRef(Py_None));
}

bool read_weights(struct weights *w, PyObject *by_name)
{
	PyObject *name, *weight;
	Py_ssize_t at = 0, bytes;

	for (w->n = 0; PyDict_Next(by_name, &at, &name, &weight); w->n++) {
		if (w->n == sizeof(w->name) / sizeof(w->name[0])) {
			PyErr_Format(PyExc_ValueError, "mix: more than %u datasets", w->n);
			return false;
		}
		w->name[w->n] = PyUnicode_AsUTF8AndSize(name, &bytes);
		if (w->name[w->n] && strlen(w->name[w->n]) != (size_t)bytes)
			PyErr_Format(PyExc_ValueError, "mix: %R is not a dataset's name", name);
		w->weight[w->n] = PyFloat_AsDouble(weight);
		if (PyErr_Occurred())
			return false;
	}
	return true;
}

static PyObject *client_set_mix(PyObject *self, PyObject *by_name)
{
	uint64_t acts_from;
	struct weights w;

	if (!read_weights(&w, by_name) || !may_move((struct client *)self))
		return NULL;
	CALL(true, (c->moves++, tokend_set_mix(c->t, w.name, w.weight, w.n, &acts_from)),
		PyLong_FromUnsignedLong(acts_from));
}

static PyObject *client_checkpoint(PyObject *self, PyObject *args)
{
	char path[4096];
	const char *tag;

	if (!PyArg_ParseTuple(args, "s", &tag))
		return NULL;
	CALL(true, tokend_checkpoint(c->t, tag, path, sizeof(path)),
		PyUnicode_DecodeFSDefault(path));
}

static PyObject *client_record(PyObject *self, PyObject *args)
{
	const char *path;

	if (!PyArg_ParseTuple(args, "y", &path))
		return NULL;
	CALL(true, tokend_record(c->t, path), Py_NewRef(Py_None));
}

/* ---- an operator's requests ---- */

/* The call that takes the next batch raises the library's errors. */
static PyObject *client_attend(PyObject *self, PyObject *none)
{
	(void)none;
	CALL(true, ((void)tokend_attend(c->t), 0), Py_NewRef(Py_None));
}

static PyObject *client_request(PyObject *self, PyObject *none)
{
	struct tokend_request request;

	(void)none;
	CALL(true, tokend_request(c->t, &request),
		Py_BuildValue("kss", request.number, request.kind, request.args));
}

static PyObject *client_obey(PyObject *self, PyObject *args)
{
	const char *kind, *text;
	uint64_t acts_from;

	if (!PyArg_ParseTuple(args, "ss", &kind, &text) || !may_move((struct client *)self))
		return NULL;
	CALL(true, (c->moves++, tokend_obey(c->t, kind, text, &acts_from)),
		PyLong_FromUnsignedLong(acts_from));
}

static PyObject *client_undo(PyObject *self, PyObject *none)
{
	(void)none;
	if (!may_move((struct client *)self))
		return NULL;
	CALL(true, (c->moves++, (void)tokend_undo(c->t), 0), Py_NewRef(Py_None));
}

static PyObject *client_answer(PyObject *self, PyObject *args)
{
	uint64_t number;
	const char *text;
	int outcome;

	if (!PyArg_ParseTuple(args, "kis", &number, &outcome, &text))
		return NULL;
	CALL(true, tokend_answer(c->t, number, (enum tokend_outcome)outcome, text),
		Py_NewRef(Py_None));
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
	while (!(result = PyObject_CallFunction(gone, "kk", (uintptr_t)base, bytes)) &&
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
	uint64_t bytes;
	void *base;

	CALL(false, tokend_memory(c->t, &base, &bytes, on_gone, gone),
		r == 0 ? Py_NewRef(Py_None)
		       : (Py_INCREF(gone), Py_BuildValue("kk", (uintptr_t)base, bytes)));
}

static PyObject *client_slot(PyObject *self, PyObject *none)
{
	struct tokend_batch b;
	bool there;

	(void)none;
	/* The call that takes the batch raises the error. */
	CALL(true, (there = tokend_peek(c->t, &b, 0) == 1, 0),
		there ? Py_BuildValue("kIIIk", (uintptr_t)b.tokens, b.rows, b.window_tokens,
				b.token_bytes, b.handle)
		      : Py_NewRef(Py_None));
}

static int client_set_copies(PyObject *self, PyObject *value, void *none)
{
	(void)none;
	((struct client *)self)->copies = value == Py_True;
	return 0;
}

static PyObject *client_release(PyObject *self, PyObject *args)
{
	struct tokend_batch b = {0};

	if (!PyArg_ParseTuple(args, "k", &b.handle))
		return NULL;
	/* may call on_gone() */
	CALL(true, (tokend_release(c->t, &b), 0), Py_NewRef(Py_None));
}

/* ---- attach and close ---- */

/* Ends the session. Waits for copies, which may wait for a thread that needs the interpreter's
 * lock. That lock protects c->t from other threads that look whether the session has ended. */
static void detach(struct client *c)
{
	struct tokend *t = c->t;

	c->t = NULL;
	WAITING(tokend_detach(t));
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
	struct tokend_options o = {.size = sizeof(o),
		.world = 1,
		.idle = on_idle,
		.notice = on_notice,
		.context = c,
		.warn = on_warn,
		.warn_context = c};
	PyObject *socket = NULL, *config = NULL, *position = Py_None;
	Py_ssize_t cursor_bytes = 0;
	char why[WHY_BYTES];
	int r;

	c->turn = c->state = (pthread_mutex_t)PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
	if (!PyArg_ParseTupleAndKeywords(args, keywords, "sI|O&zkkIIIIz#zOppO&k", names, &o.stream,
		    &o.micro_batch, to_path, &socket, &o.run, &o.rank, &o.world, &o.peer, &o.slots,
		    &o.deadline_ms, &o.connect_ms, &o.cursor, &cursor_bytes, &o.tag, &position,
		    &o.helper, &o.strict, to_path, &config, &o.max_wait_ms))
		return -1;
	o.socket = socket ? PyBytes_AsString(socket) : NULL;
	o.config = config ? PyBytes_AsString(config) : NULL;
	o.cursor_bytes = (size_t)cursor_bytes;
	o.start_at_position = position != Py_None;
	o.position = o.start_at_position ? PyLong_AsUnsignedLong(position) : 0;
	WAITING(r = tokend_attach(&c->t, &o, why, sizeof(why)));
	Py_XDECREF(socket);
	Py_XDECREF(config);
	warn_notices(c);
	if (r < 0)
		raise_error(r, why);
	else if (PyErr_Occurred()) /* a warning that the user made an error */
		detach(c);
	return c->t ? 0 : -1;
}

static void client_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = PyType_GetSlot(type, Py_tp_free);

	tokend_detach(((struct client *)self)->t);
	Py_XDECREF(((struct client *)self)->notices);
	release(self);
	Py_DECREF(type);
}

static PyObject *client_close(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!c->t || tokend_forked(c->t))
		Py_RETURN_NONE;
	if (!may_move(c))
		return NULL;
	if (!enter(c, true)) {
		if (c->t)
			return NULL;
		PyErr_Clear();
		Py_RETURN_NONE;
	}
	detach(c);
	return leave(c, true, 0, Py_NewRef(Py_None));
}

/* ---- the class ---- */

/* Without a description: as the function of tokend.h with this name. */
static PyMethodDef client_methods[] = {
	{"look_into", client_look_into, METH_VARARGS,
		"look_into(version, tokens, token_bytes, width, labels, label_bytes, "
		"position_ids, cu_seqlens, *fields)\n\n"
		"Waits for the next batch and copies it to these addresses, see struct into. "
		"Returns (rows_valid, handle, documents, longest); None at the end of the stream; "
		"False if version is not that of shape() any more. Does not take the batch: set "
		"takes then."},
	{"shape", client_shape, METH_NOARGS, "Sizes, counters and names, as a dict."},
	{"commit", client_commit, METH_VARARGS, NULL},
	{"seek", client_seek, METH_VARARGS,
		"seek(cursor or None, rank, world, micro_batch, again)\n\n"
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
		"Set it to (handle, keep) to take the batch of look_into(). LookupError: it is not "
		"the next one any more. keep: release() releases it.",
		NULL},
	{"copies", NULL, client_set_copies,
		"True while memory of slot() is read: moves and close() are refused then.", NULL},
	{"position", get_number, NULL, NULL, (void *)&numbers[0]},
	{"taken", get_number, NULL, NULL, (void *)&numbers[1]},
	{"contents", get_number, NULL, NULL, (void *)&numbers[2]},
	{"fingerprint", get_number, NULL, NULL, (void *)&numbers[3]},
	{"request_number", get_number, NULL, NULL, (void *)&numbers[4]},
	{0},
};

static PyType_Slot client_slots[] = {
	{Py_tp_doc, "One session with a daemon. Private: use tokend.Loader."},
	{Py_tp_init, client_init},
	{Py_tp_dealloc, client_dealloc},
	{Py_tp_methods, client_methods},
	{Py_tp_getset, client_members},
	{0},
};

PyType_Spec client_spec = {
	"tokend._tokend.Client", sizeof(struct client), 0, Py_TPFLAGS_DEFAULT, client_slots};
