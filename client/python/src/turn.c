/*
 * Exceptions, threads and the interpreter's lock.
 *
 * Python code may save a loader's state in another thread than the one that reads, so calls are
 * serialised by two members of struct client, which the interpreter's lock protects. A call that
 * may wait has `turn`. A call that uses the handle is its `user`. While next() waits, it regularly
 * has no user, to check for signals and so that other threads can read the cursor.
 */
#include "client/python/src/client.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PAUSE_US = 1000 };

PyObject *raise_error(int code, const char *why)
{
	static const char *const kinds[] = {
		[-TOKEND_EARGUMENT] = "ArgumentError",
		[-TOKEND_ECONNECT] = "ConnectError",
		[-TOKEND_EREFUSED] = "RefusedError",
		[-TOKEND_EDATA] = "DataError",
		[-TOKEND_EMEMORY] = "ResourceError",
		[-TOKEND_EWAIT] = "WaitError",
	};
	const char *name = code <= 0 && code >= TOKEND_EWAIT ? kinds[-code] : NULL;

	/* If a signal's handler raised, its exception is already set. */
	if (PyErr_Occurred())
		return NULL;

	PyObject *errors = PyImport_ImportModule("tokend.errors");
	PyObject *kind = errors ? PyObject_GetAttrString(errors, name ? name : "Error") : NULL;
	/* A store chooses some of the words, and long texts are cut. */
	PyObject *text = PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace");

	if (kind && text)
		PyErr_SetObject(kind, text);
	Py_XDECREF(errors);
	Py_XDECREF(kind);
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
	return raise_error(code, why);
}

/* ---- turns ---- */

/* Waits until @owner is no other thread, and makes it this one. Returns false, with the exception
 * set, if it is this one already, or a signal's handler has raised. */
static bool reserve(unsigned long *owner)
{
	unsigned long self = PyThread_get_thread_ident();

	while (*owner && *owner != self) {
		WAITING(usleep(PAUSE_US));
		if (PyErr_CheckSignals() < 0)
			return false;
	}
	if (*owner) {
		/* Python code (a signal's handler) used the handle in the thread that waits. */
		raise_error(0,
			"busy: the loader is waiting in this thread, and a signal's handler "
			"interrupted it; set a flag in the handler, and act on it when the call "
			"has returned");
		return false;
	}
	*owner = self;
	return true;
}

bool enter(struct client *c, bool waits)
{
	if (c->t && tokend_forked(c->t)) {
		/* fork() copied the owners, which do not exist here */
		raise_last(c, TOKEND_EFORKED);
		return false;
	}
	if (waits && !reserve(&c->turn))
		return false;
	if (reserve(&c->user)) {
		if (c->t)
			return true;
		c->user = 0;
		raise_error(0, "closed: this loader was closed; make a new one");
	}
	if (waits)
		c->turn = 0;
	return false;
}

PyObject *leave(struct client *c, bool waits, PyObject *result)
{
	c->user = 0;
	if (waits)
		c->turn = 0;
	if (result && PyErr_Occurred())
		Py_CLEAR(result);
	return result;
}

/* ---- callbacks ---- */

/* Warns with @line, at the line of the user's code that called this package; NULL: runs signal
 * handlers. Returns -1 if that raised, now or before in this call. @yields: other threads may use
 * the handle meanwhile. */
static int ask_python(struct client *c, const char *line, bool yields)
{
	PyGILState_STATE state = PyGILState_Ensure();
	unsigned long user = c->user;

	if (yields)
		c->user = 0;
	if (PyErr_Occurred()) {
		/* the call ends */
	} else if (line) {
		PyObject *module = PyImport_ImportModule("tokend.errors");
		PyObject *done = module ? PyObject_CallMethod(module, "warn", "s", line) : NULL;

		Py_XDECREF(module);
		Py_XDECREF(done);
	} else {
		(void)PyErr_CheckSignals();
	}

	int result = PyErr_Occurred() ? -1 : 0;

	while (yields && c->user != user) {
		WAITING(usleep(PAUSE_US));
		if (!c->user)
			c->user = user;
	}
	PyGILState_Release(state);
	return result;
}

int on_idle(void *context)
{
	return ask_python(context, NULL, true);
}

int on_warn(void *context, const char *line)
{
	return ask_python(context, line, true);
}

/* Within any call, in the middle of its work: the handle stays reserved. */
void on_notice(void *context, const char *line)
{
	(void)ask_python(context, line, false);
}
