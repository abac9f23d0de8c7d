/*
 * The handle of libtokend as a Python object, in the stable ABI. Users see the package's loader.py;
 * this moves values across and keeps the interpreter running while a call waits.
 */
#include "client/python/src/client.h"

#include <stdlib.h>

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
