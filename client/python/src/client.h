/*
 * The Python object of a handle, shared by the files of the extension, which use each other from
 * the last to the first:
 *
 *   error.c      exceptions                     arguments.c  what Python hands over
 *   turn.c       threads, the interpreter's lock
 *   dlpack.c     batches lent as tensors        batch.c      batches copied into Python's arrays
 *   device.c     batches copied to a GPU        position.c   where the session is
 *   operator.c   an operator's requests         cursor.c     cursors as values
 *   client.c     the object                     _tokend.c    the module
 */
#ifndef TOKEND_PYTHON_CLIENT_H
#define TOKEND_PYTHON_CLIENT_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "client/lib/tokend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct views;

struct client {
	PyObject_HEAD struct tokend *t; /* NULL: closed */
	pthread_mutex_t turn, state;
	atomic_int wanting;	/* threads that wait for state */
	PyThreadState *thread;	/* of the call that waits */
	bool yields;		/* it gives state up meanwhile */
	PyObject *absent;	/* or NULL: called where no daemon listens; may start one */
	const char *warning;	/* to be said to Python */
	_Atomic(char *) notice; /* the daemon's warning, until Python is told; or NULL */
	uint64_t batches, tokens;
	struct views *views; /* NULL: batches are copied, never lent */
};

/* ---- error.c ---- */

enum { ERRORS = 9 };

struct module {
	PyObject *error;	    /* tokend.Error */
	PyObject *kind[ERRORS + 1]; /* its subclasses, by -enum tokend_error */
	PyObject *client;
};

/* Of a client. */
struct module *module_of(PyObject *self);
/* NULL, with the exception that goes with an enum tokend_error. */
PyObject *raise_error(PyObject *self, int code, const char *why);
PyObject *raise_last(struct client *c, int code);

/* ---- arguments.c ---- */

struct whole {
	const char *name;
	uint64_t most, value;
	bool given;
};

#define WHOLE(name, most)                                                                          \
	{                                                                                          \
		name, most, 0, false                                                               \
	}

/* An "O&" converter: an integer from 0 to most, or None. */
int to_whole(PyObject *object, void *out);

struct weights {
	const char **name; /* the texts belong to the list of names */
	double *weight;
	uint32_t n;
};

/* Of two lists. False with the exception set; free_weights() is the caller's either way. */
bool read_weights(struct weights *w, PyObject *names, PyObject *weights);
void free_weights(struct weights *w);

/* ---- cursor.c ---- */

extern PyMethodDef cursor_methods[]; /* the module's */

/* ---- turn.c ---- */

/*
 * Before any use of the handle, and after it; @waits: the call may wait for the daemon. False: the
 * handle was closed, or belongs to a parent; the exception is set and nothing is locked.
 */
bool enter(struct client *c, bool waits);
void leave(struct client *c, bool waits);

/* Before a call that changes nothing yet: says the daemon's warning. False if Python makes an error
 * of it. */
bool say_notice(struct client *c);

/* For struct tokend_options; @context is a struct client. */
int on_idle(void *context);
int on_absent(void *context);
int on_warn(void *context, const char *line);
void on_notice(void *context, const char *line);

/* Lets the interpreter go on during @call, which may wait. */
#define WAITING(c, call)                                                                           \
	do {                                                                                       \
		(c)->thread = PyEval_SaveThread();                                                 \
		call;                                                                              \
		PyEval_RestoreThread((c)->thread);                                                 \
	} while (0)

/*
 * A call that may neither wait nor give the interpreter's lock up leaves the search for a lost
 * daemon to one that may: absent() takes that lock, and a new ring is registered with a GPU's
 * driver.
 */
#define UNLESS_LOST(c, call) (tokend_lost((c)->t) ? (int)TOKEND_EAGAIN : (call))

/* ---- batch.c ---- */

PyObject *client_next_into(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *client_need_documents(PyObject *self, PyObject *none);

/* ---- dlpack.c ---- */

/* Call before a batch is taken: releases what came back of lent ones. False, with HeldError: too
 * much is held. */
bool batch_due(struct client *c);
/* Call when @batch was copied: releases it, or keeps it for view(). */
void batch_done(struct client *c, const struct tokend_batch *batch);
/* Detaches. What is lent stays valid: then the last one that comes back does the rest. */
void views_detach(struct client *c);
PyObject *client_lend(PyObject *self, PyObject *args);
PyObject *client_view(PyObject *self, PyObject *none);

/* ---- position.c ---- */

/* A number that the library tells of the handle at any time. */
PyObject *number_of(PyObject *self, uint64_t (*of)(const struct tokend *t));
PyObject *client_cursor(PyObject *self, PyObject *none);
PyObject *client_position(PyObject *self, PyObject *none);
PyObject *client_taken(PyObject *self, PyObject *none);
PyObject *client_fingerprint(PyObject *self, PyObject *none);
PyObject *client_commit(PyObject *self, PyObject *args);
PyObject *client_shape(PyObject *self, PyObject *none);
PyObject *client_datasets(PyObject *self, PyObject *none);
PyObject *client_run(PyObject *self, PyObject *none);
PyObject *client_seek(PyObject *self, PyObject *args);
PyObject *client_set_mix(PyObject *self, PyObject *args);
PyObject *client_checkpoint(PyObject *self, PyObject *args);
PyObject *client_stream(PyObject *self, PyObject *none);
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

PyObject *client_pin(PyObject *self, PyObject *args);
PyObject *client_copied(PyObject *self, PyObject *none);
PyObject *client_copy_next(PyObject *self, PyObject *args);

#endif
