/*
 * The handle of libtokend as a Python object, in the stable ABI. The package's loader.py is what
 * users see; this only moves values across and keeps the interpreter running while something waits.
 *
 * Threads. Python code asks for a loader's state from other threads than the one that reads, so
 * calls are serialised here: `turn` is held by a call that may wait, `state` by whoever touches the
 * handle. next() gives `state` up each time it looks whether Python wants something (a signal, the
 * interpreter lock), so a cursor can be read while it waits. Neither is ever waited for with the
 * interpreter lock held.
 */
#include "client/python/src/client.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Within a call of its own that waits, Python code runs in the same thread: a signal's handler,
 * absent(). */
static bool busy(struct client *c)
{
	raise_error((PyObject *)c, 0,
		"busy: this loader is waiting in this very thread, which a signal's handler has "
		"interrupted: "
		"let the handler take a note, and do it when the call has returned");
	return false;
}

bool enter(struct client *c, bool waits)
{
	if (c->t && tokend_forked(c->t)) {
		/* The locks were copied as they stood: leave them alone. */
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

static int check_signals(const struct client *c)
{
	(void)c;
	return PyErr_CheckSignals();
}

static int say_warning(const struct client *c)
{
	return PyErr_WarnFormat(PyExc_RuntimeWarning, 2, "tokend: %s", c->warning);
}

/* While the call that waits does not touch the handle. */
static int ask_python(struct client *c, int (*ask)(const struct client *c))
{
	if (c->yields)
		pthread_mutex_unlock(&c->state);
	PyEval_RestoreThread(c->thread);

	int interrupted = ask(c);

	c->thread = PyEval_SaveThread();
	if (c->yields) {
		/* Who waits for state goes first: a mutex alone would be ours again before they
		 * woke. */
		for (int i = 0; i < 1000 && atomic_load(&c->wanting) > 0; i++)
			usleep(50);
		pthread_mutex_lock(&c->state);
	}
	return interrupted;
}

static int on_idle(void *context)
{
	return ask_python(context, check_signals);
}

static int on_absent(void *context)
{
	struct client *c = context;

	return c->absent ? ask_python(c, call_absent) : 0;
}

static int on_warn(void *context, const char *line)
{
	struct client *c = context;

	c->warning = line;
	return ask_python(c, say_warning);
}

static void on_notice(void *context, const char *line)
{
	struct client *c = context;

	free(atomic_exchange(&c->notice, strdup(line)));
}

bool say_notice(struct client *c)
{
	char *line = atomic_load(&c->notice) ? atomic_exchange(&c->notice, NULL) : NULL;
	int error = line ? PyErr_WarnFormat(PyExc_RuntimeWarning, 4, "tokend: %s", line) : 0;

	free(line);
	return error == 0;
}

/* ---- making and closing ---- */

static int client_init(PyObject *self, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"stream", "micro_batch", "socket", "run", "rank", "world", "peer",
		"slots", "deadline_ms", "connect_ms", "cursor", "tag", "position", "helper",
		"absent", "strict", NULL};
	struct client *c = (struct client *)self;
	struct tokend_options o = {.size = sizeof(o)};
	struct whole micro_batch = WHOLE("micro_batch", UINT32_MAX),
		     rank = WHOLE("rank", UINT64_MAX);
	struct whole world = {"world", UINT64_MAX, 1, false};
	struct whole peer = WHOLE("peer", UINT32_MAX), slots = WHOLE("slots", UINT32_MAX);
	struct whole deadline = WHOLE("deadline", UINT32_MAX),
		     patience = WHOLE("connect", UINT32_MAX);
	struct whole position = WHOLE("start", UINT64_MAX);
	Py_ssize_t cursor_bytes = 0;
	PyObject *absent = NULL;
	char why[1400];
	int r;

	if (c->t) {
		raise_error(self, 0, "attached already");
		return -1;
	}
	if (!PyArg_ParseTupleAndKeywords(args, keywords, "sO&|zzO&O&O&O&O&O&z#zO&pOp", names,
		    &o.stream, to_whole, &micro_batch, &o.socket, &o.run, to_whole, &rank, to_whole,
		    &world, to_whole, &peer, to_whole, &slots, to_whole, &deadline, to_whole,
		    &patience, &o.cursor, &cursor_bytes, &o.tag, to_whole, &position, &o.helper,
		    &absent, &o.strict))
		return -1;
	o.rank = rank.value;
	o.world = world.value;
	o.micro_batch = (uint32_t)micro_batch.value;
	o.peer = (uint32_t)peer.value;
	o.slots = (uint32_t)slots.value;
	o.deadline_ms = (uint32_t)deadline.value;
	o.connect_ms = (uint32_t)patience.value;
	o.cursor_bytes = (size_t)cursor_bytes;
	o.position = position.value;
	o.start_at_position = position.given;
	o.idle = on_idle;
	o.absent = on_absent;
	o.notice = on_notice;
	o.context = c;
	o.warn = on_warn;
	o.warn_context = c;
	Py_XDECREF(c->absent);
	c->absent = absent && absent != Py_None ? Py_NewRef(absent) : NULL;
	WAITING(c, r = tokend_attach(&c->t, &o, why, sizeof(why)));
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
	free(atomic_load(&c->notice));
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
	/* It waits for copies under way, which may wait for somebody who needs the interpreter's
	 * lock. */
	WAITING(c, views_detach(c));
	leave(c, true);
	Py_RETURN_NONE;
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

		result = n < 0 ? raise_last(c, (int)n)
			       : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)n);
		leave(c, false);
	}
	PyMem_Free(bytes);
	return result;
}

/* What the handle answers at once. */
static PyObject *number_of(PyObject *self, uint64_t (*of)(const struct tokend *t))
{
	struct client *c = (struct client *)self;

	if (!enter(c, false))
		return NULL;

	uint64_t number = of(c->t);

	leave(c, false);
	return PyLong_FromUnsignedLongLong(number);
}

static PyObject *client_position(PyObject *self, PyObject *none)
{
	(void)none;
	return number_of(self, tokend_position);
}

static PyObject *client_taken(PyObject *self, PyObject *none)
{
	(void)none;
	return number_of(self, tokend_taken);
}

static PyObject *client_fingerprint(PyObject *self, PyObject *none)
{
	(void)none;
	return number_of(self, tokend_fingerprint);
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

	PyObject *batches = s.batches == TOKEND_ENDLESS ? Py_NewRef(Py_None)
							: PyLong_FromUnsignedLongLong(s.batches);
	PyObject *result = Py_BuildValue("{sIsIsIsIsKsKsKsNsKsKsKsdsKsKsKsO}", "rows", s.rows,
		"window_tokens", s.window_tokens, "token_bytes", s.token_bytes, "slots", s.slots,
		"seq_len", (unsigned long long)s.seq_len, "rank", (unsigned long long)s.rank,
		"world", (unsigned long long)s.world, "batches_in_all", batches, "data_bytes",
		(unsigned long long)s.data_bytes, "lost_wakes", (unsigned long long)s.lost_wakes,
		"reattached", (unsigned long long)s.reattached, "waited_s",
		(double)s.waited_ns / 1e9, "pinned_bytes", (unsigned long long)s.pinned_bytes,
		"batches", (unsigned long long)c->batches, "tokens", (unsigned long long)c->tokens,
		"masked", tokend_annotations(c->t) & TOKEND_LOSS_MASK ? Py_True : Py_False);

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

static PyObject *client_run(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	PyObject *text;

	(void)none;
	if (!enter(c, false))
		return NULL;
	text = PyUnicode_FromString(tokend_run(c->t));
	leave(c, false);
	return text;
}

/* ---- going elsewhere ---- */

static PyObject *client_seek(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct whole rank = WHOLE("rank", UINT64_MAX), world = WHOLE("world", UINT64_MAX);
	struct whole micro_batch = WHOLE("micro_batch", UINT32_MAX);
	const char *cursor;
	Py_ssize_t n;
	int again = 0, r;

	if (!PyArg_ParseTuple(args, "z#O&O&O&|p", &cursor, &n, to_whole, &rank, to_whole, &world,
		    to_whole, &micro_batch, &again) ||
		!enter(c, true))
		return NULL;
	WAITING(c, r = (again ? tokend_seek_pass : tokend_seek)(c->t, cursor, (size_t)n, rank.value,
			   world.value, (uint32_t)micro_batch.value));

	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, true);
	return result;
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
	char path[4096];
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
	(void)none;
	return number_of(self, tokend_request_number);
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

	PyObject *result = r < 0 ? raise_last(c, r)
				 : Py_BuildValue("Kss", (unsigned long long)request.number,
					   request.kind, request.args);

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

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(c, tokend_undo(c->t));
	leave(c, true);
	Py_RETURN_NONE;
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
		result = n < 0 ? raise_last(c, (int)n)
			       : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)n);
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

/* ---- the type ---- */

static PyMethodDef client_methods[] = {
	{"next_into", (PyCFunction)(void (*)(void))client_next_into, METH_FASTCALL,
		"(tokens [rows, window], rows [fields, rows], bytes of a token = 8, fields = 2, "
		"labels "
		"[rows, seq], "
		"position_ids [rows, seq], int32 cu_seqlens [rows * seq + 1]): addresses of int64, "
		"or 0 → "
		"(rows_valid, next), with position_ids (…, documents, longest), or None at the "
		"end. Fields: "
		"position, "
		"dataset, epoch, window, shard, offset"},
	{"need_documents", client_need_documents, METH_NOARGS,
		"raises if the stream does not carry them"},
	{"cursor", client_cursor, METH_NOARGS, "bytes"},
	{"position", client_position, METH_NOARGS, "of the cursor"},
	{"taken", client_taken, METH_NOARGS, "position behind the last batch taken"},
	{"fingerprint", client_fingerprint, METH_NOARGS, "equal on all ranks at one step"},
	{"commit", client_commit, METH_VARARGS, "(next)"},
	{"shape", client_shape, METH_NOARGS, "a dict of sizes and counts"},
	{"datasets", client_datasets, METH_NOARGS, "their names, by index"},
	{"run", client_run, METH_NOARGS, "its name, which the daemon chooses for an unnamed one"},
	{"seek", client_seek, METH_VARARGS,
		"(cursor or None, rank, world, micro_batch, again): again: another pass over a "
		"finite "
		"stream"},
	{"set_mix", client_set_mix, METH_VARARGS, "(names, weights) → where it acts from"},
	{"checkpoint", client_checkpoint, METH_VARARGS, "(tag) → path"},
	{"attend", client_attend, METH_NOARGS, "looks after the connection: is there one?"},
	{"request_number", client_request_number, METH_NOARGS,
		"of the operator's last request, or 0"},
	{"request", client_request, METH_NOARGS, "(number, kind, args)"},
	{"obey", client_obey, METH_VARARGS, "(kind, args) → where it acts from"},
	{"undo", client_undo, METH_NOARGS, "the last mix that obey() carried out"},
	{"answer", client_answer, METH_VARARGS, "(number, NOTED, DONE or FAILED, text)"},
	{"stream", client_stream, METH_NOARGS, "the stream's cursor at 0 as configured now"},
	{"lend", client_lend, METH_VARARGS,
		"(hold): from now on batches are lent by view(), the last @hold ones when the next "
		"is taken"},
	{"view", client_view, METH_NOARGS, "the batch that next_into() took, as a DLPack capsule"},
	{"pin", client_pin, METH_VARARGS,
		"(device): registers the ring with a GPU's driver, or raises why not"},
	{"copied", client_copied, METH_NOARGS, "is the batch that comes next on its way to a GPU?"},
	{"copy_next", client_copy_next, METH_VARARGS,
		"(to, bytes, stream, wait): copies the batch that comes next, without taking it; "
		"False: there is none; None: its slot does not have @bytes"},
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

PyType_Spec client_spec = {
	"tokend._tokend.Client", sizeof(struct client), 0, Py_TPFLAGS_DEFAULT, client_slots};
