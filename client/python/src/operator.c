/* An operator's requests. */
#include "client/python/src/client.h"

#include <stdlib.h>
#include <string.h>

PyObject *client_attend(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	int r;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(c, r = tokend_attend(c->t));
	leave(c, true);
	/* The call that takes the next batch raises the library's errors. */
	return PyErr_Occurred() ? NULL : PyBool_FromLong(r == 1);
}

PyObject *client_request_number(PyObject *self, PyObject *none)
{
	(void)none;
	return number_of(self, tokend_request_number);
}

PyObject *client_request(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;
	struct tokend_request request;
	int r;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(c, r = tokend_request(c->t, &request));

	PyObject *result = r < 0 ? raise_last(c, r)
				 : Py_BuildValue("Kss", (unsigned long long)request.number,
					   request.kind, request.args);

	leave(c, true);
	return result;
}

PyObject *client_obey(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	const char *kind, *text;
	uint64_t acts_from = 0;
	int r;

	if (!PyArg_ParseTuple(args, "ss", &kind, &text) || !enter(c, true))
		return NULL;
	WAITING(c, r = tokend_obey(c->t, kind, text, &acts_from));

	PyObject *result = r < 0 ? raise_last(c, r) : PyLong_FromUnsignedLongLong(acts_from);

	leave(c, true);
	return result;
}

PyObject *client_answer(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct integer number = INTEGER("number", UINT64_MAX);
	const char *text;
	int outcome, r;

	if (!PyArg_ParseTuple(args, "O&is", to_integer, &number, &outcome, &text) ||
		!enter(c, true))
		return NULL;
	WAITING(c, r = tokend_answer(c->t, number.value, (enum tokend_outcome)outcome, text));

	PyObject *result = r < 0 ? raise_last(c, r) : Py_NewRef(Py_None);

	leave(c, true);
	return result;
}

PyObject *client_undo(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, true))
		return NULL;
	WAITING(c, tokend_undo(c->t));
	leave(c, true);
	Py_RETURN_NONE;
}
