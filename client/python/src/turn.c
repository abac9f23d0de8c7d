/*
 * Exceptions, threads and the interpreter's lock.
 *
 * Python code may save a loader's state in another thread than the one that reads, so calls are
 * serialised. A call that may wait holds `turn`. A call that uses the handle holds `state`. While
 * next() waits, it regularly unlocks `state` to check for signals, so that other threads can read
 * the cursor. No thread waits for either lock while it holds the interpreter's lock.
 */
#include "client/python/src/client.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Calls a function of tokend.errors with @line and @code. */
static PyObject *in_python(const char *function, const char *line, int code)
{
	PyObject *module = PyImport_ImportModule("tokend.errors"), *result = NULL;
	/* A store chooses some of the words, paths may have any bytes, and long texts are cut. */
	PyObject *text = PyUnicode_DecodeUTF8(line, (Py_ssize_t)strlen(line), "replace");

	if (module && text)
		result = PyObject_CallMethod(module, function, "Oi", text, code);
	Py_XDECREF(text);
	Py_XDECREF(module);
	return result;
}

PyObject *raise_error(int code, const char *why)
{
	/* If a signal's handler raised, its exception is already set. */
	PyObject *error = PyErr_Occurred() ? NULL : in_python("of", why, code);

	if (error)
		PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_XDECREF(error);
	return NULL;
}

/* ---- locks ---- */

/* Returns false if this thread already holds @mutex. */
static bool lock(pthread_mutex_t *mutex)
{
	int error = pthread_mutex_trylock(mutex);

	if (error)
		WAITING(error = pthread_mutex_lock(mutex));
	return error == 0;
}

/* Python code (a signal's handler) used the handle in the thread that waits in it. */
static bool busy(void)
{
	raise_error(0, "busy: the loader is waiting in this thread, and a signal's handler "
		       "interrupted it; set a flag in the handler, and act on it when the call has "
		       "returned");
	return false;
}

bool may_move(const struct client *c)
{
	return !c->copies || busy();
}

bool enter(struct client *c, bool waits)
{
	if (c->t && tokend_forked(c->t)) {
		/* fork() copied the locks, which may be locked: do not use them. */
		raise_error(TOKEND_EFORKED, tokend_why(c->t));
		return false;
	}
	if (waits && !lock(&c->turn))
		return busy();

	bool locked = lock(&c->state);

	if (locked && c->t)
		return true;
	if (locked)
		pthread_mutex_unlock(&c->state);
	if (waits)
		pthread_mutex_unlock(&c->turn);
	if (!locked)
		return busy();
	raise_error(0, "closed: this loader was closed; make a new one");
	return false;
}

void warn_notices(struct client *c)
{
	PyObject *notices = PyErr_Occurred() ? NULL : c->notices; /* otherwise by the next call */

	if (notices)
		c->notices = NULL;
	for (Py_ssize_t i = 0; notices && i < PyList_Size(notices) && !PyErr_Occurred(); i++) {
		const char *line = PyBytes_AsString(PyList_GetItem(notices, i));
		PyObject *done = in_python("warn", line, 0);

		Py_XDECREF(done);
	}
	Py_XDECREF(notices);
}

PyObject *leave(struct client *c, bool waits, int r, PyObject *result)
{
	char why[WHY_BYTES];

	if (r < 0)
		snprintf(why, sizeof(why), "%s", tokend_why(c->t));
	pthread_mutex_unlock(&c->state);
	if (waits)
		pthread_mutex_unlock(&c->turn);
	/* Without a result a batch was taken: an exception would lose it. */
	if (result || r < 0)
		warn_notices(c);
	if (r < 0)
		return raise_error(r, why);
	if (result && PyErr_Occurred())
		Py_CLEAR(result);
	return result;
}

/* ---- callbacks ---- */

/* Warns with @line, at the line of the user's code that called this package; NULL: runs signal
 * handlers. Returns false if that raised, now or before in this call. */
static bool ask_python(struct client *c, const char *line)
{
	PyGILState_STATE state = PyGILState_Ensure();

	if (c->yields)
		warn_notices(c);

	bool raised = PyErr_Occurred();

	if (!raised && line) {
		PyObject *done = in_python("warn", line, 0);

		Py_XDECREF(done);
		raised = !done;
	} else if (!raised) {
		raised = PyErr_CheckSignals() < 0;
	}
	PyGILState_Release(state);
	return !raised;
}

/* From a call that waits. */
static int ask_waiting(struct client *c, const char *line)
{
	if (c->yields)
		pthread_mutex_unlock(&c->state);

	bool goes_on = ask_python(c, line);

	if (c->yields) {
		/* Threads that wait for `state` go first: this thread would get the mutex back
		 * before they woke. */
		usleep(1000);
		pthread_mutex_lock(&c->state);
	}
	return goes_on ? 0 : -1;
}

int on_idle(void *context)
{
	return ask_waiting(context, NULL);
}

int on_warn(void *context, const char *line)
{
	return ask_waiting(context, line);
}

/* Within any call, in the middle of its work. `state` stays locked, so Python's warnings must wait:
 * what handles them may use the loader, or wait for a thread that does. */
void on_notice(void *context, const char *line)
{
	struct client *c = context;
	PyGILState_STATE state = PyGILState_Ensure();

	if (!PyErr_Occurred()) {
		PyObject *text = PyBytes_FromString(line);

		if (!c->notices)
			c->notices = PyList_New(0);
		if (text && c->notices)
			PyList_Append(c->notices, text);
		Py_XDECREF(text);
	}
	PyGILState_Release(state);
}
