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

_Static_assert(sizeof(long) == sizeof(uint64_t), "as Python's format k");

struct client {
	PyObject_HEAD struct tokend *t; /* NULL: closed */
	pthread_mutex_t turn, state;
	bool yields; /* the call that waits unlocks `state` meanwhile */
	uint64_t batches, tokens;
	uint64_t moves;	   /* calls that may have moved the handle */
	bool copies;	   /* a batch is being copied from the ring's memory */
	PyObject *notices; /* a list of those that were not given as warnings yet; or NULL */
};

/* ---- turn.c ---- */

enum { WHY_BYTES = 1400 }; /* of an error's text */

/* Sets the exception for @code, an enum tokend_error or 0, unless one is set. Returns NULL. */
PyObject *raise_error(int code, const char *why);

/*
 * Locks the handle before any use, and unlocks it after. @waits: the call may wait for the daemon.
 * enter() returns false, with the exception set and nothing locked, if the handle was closed or
 * belongs to the parent process. leave() returns @result, or NULL if a callback has raised, or with
 * the library's exception if @r, what its function returned, is an error.
 */
bool enter(struct client *c, bool waits);
/* Before a call that may unmap the ring. False: a signal's handler interrupted a copy from it; the
 * exception is set. */
bool may_move(const struct client *c);
PyObject *leave(struct client *c, bool waits, int r, PyObject *result);
/* Gives the notices as warnings, until one raises. Nothing is locked. */
void warn_notices(struct client *c);

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

/* The rest of a method: makes @call, and returns its error, otherwise @result. */
#define CALL(waits, call, result)                                                                  \
	do {                                                                                       \
		struct client *c = (struct client *)self;                                          \
		int r;                                                                             \
		if (!enter(c, waits))                                                              \
			return NULL;                                                               \
		WAITING(r = call);                                                                 \
		return leave(c, waits, r, r < 0 ? NULL : (result));                                \
	} while (0)

/* ---- batch.c ---- */

/* Another number after each move, and if a new daemon's batches have other annotations: what was
 * made for batches before may not fit, or be of other rows. */
uint64_t client_version(const struct client *c);
PyObject *client_look_into(PyObject *self, PyObject *args);
int client_set_takes(PyObject *self, PyObject *value, void *none);

/* ---- client.c ---- */

extern PyType_Spec client_spec;

struct weights {
	const char *name[1024]; /* the dict owns the texts; a stream has at most so many datasets */
	double weight[1024];
	uint32_t n;
};

/* Reads a dict of weights by name. Returns false with the exception set. */
bool read_weights(struct weights *w, PyObject *by_name);

#endif
