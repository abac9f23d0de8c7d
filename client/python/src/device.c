/*
 * Copies to a GPU, for device.py. The next batch is copied before it is taken. look_into() then
 * gets address 0 for tokens.
 */
#include "client/python/src/client.h"

PyObject *client_pin(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	int device, r;

	if (!PyArg_ParseTuple(args, "i", &device) || !enter(c, true))
		return NULL;
	WAITING(c, r = tokend_pin(c->t, device));

	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, true);
	return result;
}

PyObject *client_copied(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, false))
		return NULL;

	bool copied = tokend_copied(c->t, NULL);

	leave(c, false);
	return PyBool_FromLong(copied);
}

PyObject *client_copy_next(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	unsigned long long to, bytes, stream;
	struct tokend_batch batch;
	int wait;

	if (!PyArg_ParseTuple(args, "KKKp", &to, &bytes, &stream, &wait) || !enter(c, true))
		return NULL;

	int r = UNLESS_LOST(c, tokend_peek(c->t, &batch, 0));

	if (r == TOKEND_EAGAIN && wait) {
		c->yields = true;
		WAITING(c, r = tokend_peek(c->t, &batch, 1));
		c->yields = false;
	}
	if (r == 1 &&
		bytes != (unsigned long long)batch.rows * batch.window_tokens * batch.token_bytes) {
		leave(c, true);
		Py_RETURN_NONE;
	}
	if (r == 1) {
		r = tokend_copy(c->t, &batch, to, (void *)(uintptr_t)stream);
		r = r < 0 ? r : 1;
	} else if (!wait) {
		r = 0; /* the call that takes the batch raises the error */
	}

	PyObject *result = r < 0 ? raise_last(c, r) : PyBool_FromLong(r);

	leave(c, true);
	return result;
}
