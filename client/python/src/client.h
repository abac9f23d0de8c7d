/*
 * The Python object of a handle. A file of the extension uses only files listed before it:
 *
 *   error.c      exceptions                     arguments.c  conversion of arguments
 *   turn.c       threads, the interpreter's lock
 *   batch.c      batches copied into arrays     device.c     the ring's memory, for a GPU
 *   position.c   cursor, commit, seek, …        operator.c   an operator's requests
 *   cursor.c     cursors as values              client.c     the class Client
 *   _tokend.c    the module
 */
#ifndef TOKEND_PYTHON_CLIENT_H
#define TOKEND_PYTHON_CLIENT_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "client/lib/tokend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct client {
	PyObject_HEAD struct tokend *t; /* NULL: closed */
	pthread_mutex_t turn, state;
	atomic_int wanting;	/* number of threads that wait for `state` */
	PyThreadState *thread;	/* of the call that waits */
	bool yields;		/* that call unlocks `state` while it waits */
	const char *warning;	/* for say_warning() */
	_Atomic(char *) notice; /* the daemon's warnings, a line each, until say_notice() */
	uint64_t batches, tokens;
};

/* ---- error.c ---- */

enum { ERRORS = 11 };

struct module {
	PyObject *error;	    /* tokend.Error */
	PyObject *kind[ERRORS + 1]; /* its subclasses, by -enum tokend_error */
	PyObject *client;
};

/* The module of a Client. */
struct module *module_of(PyObject *self);
/* Sets the exception for @code, an enum tokend_error, unless one is set. Returns NULL. */
PyObject *raise_error(PyObject *self, int code, const char *why);
/* The same with tokend_why(). */
PyObject *raise_last(struct client *c, int code);

/* ---- arguments.c ---- */

struct integer {
	const char *name;
	uint64_t most, value;
	bool given;
};

#define INTEGER(name, most)                                                                        \
	{                                                                                          \
		name, most, 0, false                                                               \
	}

/* An "O&" converter to struct integer: an integer from 0 to `most`, or None (not given). */
int to_integer(PyObject *object, void *out);
/* An "O&" converter to PyObject *, a path as bytes, which the caller releases. None: NULL. */
int to_path(PyObject *object, void *out);

struct weights {
	const char **name; /* the list of names owns the texts */
	double *weight;
	uint32_t n;
};

/* Reads two lists. Returns false with the exception set. The caller calls free_weights() in both
 * cases. */
bool read_weights(struct weights *w, PyObject *names, PyObject *weights);
void free_weights(struct weights *w);

/* ---- cursor.c ---- */

extern PyMethodDef cursor_methods[]; /* functions of the module */

/* ---- turn.c ---- */

/*
 * Locks the handle before any use, and unlocks it after. @waits: the call may wait for the daemon.
 * enter() returns false, with the exception set and nothing locked, if the handle was closed or
 * belongs to the parent process.
 */
bool enter(struct client *c, bool waits);
void leave(struct client *c, bool waits);

/* Warns with the daemon's warnings, before a call changes anything. Returns false if Python turns
 * one into an exception. */
bool say_notice(struct client *c);

/* Callbacks of struct tokend_options; @context is a struct client. */
int on_idle(void *context);
int on_warn(void *context, const char *line);
void on_notice(void *context, const char *line);

/* Releases the interpreter's lock during @call, which may wait. */
#define WAITING(c, call)                                                                           \
	do {                                                                                       \
		(c)->thread = PyEval_SaveThread();                                                 \
		call;                                                                              \
		PyEval_RestoreThread((c)->thread);                                                 \
	} while (0)

/*
 * For a call that holds the interpreter's lock: if the daemon is lost, returns EAGAIN, and the
 * caller repeats it with WAITING(). The search for a daemon may call idle(), which takes that
 * lock.
 */
#define UNLESS_LOST(c, call) (tokend_lost((c)->t) ? (int)TOKEND_EAGAIN : (call))

/* ---- batch.c ---- */

PyObject *client_look_into(PyObject *self, PyObject *const *args, Py_ssize_t n);
int client_set_takes(PyObject *self, PyObject *value, void *none);
PyObject *client_need_documents(PyObject *self, PyObject *none);

/* ---- position.c ---- */

/* Calls @of, which does not wait, and returns its number. */
PyObject *number_of(PyObject *self, uint64_t (*of)(const struct tokend *t));
PyObject *client_cursor(PyObject *self, PyObject *none);
PyObject *client_position(PyObject *self, PyObject *none);
PyObject *client_taken(PyObject *self, PyObject *none);
PyObject *client_contents(PyObject *self, PyObject *none);
PyObject *client_fingerprint(PyObject *self, PyObject *none);
PyObject *client_commit(PyObject *self, PyObject *args);
PyObject *client_shape(PyObject *self, PyObject *none);
PyObject *client_datasets(PyObject *self, PyObject *none);
PyObject *client_run(PyObject *self, PyObject *none);
PyObject *client_socket(PyObject *self, PyObject *none);
PyObject *client_config(PyObject *self, PyObject *none);
PyObject *client_seek(PyObject *self, PyObject *args);
PyObject *client_set_mix(PyObject *self, PyObject *args);
PyObject *client_checkpoint(PyObject *self, PyObject *args);
PyObject *client_record(PyObject *self, PyObject *args);

/* ---- operator.c ---- */

PyObject *client_attend(PyObject *self, PyObject *none);
PyObject *client_request_number(PyObject *self, PyObject *none);
PyObject *client_request(PyObject *self, PyObject *none);
PyObject *client_obey(PyObject *self, PyObject *args);
PyObject *client_answer(PyObject *self, PyObject *args);
PyObject *client_undo(PyObject *self, PyObject *none);

/* ---- client.c ---- */

extern PyType_Spec client_spec;

/* ---- device.c ---- */

PyObject *client_memory(PyObject *self, PyObject *gone);
PyObject *client_slot(PyObject *self, PyObject *none);
PyObject *client_release(PyObject *self, PyObject *args);

#endif
