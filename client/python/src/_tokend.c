/* The module _tokend and its exceptions. */
#include "client/python/src/client.h"

#include <stdio.h>

/* ---- errors ---- */

static const struct {
	int code;
	const char *name, *doc;
	const char *builtin; /* second base class, or NULL */
} errors[] = {
	{TOKEND_EARGUMENT, "ArgumentError", "An invalid value. Nothing was changed.", "ValueError"},
	{TOKEND_ECONNECT, "ConnectError", "No daemon answered at the socket within the deadline.",
		"ConnectionError"},
	{TOKEND_EREFUSED, "RefusedError",
		"The daemon refused. The message begins with the option or config key.", NULL},
	{TOKEND_EDATA, "DataError",
		"The stream stopped: a shard is unreadable, truncated or replaced.", NULL},
	{TOKEND_EMEMORY, "ResourceError", "Out of memory or file descriptors.", "MemoryError"},
	{TOKEND_EWAIT, "WaitError", "No batch came within deadline.", "TimeoutError"},
};

static PyObject *new_error(struct module *m, const char *name, const char *doc, const char *builtin)
{
	PyObject *builtins = PyEval_GetBuiltins(); /* borrowed */
	PyObject *other = builtin ? PyDict_GetItemString(builtins, builtin) : NULL;
	PyObject *bases = other ? PyTuple_Pack(2, m->error, other) : PyTuple_Pack(1, m->error);
	char full[64];

	snprintf(full, sizeof(full), "tokend.%s", name);

	PyObject *error = bases ? PyErr_NewExceptionWithDoc(full, doc, bases, NULL) : NULL;

	Py_XDECREF(bases);
	return error;
}

/* ---- the module ---- */

static int execute(PyObject *module)
{
	struct module *m = PyModule_GetState(module);

	m->error = PyErr_NewExceptionWithDoc(
		"tokend.Error", "Base class of all errors of tokend.", NULL, NULL);
	if (!m->error || PyModule_AddObjectRef(module, "Error", m->error) < 0)
		return -1;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		PyObject *error = new_error(m, errors[i].name, errors[i].doc, errors[i].builtin);

		m->kind[-errors[i].code] = error;
		if (!error || PyModule_AddObjectRef(module, errors[i].name, error) < 0)
			return -1;
	}
	m->client = PyType_FromModuleAndSpec(module, &client_spec, NULL);
	if (!m->client || PyModule_AddObjectRef(module, "Client", m->client) < 0)
		return -1;
	if (PyModule_AddIntConstant(module, "NOTED", TOKEND_NOTED) < 0 ||
		PyModule_AddIntConstant(module, "DONE", TOKEND_DONE) < 0 ||
		PyModule_AddIntConstant(module, "FAILED", TOKEND_FAILED) < 0)
		return -1;
	if (PyModule_AddIntConstant(module, "MICRO_BATCH", TOKEND_MICRO_BATCH) < 0)
		return -1;
	return PyModule_AddStringConstant(module, "version", tokend_version());
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
	struct module *m = PyModule_GetState(module);

	Py_VISIT(m->error);
	Py_VISIT(m->client);
	for (int i = 0; i <= ERRORS; i++)
		Py_VISIT(m->kind[i]);
	return 0;
}

static int clear(PyObject *module)
{
	struct module *m = PyModule_GetState(module);

	Py_CLEAR(m->error);
	Py_CLEAR(m->client);
	for (int i = 0; i <= ERRORS; i++)
		Py_CLEAR(m->kind[i]);
	return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0}};

static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "_tokend",
	.m_size = sizeof(struct module),
	.m_methods = cursor_methods,
	.m_slots = module_slots,
	.m_traverse = traverse,
	.m_clear = clear,
};

PyMODINIT_FUNC PyInit__tokend(void)
{
	return PyModuleDef_Init(&definition);
}
