/* Exceptions for the library's errors. */
#include "client/python/src/client.h"

#include <stdio.h>
#include <string.h>

struct module *module_of(PyObject *self)
{
	return PyType_GetModuleState(Py_TYPE(self));
}

PyObject *raise_error(PyObject *self, int code, const char *why)
{
	struct module *m = module_of(self);
	PyObject *kind = code < 0 && code >= -ERRORS ? m->kind[-code] : NULL;

	/* If a signal's handler raised, its exception is already set. */
	if (PyErr_Occurred())
		return NULL;

	/* A store chooses some of the words, and long texts are cut. */
	PyObject *text = PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace");

	if (text)
		PyErr_SetObject(kind ? kind : m->error, text);
	Py_XDECREF(text);
	return NULL;
}

PyObject *raise_last(struct client *c, int code)
{
	const char *why = tokend_why(c->t);
	char renamed[1400];

	/* Loader's deadline= is also the library's max_wait. */
	if (code == TOKEND_EWAIT && strncmp(why, "max_wait", 8) == 0) {
		snprintf(renamed, sizeof(renamed), "deadline%s", why + 8);
		why = renamed;
	}
	return raise_error((PyObject *)c, code, why);
}
