/* Edits of cursors, which are bytes. */
#include "client/python/src/client.h"

/* An edit, with room for its result and its error message. */
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
	struct integer number = INTEGER(name, UINT64_MAX);
	const char *cursor;
	struct draft d;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "y#O&", &cursor, &n, to_integer, &number) ||
		!draft_begin(&d, cursor, n))
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
	struct integer at = {"at", UINT64_MAX, TOKEND_SOON, false};
	PyObject *names, *weights, *result = NULL;
	struct weights w;
	const char *cursor;
	struct draft d;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "y#O!O!O&", &cursor, &n, &PyList_Type, &names, &PyList_Type,
		    &weights, to_integer, &at))
		return NULL;
	if (read_weights(&w, names, weights) && draft_begin(&d, cursor, n))
		result = draft_end(
			module, &d, tokend_cursor_mix(&d.edit, at.value, w.name, w.weight, w.n));
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
	struct integer at = {"at", UINT64_MAX, TOKEND_SOON, false};
	const char *cursor, *name;
	struct draft d;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "y#sO&", &cursor, &n, &name, to_integer, &at) ||
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

static PyObject *derive(PyObject *module, PyObject *args)
{
	unsigned long long seed, tag, value;

	(void)module;
	if (!PyArg_ParseTuple(args, "KKK", &seed, &tag, &value))
		return NULL;
	return PyLong_FromUnsignedLongLong(tokend_derive(seed, tag, value));
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

static PyObject *default_socket(PyObject *module, PyObject *none)
{
	char path[4096];

	(void)module, (void)none;
	if (tokend_default_socket(path, sizeof(path)) < 0)
		return raise_edit(module, TOKEND_EARGUMENT,
			"TOKEND_SOCKET: is longer than a socket's path, 107 bytes");
	return PyUnicode_DecodeFSDefault(path);
}

static PyObject *program(PyObject *module, PyObject *args)
{
	struct module *m = PyModule_GetState(module);
	const char *name;
	char path[4096];

	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	if (tokend_program(name, path, sizeof(path)) == 0)
		return PyUnicode_DecodeFSDefault(path);
	return PyErr_Format(m->error,
		"config: %.60s is neither in the package nor on PATH; install it, or set "
		"TOKEND_BIN to its directory",
		name);
}

PyMethodDef cursor_methods[] = {
	{"cursor_seek", edit_seek, METH_VARARGS,
		"cursor_seek(cursor, position)\n\nReturns the cursor at this position."},
	{"cursor_skip", edit_skip, METH_VARARGS,
		"cursor_skip(cursor, samples)\n\nReturns the cursor after skipping samples."},
	{"cursor_rewind", edit_rewind, METH_VARARGS,
		"cursor_rewind(cursor, position)\n\nReturns the cursor at an earlier position."},
	{"cursor_mix", edit_mix, METH_VARARGS,
		"cursor_mix(cursor, names, weights, at or None)\n\nReturns the cursor with a new "
		"mix."},
	{"cursor_add", edit_add, METH_VARARGS,
		"cursor_add(cursor, other, name)\n\nReturns the cursor with a dataset of another."},
	{"cursor_remove", edit_remove, METH_VARARGS,
		"cursor_remove(cursor, name, at or None)\n\n"
		"Returns the cursor without weight for a dataset."},
	{"cursor_position", position_of, METH_VARARGS,
		"cursor_position(cursor)\n\nReturns the position."},
	{"cursor_show", show, METH_VARARGS, "cursor_show(cursor)\n\nReturns the cursor as JSON."},
	{"derive", derive, METH_VARARGS,
		"derive(seed, tag, value)\n\nReturns the key that the order derives from them."},
	{"default_socket", default_socket, METH_NOARGS,
		"default_socket()\n\nReturns the path of the socket that is used by default."},
	{"program", program, METH_VARARGS,
		"program(name)\n\nReturns the path of tokend or tokctl."},
	{0},
};
