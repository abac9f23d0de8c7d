/* The module _tokend: the class Client, and edits of cursors, which are bytes. */
#include "client/python/src/client.h"
#include "proto/words.h"

#include <stdio.h>

enum { JSON_BYTES = 4 << 20 }; /* of a cursor, at most */

static PyObject *edit(PyObject *module, PyObject *args)
{
	char to[TOKEND_CURSOR_BYTES], why[WHY_BYTES];
	struct tokend_edit edit = {
		.to = to, .capacity = sizeof(to), .why = why, .why_bytes = sizeof(why)};
	PyObject *by_name;
	struct weights w;
	Py_ssize_t n;
	int64_t made;
	int kind;

	(void)module;
	if (!PyArg_ParseTuple(args, "iy#kO!", &kind, &edit.cursor, &n, &edit.number, &PyDict_Type,
		    &by_name) ||
		!read_weights(&w, by_name))
		return NULL;
	edit.kind = (enum tokend_edit_kind)kind;
	edit.cursor_bytes = (size_t)n;
	edit.name = w.name;
	edit.weight = w.weight;
	edit.names = w.n;
	made = tokend_cursor_edit(&edit);
	return made < 0 ? raise_error((int)made, why) : PyBytes_FromStringAndSize(to, made);
}

static PyObject *show(PyObject *module, PyObject *args)
{
	const char *cursor;
	Py_ssize_t n;
	char why[WHY_BYTES], *json;
	int64_t made;
	PyObject *shown;

	(void)module;
	if (!PyArg_ParseTuple(args, "y#", &cursor, &n))
		return NULL;
	json = PyMem_Malloc(JSON_BYTES);
	if (!json)
		return PyErr_NoMemory();
	made = tokend_cursor_show(cursor, (size_t)n, json, JSON_BYTES, why, sizeof(why));
	shown = made < 0 ? raise_error((int)made, why) : PyBytes_FromStringAndSize(json, made);
	PyMem_Free(json);
	return shown;
}

static PyObject *derive(PyObject *module, PyObject *args)
{
	uint64_t seed, tag, value;

	(void)module;
	if (!PyArg_ParseTuple(args, "kkk", &seed, &tag, &value))
		return NULL;
	return PyLong_FromUnsignedLong(tokend_derive(seed, tag, value));
}

static PyObject *program(PyObject *module, PyObject *args)
{
	const char *name;
	char path[4096];

	(void)module;
	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	if (tokend_program(name, path, sizeof(path)) == 0)
		return PyUnicode_DecodeFSDefault(path);
	snprintf(path, sizeof(path),
		"config: %.60s is neither in the package nor on PATH; install it, or set "
		"TOKEND_BIN to its directory",
		name);
	return raise_error(0, path);
}

static PyMethodDef functions[] = {
	{"cursor_edit", edit, METH_VARARGS,
		"cursor_edit(kind, cursor, number, weights by name)\n\n"
		"Returns the edited cursor. kind: enum tokend_edit_kind."},
	{"cursor_show", show, METH_VARARGS, "cursor_show(cursor)\n\nReturns the cursor as JSON."},
	{"derive", derive, METH_VARARGS,
		"derive(seed, tag, value)\n\nReturns the key that the order derives from them."},
	{"program", program, METH_VARARGS,
		"program(name)\n\nReturns the path of tokend or tokctl."},
	{0},
};

static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "_tokend",
	.m_methods = functions,
};

PyMODINIT_FUNC PyInit__tokend(void)
{
	PyObject *module = PyModule_Create(&definition), *masks;

	_Static_assert(sizeof((char *[]){COLUMNS_MASK}) == 5 * sizeof(char *), "(sssss) below");
	masks = Py_BuildValue("(sssss)", COLUMNS_MASK);
	if (module && (PyModule_AddObject(module, "Client", PyType_FromSpec(&client_spec)) < 0 ||
			      PyModule_AddObject(module, "COLUMNS_MASK", masks) < 0 ||
			      PyModule_AddStringMacro(module, WORDS_VALIDATION) < 0 ||
			      PyModule_AddStringMacro(module, WORDS_SIDE) < 0 ||
			      PyModule_AddStringConstant(module, "version", tokend_version()) < 0))
		Py_CLEAR(module);
	return module;
}
