/* The module _tokend: its exceptions, and edits of cursors, which are bytes. */
#include "client/python/src/client.h"

#include <string.h>

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
		Py_ssize_t bytes;

		w->name[w->n] = PyUnicode_AsUTF8AndSize(name, &bytes);
		if (w->name[w->n] && strlen(w->name[w->n]) != (size_t)bytes)
			PyErr_Format(PyExc_ValueError, "mix: %R is not a dataset's name", name);
		w->weight[w->n] = PyFloat_AsDouble(weight);
		if (!w->name[w->n] || PyErr_Occurred())
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
static PyObject *made(PyObject *module, void *to, int64_t n, const char *why)
{
	struct module *m = PyModule_GetState(module);
	PyObject *result = NULL;

	if (n >= 0)
		result = PyBytes_FromStringAndSize(to, (Py_ssize_t)n);
	else
		PyErr_SetString(m->kind[n == TOKEND_EMEMORY ? -n : -TOKEND_EARGUMENT], why);
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
		result = edit.to ? made(module, edit.to, tokend_cursor_edit(&edit), why)
				 : PyErr_NoMemory();
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

	if (!PyArg_ParseTuple(args, "y#", &cursor, &n))
		return NULL;

	char *json = PyMem_Malloc(JSON_BYTES);

	if (!json)
		return PyErr_NoMemory();
	return made(module, json,
		tokend_cursor_show(cursor, (size_t)n, json, JSON_BYTES, why, sizeof(why)), why);
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

/* ---- errors ---- */

static const struct {
	int code;
	const char *name, *doc;
	PyObject **also; /* second base class */
} errors[] = {
	{TOKEND_EARGUMENT, "tokend.ArgumentError", "An invalid value. Nothing was changed.",
		&PyExc_ValueError},
	{TOKEND_ECONNECT, "tokend.ConnectError",
		"No daemon answered at the socket within the deadline.", &PyExc_ConnectionError},
	{TOKEND_EREFUSED, "tokend.RefusedError",
		"The daemon refused. The message begins with the option or config key.",
		&PyExc_Exception},
	{TOKEND_EDATA, "tokend.DataError",
		"The stream stopped: a shard is unreadable, truncated or replaced.",
		&PyExc_Exception},
	{TOKEND_EMEMORY, "tokend.ResourceError", "Out of memory or file descriptors.",
		&PyExc_MemoryError},
	{TOKEND_EWAIT, "tokend.WaitError", "No batch came within deadline.", &PyExc_TimeoutError},
};

/* ---- the module ---- */

static int execute(PyObject *module)
{
	struct module *m = PyModule_GetState(module);

	m->error = PyErr_NewExceptionWithDoc(
		"tokend.Error", "Base class of all errors of tokend.", NULL, NULL);
	if (!m->error || PyModule_AddObjectRef(module, "Error", m->error) < 0)
		return -1;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		const char *name = errors[i].name;
		PyObject *bases = PyTuple_Pack(2, m->error, *errors[i].also);
		PyObject *error = PyErr_NewExceptionWithDoc(name, errors[i].doc, bases, NULL);

		Py_XDECREF(bases);
		m->kind[-errors[i].code] = error;
		if (!error || PyModule_AddObjectRef(module, strchr(name, '.') + 1, error) < 0)
			return -1;
	}
	m->client = PyType_FromModuleAndSpec(module, &client_spec, NULL);
	if (!m->client || PyModule_AddObjectRef(module, "Client", m->client) < 0)
		return -1;

	const struct {
		const char *name;
		long value;
	} constants[] = {{"NOTED", TOKEND_NOTED}, {"DONE", TOKEND_DONE}, {"FAILED", TOKEND_FAILED},
		{"DOCUMENTS", TOKEND_DOCUMENTS}, {"LOSS_MASK", TOKEND_LOSS_MASK},
		{"MICRO_BATCH", TOKEND_MICRO_BATCH}};

	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
		if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
			return -1;
	return PyModule_AddStringConstant(module, "version", tokend_version());
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0}};

static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "_tokend",
	.m_size = sizeof(struct module),
	.m_methods = functions,
	.m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__tokend(void)
{
	return PyModuleDef_Init(&definition);
}
