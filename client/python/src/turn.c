/*
 * Threads and the interpreter's lock.
 *
 * Python code may save a loader's state in another thread than the one that reads, so calls are
 * serialised. A call that may wait holds `turn`. A call that uses the handle holds `state`. While
 * next() waits, it regularly unlocks `state` to check for signals, so that other threads can read
 * the cursor. No thread waits for either lock while it holds the interpreter's lock.
 */
#include "client/python/src/client.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
	atomic_fetch_add(&c->wanting, 1);

	bool locked = lock(&c->state);

	atomic_fetch_sub(&c->wanting, 1);
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

void leave(struct client *c, bool waits)
{
	pthread_mutex_unlock(&c->state);
	if (waits)
		pthread_mutex_unlock(&c->turn);
}

static int check_signals(const struct client *c)
{
	(void)c;
	return PyErr_CheckSignals();
}

/* Warns, with the line of the user's code that called this package. */
static int warn_user(const char *line)
{
	PyObject *module = PyImport_ImportModule("tokend.phrases");
	PyObject *done = module ? PyObject_CallMethod(module, "warn", "s", line) : NULL;

	Py_XDECREF(module);
	Py_XDECREF(done);
	return done ? 0 : -1;
}

static int say_warning(const struct client *c)
{
	return warn_user(c->warning);
}

/* Runs Python code from a callback of the call that waits. */
static int ask_python(struct client *c, int (*ask)(const struct client *c))
{
	if (c->yields)
		pthread_mutex_unlock(&c->state);
	PyEval_RestoreThread(c->thread);

	int interrupted = ask(c);

	c->thread = PyEval_SaveThread();
	if (c->yields) {
		/* Let threads that wait for `state` go first: this thread would get the mutex back
		 * before they woke. */
		for (int i = 0; i < 1000 && atomic_load(&c->wanting) > 0; i++)
			usleep(50);
		pthread_mutex_lock(&c->state);
	}
	return interrupted;
}

int on_idle(void *context)
{
	return ask_python(context, check_signals);
}

int on_warn(void *context, const char *line)
{
	struct client *c = context;

	c->warning = line;
	return ask_python(c, say_warning);
}

void on_notice(void *context, const char *line)
{
	struct client *c = context;
	char *before = atomic_exchange(&c->notice, NULL), *both = NULL;

	if (before && asprintf(&both, "%s\n%s", before, line) < 0)
		both = NULL;
	free(atomic_exchange(&c->notice, before ? both : strdup(line)));
	free(before);
}

bool say_notice(struct client *c)
{
	char *lines = atomic_load(&c->notice) ? atomic_exchange(&c->notice, NULL) : NULL;
	char *next = lines, *line;
	int error = 0;

	while (error == 0 && (line = strsep(&next, "\n")))
		error = warn_user(line);
	free(lines);
	return error == 0;
}
