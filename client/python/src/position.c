/* Position of a session: cursor, commit, seek, mix, checkpoint, record. */
#include "client/python/src/client.h"

#include <stdlib.h>
#include <string.h>

PyObject *client_cursor(PyObject *self, PyObject *none)
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

/* ---- calls that do not wait ---- */

PyObject *number_of(PyObject *self, uint64_t (*of)(const struct tokend *t))
{
	struct client *c = (struct client *)self;

	if (!enter(c, false))
		return NULL;

	uint64_t number = of(c->t);

	leave(c, false);
	return PyLong_FromUnsignedLongLong(number);
}

PyObject *client_position(PyObject *self, PyObject *none)
{
	(void)none;
	return number_of(self, tokend_position);
}

PyObject *client_taken(PyObject *self, PyObject *none)
{
	(void)none;
	return number_of(self, tokend_taken);
}

PyObject *client_contents(PyObject *self, PyObject *none)
{
	(void)none;
	return number_of(self, tokend_contents);
}

PyObject *client_fingerprint(PyObject *self, PyObject *none)
{
	(void)none;
	return number_of(self, tokend_fingerprint);
}

PyObject *client_commit(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct integer next = INTEGER("next", UINT64_MAX);

	if (!PyArg_ParseTuple(args, "O&", to_integer, &next) || !enter(c, false))
		return NULL;

	int r = tokend_commit(c->t, next.value);
	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, false);
	return result;
}

PyObject *client_shape(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	struct tokend_shape s;

	(void)none;
	if (!enter(c, false))
		return NULL;
	tokend_shape(c->t, &s);

	PyObject *batches = s.batches == TOKEND_ENDLESS ? Py_NewRef(Py_None)
							: PyLong_FromUnsignedLongLong(s.batches);
	PyObject *result = Py_BuildValue("{sIsIsIsIsKsKsKsNsKsKsdsKsKsO}", "rows", s.rows,
		"window_tokens", s.window_tokens, "token_bytes", s.token_bytes, "slots", s.slots,
		"seq_len", (unsigned long long)s.seq_len, "rank", (unsigned long long)s.rank,
		"world", (unsigned long long)s.world, "batches_in_all", batches, "lost_wakes",
		(unsigned long long)s.lost_wakes, "reattached", (unsigned long long)s.reattached,
		"waited_s", (double)s.waited_ns / 1e9, "batches", (unsigned long long)c->batches,
		"tokens", (unsigned long long)c->tokens, "masked",
		tokend_annotations(c->t) & TOKEND_LOSS_MASK ? Py_True : Py_False);

	leave(c, false);
	return result;
}

PyObject *client_datasets(PyObject *self, PyObject *none)
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

PyObject *client_run(PyObject *self, PyObject *none)
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

static PyObject *path_of(PyObject *self, const char *(*of)(const struct tokend *t))
{
	struct client *c = (struct client *)self;

	if (!enter(c, false))
		return NULL;
	const char *path = of(c->t);
	PyObject *text = path ? PyUnicode_DecodeFSDefault(path) : Py_NewRef(Py_None);

	leave(c, false);
	return text;
}

PyObject *client_socket(PyObject *self, PyObject *none)
{
	(void)none;
	return path_of(self, tokend_socket);
}

PyObject *client_config(PyObject *self, PyObject *none)
{
	(void)none;
	return path_of(self, tokend_config);
}

PyObject *client_seek(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct integer rank = INTEGER("rank", UINT64_MAX), world = INTEGER("world", UINT64_MAX);
	struct integer micro_batch = INTEGER("micro_batch", UINT32_MAX);
	const char *cursor;
	Py_ssize_t n;
	int again = 0, r;

	if (!PyArg_ParseTuple(args, "z#O&O&O&|p", &cursor, &n, to_integer, &rank, to_integer,
		    &world, to_integer, &micro_batch, &again) ||
		!enter(c, true))
		return NULL;
	WAITING(c, r = (again ? tokend_seek_pass : tokend_seek)(c->t, cursor, (size_t)n, rank.value,
			   world.value, (uint32_t)micro_batch.value));

	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, true);
	if (!result || say_notice(c))
		return result;
	Py_DECREF(result);
	return NULL;
}

PyObject *client_set_mix(PyObject *self, PyObject *args)
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

PyObject *client_checkpoint(PyObject *self, PyObject *args)
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

PyObject *client_record(PyObject *self, PyObject *args)
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
