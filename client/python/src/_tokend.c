/* The module _tokend: its functions, and edits of cursors, which are bytes. */
#include "client/python/src/client.h"

#include <stdio.h>

/* ---- cursors ---- */

bool read_weights(struct weights *w, PyObject *by_name)
{
	size_t n = (size_t)PyDict_Size(by_name);
	PyObject *name, *weight;
	Py_ssize_t at = 0;

	*w = (struct weights){
		PyMem_Calloc(n + 1, sizeof(*w->name)), PyMem_Calloc(n + 1, sizeof(*w->weight)), 0};
	if (!w->name || !w->weight) {
		PyErr_NoMemory();
		return false;
	}
	for (; PyDict_Next(by_name, &at, &name, &weight); w->n++) {
		if (!PyArg_Parse(name, "s", &w->name[w->n]) ||
			!PyArg_Parse(weight, "d", &w->weight[w->n]))
			return false;
	}
	return true;
}

void free_weights(struct weights *w)
{
	PyMem_Free(w->name);
	PyMem_Free(w->weight);
}

/* Returns the first @n bytes of @to, or raises the error in @n, and frees @to. */
static PyObject *made(void *to, int64_t n, const char *why)
{
	PyObject *result =
		n < 0 ? raise_error((int)n, why) : PyBytes_FromStringAndSize(to, (Py_ssize_t)n);

	PyMem_Free(to);
	return result;
}

static PyObject *edit(PyObject *module, PyObject *args)
{
	char why[600] = "";
	struct tokend_edit edit = {
		.capacity = TOKEND_CURSOR_BYTES, .why = why, .why_bytes = sizeof(why)};
	PyObject *by_name, *result = NULL;
	unsigned long long number;
	struct weights w;
	Py_ssize_t n;
	int kind;

	(void)module;
	if (!PyArg_ParseTuple(
		    args, "iy#KO!", &kind, &edit.cursor, &n, &number, &PyDict_Type, &by_name))
		return NULL;
	if (read_weights(&w, by_name)) {
		edit.kind = (enum tokend_edit_kind)kind;
		edit.cursor_bytes = (size_t)n;
		edit.number = number;
		edit.name = w.name;
		edit.weight = w.weight;
		edit.names = w.n;
		edit.to = PyMem_Malloc(edit.capacity);
		result = edit.to ? made(edit.to, tokend_cursor_edit(&edit), why) : PyErr_NoMemory();
	}
	free_weights(&w);
	return result;
}

static PyObject *show(PyObject *module, PyObject *args)
{
	enum { JSON_BYTES = 4 << 20 };
	const char *cursor;
	Py_ssize_t n;
	char why[600] = "";

	(void)module;
	if (!PyArg_ParseTuple(args, "y#", &cursor, &n))
		return NULL;

	char *json = PyMem_Malloc(JSON_BYTES);

	if (!json)
		return PyErr_NoMemory();
	return made(json, tokend_cursor_show(cursor, (size_t)n, json, JSON_BYTES, why, sizeof(why)),
		why);
}

static PyObject *derive(PyObject *module, PyObject *args)
{
	unsigned long long seed, tag, value;

	(void)module;
	if (!PyArg_ParseTuple(args, "KKK", &seed, &tag, &value))
		return NULL;
	return PyLong_FromUnsignedLongLong(tokend_derive(seed, tag, value));
}

static PyObject *program(PyObject *module, PyObject *args)
{
	const char *name;
	char path[4096], why[300];

	(void)module;
	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	if (tokend_program(name, path, sizeof(path)) == 0)
		return PyUnicode_DecodeFSDefault(path);
	snprintf(why, sizeof(why),
		"config: %.60s is neither in the package nor on PATH; install it, or set "
		"TOKEND_BIN to its directory",
		name);
	return raise_error(0, why);
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

/* ---- the module ---- */

static int execute(PyObject *module)
{
	const struct {
		const char *name;
		long value;
	} constants[] = {{"NOTED", TOKEND_NOTED}, {"DONE", TOKEND_DONE}, {"FAILED", TOKEND_FAILED},
		{"DOCUMENTS", TOKEND_DOCUMENTS}, {"LOSS_MASK", TOKEND_LOSS_MASK}};
	PyObject *client = PyType_FromSpec(&client_spec);
	PyObject *errors = PyImport_ImportModule("tokend.errors");
	PyObject *error = errors ? PyObject_GetAttrString(errors, "Error") : NULL;
	int r = client ? PyModule_AddObjectRef(module, "Client", client) : -1;

	if (r == 0)
		r = error ? PyModule_AddObjectRef(module, "Error", error) : -1;
	Py_XDECREF(client);
	Py_XDECREF(errors);
	Py_XDECREF(error);
	for (size_t i = 0; r == 0 && i < sizeof(constants) / sizeof(constants[0]); i++)
		r = PyModule_AddIntConstant(module, constants[i].name, constants[i].value);
	return r == 0 ? PyModule_AddStringConstant(module, "version", tokend_version()) : r;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0}};

static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "_tokend",
	.m_methods = functions,
	.m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__tokend(void)
{
	return PyModuleDef_Init(&definition);
}
