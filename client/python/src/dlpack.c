/*
 * Batches lent without a copy: a CPU tensor (DLPack) whose memory is the slot. The slot is released
 * after its last tensor is freed. That may happen in any thread, with or without the interpreter's
 * lock, or after the loader was closed. So freeing a tensor only adds its batch to a list, without
 * a lock and without Python. The reader empties the list before it takes the next batch.
 *
 * A tensor may be freed before copies from it to a GPU have ended. CUDA reads memory that is not
 * registered before the call that copies it returns, and a ring is not registered while its slots
 * are lent.
 */
#include "client/python/src/dlpack.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

struct view {
	struct dl_managed managed;
	int64_t shape[2];
	struct views *of;
	struct tokend_batch batch;
	struct view *next;
};

struct views {
	atomic_long users;	     /* the client and the lent views */
	_Atomic(struct view *) back; /* list of views that ended */
	struct tokend *left;	     /* handle of a closed client: the last user detaches it */
	uint32_t hold;
	bool keeps; /* `kept` is a batch for view() */
	struct tokend_batch kept;
};

/* ---- returning ---- */

static struct view *take_back(struct views *v)
{
	return atomic_exchange(&v->back, NULL);
}

/* Frees the views that ended and releases their batches, unless @t is NULL or a parent's. */
static void settle(struct views *v, struct tokend *t)
{
	bool ours = t && !tokend_forked(t);

	for (struct view *view = take_back(v), *next; view; view = next) {
		next = view->next;
		if (ours)
			tokend_release(t, &view->batch);
		free(view);
	}
}

static void drop(struct views *v)
{
	if (atomic_fetch_sub(&v->users, 1) > 1)
		return;
	settle(v, v->left);
	tokend_detach(v->left);
	free(v);
}

static void view_ended(struct dl_managed *managed)
{
	struct view *view = managed->context;
	struct views *v = view->of;

	view->next = atomic_load(&v->back);
	while (!atomic_compare_exchange_weak(&v->back, &view->next, view))
		;
	drop(v);
}

static void give_back(struct client *c)
{
	struct views *v = c->views;

	settle(v, c->t);
	if (v->keeps)
		tokend_release(c->t, &v->kept);
	v->keeps = false;
}

bool batch_due(struct client *c)
{
	char why[300];

	if (!c->views)
		return true;
	give_back(c);

	struct tokend_shape shape;

	tokend_shape(c->t, &shape);

	uint32_t slots = shape.slots, hold = c->views->hold;
	uint64_t held = tokend_held(c->t);

	if (held <= hold && slots > hold)
		return true;
	if (held > hold)
		snprintf(why, sizeof(why),
			"hold: the batch %llu steps back is still in use, but hold is %u; use "
			"hold=%llu, slots=%llu or more",
			(unsigned long long)held, hold, (unsigned long long)held,
			(unsigned long long)held + 1);
	else
		snprintf(why, sizeof(why),
			"hold: %u held batches and the next one need more than the ring's %u "
			"slots; use slots=%u",
			hold, slots, hold + 1);
	raise_error((PyObject *)c, TOKEND_EHELD, why);
	return false;
}

void batch_done(struct client *c, const struct tokend_batch *batch)
{
	if (c->views) {
		c->views->kept = *batch;
		c->views->keeps = true;
	} else {
		tokend_release(c->t, batch);
	}
}

void views_detach(struct client *c)
{
	struct views *v = c->views;

	if (v && c->t && !tokend_forked(c->t)) {
		/* The session ends now, the memory stays mapped while lent batches use it. */
		tokend_leave(c->t);
		v->left = c->t;
	} else {
		tokend_detach(c->t);
	}
	c->t = NULL;
	c->views = NULL;
	if (v)
		drop(v);
}

/* ---- lending ---- */

PyObject *client_lend(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct integer hold = INTEGER("hold", UINT_MAX - 1);

	if (!PyArg_ParseTuple(args, "O&", to_integer, &hold) || !enter(c, false))
		return NULL;
	if (!c->views) {
		c->views = calloc(1, sizeof(*c->views));
		if (c->views)
			atomic_store(&c->views->users, 1);
	}
	if (c->views)
		c->views->hold = (unsigned)hold.value;

	bool fits = c->views && batch_due(c);

	leave(c, false);
	if (!c->views)
		return PyErr_NoMemory();
	return fits ? Py_NewRef(Py_None) : NULL;
}

/* Frees the tensor of a capsule that nobody consumed. */
static void capsule_ended(PyObject *capsule)
{
	struct dl_managed *managed;

	/* A consumed capsule has another name; its consumer frees the tensor. Do not change an
	 * exception that may be set. */
	if (!PyCapsule_IsValid(capsule, "dltensor"))
		return;
	managed = PyCapsule_GetPointer(capsule, "dltensor");
	managed->deleter(managed);
}

PyObject *dl_capsule(struct dl_managed *managed)
{
	return PyCapsule_New(managed, "dltensor", capsule_ended);
}

static struct view *new_view(struct views *v)
{
	const struct tokend_batch *b = &v->kept;
	struct view *view = calloc(1, sizeof(*view));

	if (!view)
		return NULL;
	view->shape[0] = b->rows;
	view->shape[1] = b->window_tokens;
	view->of = v;
	view->batch = *b;
	view->managed = (struct dl_managed){
		.tensor = {(void *)b->tokens, {DEVICE_CPU, 0}, 2,
			{CODE_UINT, (uint8_t)(8 * b->token_bytes), 1}, view->shape, NULL, 0},
		.context = view,
		.deleter = view_ended,
	};
	return view;
}

PyObject *client_view(PyObject *self, PyObject *none)
{
	struct client *c = (struct client *)self;

	(void)none;
	if (!enter(c, false))
		return NULL;

	struct views *v = c->views;

	if (!v || !v->keeps) {
		raise_error(self, TOKEND_EARGUMENT,
			"view: no batch was taken since the last view; call lend(), then "
			"next_into()");
		leave(c, false);
		return NULL;
	}

	struct view *view = new_view(v);
	PyObject *capsule = view ? dl_capsule(&view->managed) : PyErr_NoMemory();

	if (capsule) {
		atomic_fetch_add(&v->users, 1);
		v->keeps = false;
	} else {
		free(view);
	}
	leave(c, false);
	return capsule;
}
