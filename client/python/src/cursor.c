/* Edits of cursors, which are bytes. */
#include "client/python/src/client.h"

static PyObject *raise_edit(PyObject *module, int code, const char *why)
{
	struct module *m = PyModule_GetState(module);

	PyErr_SetString(m->kind[code == TOKEND_EMEMORY ? -TOKEND_EMEMORY : -TOKEND_EARGUMENT], why);
	return NULL;
}

static PyObject *edit(PyObject *module, PyObject *args)
{
	static const char *const number_name[] = {"position", "samples", "position", "at"};
	PyObject *number, *names, *weights, *result = NULL;
	const char *cursor;
	Py_ssize_t n;
	struct weights w = {0};
	char why[600] = "";
	int kind;

	if (!PyArg_ParseTuple(args, "iy#OO!O!", &kind, &cursor, &n, &number, &PyList_Type, &names,
		    &PyList_Type, &weights))
		return NULL;

	bool known = kind >= TOKEND_EDIT_SEEK && kind <= TOKEND_EDIT_MIX;
	struct integer value = {
		known ? number_name[kind] : "number", UINT64_MAX, TOKEND_SOON, false};
	void *to = PyMem_Malloc(TOKEND_CURSOR_BYTES);

	if (to_integer(number, &value) && read_weights(&w, names, weights) && to) {
		const struct tokend_edit edit = {.kind = (enum tokend_edit_kind)kind,
			.cursor = cursor,
			.cursor_bytes = (size_t)n,
			.number = value.value,
			.name = w.name,
			.weight = w.weight,
			.names = w.n,
			.to = to,
			.capacity = TOKEND_CURSOR_BYTES,
			.why = why,
			.why_bytes = sizeof(why)};
		int64_t length = tokend_cursor_edit(&edit);

		result = length < 0 ? raise_edit(module, (int)length, why)
				    : PyBytes_FromStringAndSize(to, (Py_ssize_t)length);
	}
	free_weights(&w);
	PyMem_Free(to);
	return result || PyErr_Occurred() ? result : PyErr_NoMemory();
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
	{"cursor_edit", edit, METH_VARARGS,
		"cursor_edit(kind, cursor, number or None, names, weights)\n\n"
		"Returns the edited cursor. kind: enum tokend_edit_kind."},
	{"cursor_position", position_of, METH_VARARGS,
		"cursor_position(cursor)\n\nReturns the position."},
	{"cursor_show", show, METH_VARARGS, "cursor_show(cursor)\n\nReturns the cursor as JSON."},
	{"derive", derive, METH_VARARGS,
		"derive(seed, tag, value)\n\nReturns the key that the order derives from them."},
	{"program", program, METH_VARARGS,
		"program(name)\n\nReturns the path of tokend or tokctl."},
	{0},
};
