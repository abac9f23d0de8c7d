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

PyObject *raise_error(PyObject *self, int code, const char *why)
{
	struct module *m = PyType_GetModuleState(Py_TYPE(self));
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

/* ---- locks ---- */

/* Returns false if this thread already holds @mutex. */
static bool lock(pthread_mutex_t *mutex)
{
	int error = pthread_mutex_trylock(mutex);

	if (error == 0)
		return true;
	Py_BEGIN_ALLOW_THREADS error = pthread_mutex_lock(mutex);
	Py_END_ALLOW_THREADS return error == 0;
}

/* Python code (a signal's handler) used the handle in the thread that waits in it. */
static bool busy(struct client *c)
{
	raise_error((PyObject *)c, 0,
		"busy: the loader is waiting in this thread, and a signal's handler interrupted "
		"it; set a flag in the handler, and act on it when the call has returned");
	return false;
}

bool enter(struct client *c, bool waits)
{
	if (c->t && tokend_forked(c->t)) {
		/* fork() copied the locks, which may be locked: do not use them. */
		raise_last(c, TOKEND_EFORKED);
		return false;
	}
	if (waits && !lock(&c->turn))
		return busy(c);

	bool locked = lock(&c->state);

	if (locked && c->t)
		return true;
	if (locked)
		pthread_mutex_unlock(&c->state);
	if (waits)
		pthread_mutex_unlock(&c->turn);
	if (!locked)
		return busy(c);
	raise_error((PyObject *)c, 0, "closed: this loader was closed; make a new one");
	return false;
}

PyObject *leave(struct client *c, bool waits, PyObject *result)
{
	pthread_mutex_unlock(&c->state);
	if (waits)
		pthread_mutex_unlock(&c->turn);
	if (result && PyErr_Occurred())
		Py_CLEAR(result);
	return result;
}

/* ---- callbacks ---- */

/* Warns with @line, at the line of the user's code that called this package; NULL: runs signal
 * handlers. Returns false if that raised, now or before in this call. */
static bool ask_python(const char *line)
{
	PyGILState_STATE state = PyGILState_Ensure();
	bool raised = PyErr_Occurred();

	if (!raised && line) {
		PyObject *module = PyImport_ImportModule("tokend.phrases");
		PyObject *done = module ? PyObject_CallMethod(module, "warn", "s", line) : NULL;

		Py_XDECREF(module);
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

	bool goes_on = ask_python(line);

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

/* Within any call, in the middle of its work: `state` stays locked. */
void on_notice(void *context, const char *line)
{
	(void)context;
	(void)ask_python(line);
}
