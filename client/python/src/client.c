/*
 * A handle of libtokend as a Python object, in the stable ABI. Users call the package's loader.py.
 * This code converts values and releases the interpreter's lock while a call waits.
 */
#include "client/python/src/client.h"

#include <stdlib.h>

/* Ends the session. */
static void client_detach(struct client *c)
{
	tokend_detach(c->t);
	c->t = NULL;
}

static int client_init(PyObject *self, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"stream", "micro_batch", "socket", "run", "rank", "world", "peer",
		"slots", "deadline_ms", "connect_ms", "cursor", "tag", "position", "helper",
		"strict", "config", "max_wait_ms", NULL};
	struct client *c = (struct client *)self;
	struct tokend_options o = {.size = sizeof(o)};
	struct integer micro_batch = INTEGER("micro_batch", UINT32_MAX),
		       rank = INTEGER("rank", UINT64_MAX);
	struct integer world = {"world", UINT64_MAX, 1, false};
	struct integer peer = INTEGER("peer", UINT32_MAX), slots = INTEGER("slots", UINT32_MAX);
	struct integer deadline = INTEGER("deadline", UINT32_MAX),
		       patience = INTEGER("connect", UINT32_MAX);
	struct integer position = INTEGER("start", UINT64_MAX),
		       max_wait = INTEGER("max_wait", UINT64_MAX);
	Py_ssize_t cursor_bytes = 0;
	PyObject *config = NULL;
	char why[1400];
	int r;

	if (c->t) {
		raise_error(self, 0, "client: already attached; make a new one");
		return -1;
	}
	if (!PyArg_ParseTupleAndKeywords(args, keywords, "sO&|zzO&O&O&O&O&O&z#zO&ppO&O&", names,
		    &o.stream, to_integer, &micro_batch, &o.socket, &o.run, to_integer, &rank,
		    to_integer, &world, to_integer, &peer, to_integer, &slots, to_integer,
		    &deadline, to_integer, &patience, &o.cursor, &cursor_bytes, &o.tag, to_integer,
		    &position, &o.helper, &o.strict, to_path, &config, to_integer, &max_wait))
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
	o.notice = on_notice;
	o.context = c;
	o.warn = on_warn;
	o.warn_context = c;
	o.max_wait_ms = max_wait.value;
	o.config = config ? PyBytes_AsString(config) : NULL;
	WAITING(c, r = tokend_attach(&c->t, &o, why, sizeof(why)));
	Py_XDECREF(config);
	if (r == 0 && say_notice(c))
		return 0;
	if (r == 0)
		WAITING(c, client_detach(c)); /* a warning that the user made an error */
	else
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

	client_detach(c);
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
	/* Waits for copies, which may wait for a thread that needs the interpreter's lock. */
	WAITING(c, client_detach(c));
	leave(c, true);
	Py_RETURN_NONE;
}

static PyMethodDef client_methods[] = {
	{"look_into", (PyCFunction)(void (*)(void))client_look_into, METH_FASTCALL,
		"look_into(tokens, token_bytes, width, labels, label_bytes, position_ids, "
		"cu_seqlens, *fields)\n\n"
		"Waits for the next batch and copies it to these addresses (0: not wanted):\n"
		"tokens        [rows, width] of token_bytes, 4 or 8\n"
		"labels        [rows, seq_len] of label_bytes, 4 or 8\n"
		"position_ids  int64 [rows, seq_len], with\n"
		"cu_seqlens    int32 [rows * seq_len + 1]\n"
		"fields        int64 [rows] each: position, dataset, epoch, window, shard, "
		"offset\n\n"
		"Returns (rows_valid, next, documents, longest), or None at the end of the stream. "
		"Does not take the batch: set `takes` then."},
	{"need_documents", client_need_documents, METH_NOARGS,
		"Raises ArgumentError if the stream carries no document starts."},
	{"cursor", client_cursor, METH_NOARGS, "The cursor, as bytes."},
	{"position", client_position, METH_NOARGS, "Position of the cursor."},
	{"taken", client_taken, METH_NOARGS, "Position after the last batch taken."},
	{"contents", client_contents, METH_NOARGS, "A hash of the shards' sampled tokens."},
	{"fingerprint", client_fingerprint, METH_NOARGS,
		"A hash that is equal on all ranks at the same step."},
	{"commit", client_commit, METH_VARARGS,
		"commit(next)\n\nReports that the batches up to this position were trained on."},
	{"shape", client_shape, METH_NOARGS, "Sizes and counters, as a dict."},
	{"datasets", client_datasets, METH_NOARGS, "Names of the datasets, by index."},
	{"socket", client_socket, METH_NOARGS, "Path of the daemon's socket."},
	{"config", client_config, METH_NOARGS,
		"Path of the config whose private daemon serves; None: it is not private."},
	{"run", client_run, METH_NOARGS, "Name of the run; the daemon names an unnamed one."},
	{"seek", client_seek, METH_VARARGS,
		"seek(cursor or None, rank, world, micro_batch, again=False)\n\n"
		"Moves to a cursor (None: the last batch taken). again: another pass over a finite "
		"stream."},
	{"set_mix", client_set_mix, METH_VARARGS,
		"set_mix(names, weights)\n\nReturns the first position of the new mix."},
	{"checkpoint", client_checkpoint, METH_VARARGS,
		"checkpoint(tag)\n\nThe daemon stores the cursor. Returns the path."},
	{"attend", client_attend, METH_NOARGS,
		"Checks the connection, looks for a lost daemon. True if connected."},
	{"request_number", client_request_number, METH_NOARGS,
		"Number of the operator's pending request, or 0."},
	{"request", client_request, METH_NOARGS,
		"The operator's pending request: (number, kind, args)."},
	{"obey", client_obey, METH_VARARGS,
		"obey(kind, args)\n\nCarries out a mix or a skip. Returns the first position at "
		"which the order differs."},
	{"undo", client_undo, METH_NOARGS, "Reverts the last mix or skip that was carried out."},
	{"answer", client_answer, METH_VARARGS,
		"answer(number, outcome, text)\n\nReports NOTED, DONE or FAILED to the operator."},
	{"memory", client_memory, METH_O,
		"memory(gone)\n\nAddress and bytes of the ring's slots; None: the same ring as in "
		"the former call. gone(address, bytes) is called before it is unmapped."},
	{"slot", client_slot, METH_NOARGS,
		"Address, bytes and handle of the next batch's tokens; None: it is not ready."},
	{"release", client_release, METH_VARARGS,
		"release(handle)\n\nReleases a batch that was taken with keep."},
	{"record", client_record, METH_VARARGS,
		"record(path or None)\n\nRecords the batches taken from now on in a file."},
	{"close", client_close, METH_NOARGS, "Ends the session and frees everything."},
	{0},
};

static PyGetSetDef client_attributes[] = {
	{"takes", NULL, client_set_takes,
		"Set it to a tuple (next, keep=False), with the next of look_into(): takes that "
		"batch. keep: release() releases it. LookupError if another thread was faster.",
		NULL},
	{0},
};

static PyType_Slot client_slots[] = {
	{Py_tp_doc, "One session with a daemon. Private: use tokend.Loader."},
	{Py_tp_new, client_new},
	{Py_tp_init, client_init},
	{Py_tp_dealloc, client_dealloc},
	{Py_tp_methods, client_methods},
	{Py_tp_getset, client_attributes},
	{0},
};

PyType_Spec client_spec = {
	"tokend._tokend.Client", sizeof(struct client), 0, Py_TPFLAGS_DEFAULT, client_slots};
