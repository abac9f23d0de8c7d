/*
 * The Python object of a handle. A file of the extension uses only files listed before it:
 *
 *   turn.c     exceptions, threads, the interpreter's lock
 *   batch.c    batches copied into arrays
 *   client.c   the class Client
 *   _tokend.c  the module, and cursors as values
 */
#ifndef TOKEND_PYTHON_CLIENT_H
#define TOKEND_PYTHON_CLIENT_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "client/lib/tokend.h"

#include <pthread.h>
#include <stdbool.h>

struct client {
	PyObject_HEAD struct tokend *t; /* NULL: closed */
	pthread_mutex_t turn, state;
	bool yields; /* the call that waits unlocks `state` meanwhile */
	uint64_t batches, tokens;
};

enum { ERRORS = 11 };

struct module {
	PyObject *error;	    /* tokend.Error */
	PyObject *kind[ERRORS + 1]; /* its subclasses, by -enum tokend_error */
	PyObject *client;
};

/* ---- turn.c ---- */

/* Sets the exception for @code, an enum tokend_error, unless one is set. Returns NULL. */
PyObject *raise_error(PyObject *self, int code, const char *why);
/* The same with tokend_why(). */
PyObject *raise_last(struct client *c, int code);

/*
 * Locks the handle before any use, and unlocks it after. @waits: the call may wait for the daemon.
 * enter() returns false, with the exception set and nothing locked, if the handle was closed or
 * belongs to the parent process. leave() returns @result, or NULL if a callback has raised.
 */
bool enter(struct client *c, bool waits);
PyObject *leave(struct client *c, bool waits, PyObject *result);

/* Callbacks of struct tokend_options; @context is a struct client. */
int on_idle(void *context);
int on_warn(void *context, const char *line);
void on_notice(void *context, const char *line);

/* Releases the interpreter's lock during @call, which may wait. */
#define WAITING(call)                                                                              \
	do {                                                                                       \
		PyThreadState *thread = PyEval_SaveThread();                                       \
		call;                                                                              \
		PyEval_RestoreThread(thread);                                                      \
	} while (0)

/* ---- batch.c ---- */

PyObject *client_look_into(PyObject *self, PyObject *args);
int client_set_takes(PyObject *self, PyObject *value, void *none);

/* ---- client.c ---- */

extern PyType_Spec client_spec;

/* ---- _tokend.c ---- */

struct weights {
	const char **name; /* the dict owns the texts */
	double *weight;
	uint32_t n;
};

/* Reads a dict of weights by name. Returns false with the exception set. The caller calls
 * free_weights() in both cases. */
bool read_weights(struct weights *w, PyObject *by_name);
void free_weights(struct weights *w);

#endif
