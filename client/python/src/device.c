/* The ring's memory, for device.py: it copies slots to a GPU, and releases them after that. */
#include "client/python/src/client.h"

/* Libtokend unmaps a ring. @context: the callable of client_memory(), which must not use the
 * client. */
static void on_gone(void *context, void *base, uint64_t bytes)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *gone = context, *result, *type, *value, *trace;
	bool interrupted = false;

	PyErr_Fetch(&type, &value, &trace); /* that of the call */
	/* It must complete: a Ctrl-C is delivered afterwards. */
	while (!(result = PyObject_CallFunction(gone, "KK", (unsigned long long)(uintptr_t)base,
			 (unsigned long long)bytes)) &&
		PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
		PyErr_Clear();
		interrupted = true;
	}
	if (!result)
		PyErr_WriteUnraisable(gone);
	if (interrupted)
		PyErr_SetInterrupt();
	Py_XDECREF(result);
	Py_DECREF(gone);
	PyErr_Restore(type, value, trace);
	PyGILState_Release(state);
}

PyObject *client_memory(PyObject *self, PyObject *gone)
{
	struct client *c = (struct client *)self;
	uint64_t bytes;
	void *base;

	if (!enter(c, false))
		return NULL;

	int r = tokend_memory(c->t, &base, &bytes, on_gone, gone);

	leave(c, false);
	if (r == 0)
		Py_RETURN_NONE;
	if (r < 0)
		return raise_last(c, r);
	Py_INCREF(gone);
	return Py_BuildValue("KK", (unsigned long long)(uintptr_t)base, (unsigned long long)bytes);
}

PyObject *client_slot(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	struct tokend_batch b;

	(void)none;
	if (!enter(c, true))
		return NULL;

	int r;

	WAITING(c, r = tokend_peek(c->t, &b, 0));
	leave(c, true);
	if (r != 1) /* the call that takes the batch raises the error */
		Py_RETURN_NONE;
	return Py_BuildValue("KKK", (unsigned long long)(uintptr_t)b.tokens,
		(unsigned long long)b.rows * b.window_tokens * b.token_bytes,
		(unsigned long long)b.handle);
}

PyObject *client_release(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	unsigned long long handle;

	if (!PyArg_ParseTuple(args, "K", &handle) || !enter(c, true))
		return NULL;

	struct tokend_batch b = {.handle = handle};

	WAITING(c, tokend_release(c->t, &b)); /* may call on_gone() */
	leave(c, true);
	Py_RETURN_NONE;
}
