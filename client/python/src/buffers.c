/*
 * Memory for tensors that is used again: new memory costs a page fault per 4 KiB. A buffer has one
 * or two arrays, and each becomes a tensor (DLPack). After the last of them is freed, the buffer
 * returns to its pool. That may happen in any thread, with or without the interpreter's lock, or
 * after the pool is gone. So freeing a tensor takes no lock.
 */
#include "client/python/src/dlpack.h"

#include <stdlib.h>

enum { ARRAYS = 2, LINE = 64, PAGE = 4096 };

/* Free memory that a pool keeps, at most: one buffer, or these bytes if they are more. */
#define KEPT_BYTES (4u << 20)

struct array {
	struct dl_managed managed;
	int64_t shape[2];
};

struct buffer {
	struct array array[ARRAYS];
	atomic_uint users; /* tensors */
	struct pool *of;
	struct buffer *next;
	void *memory;
};

struct pool {
	atomic_long users; /* the Python object and the buffers in use */
	/* List of free buffers. Any thread adds one. Only the holder of the interpreter's lock
	 * removes one, so a removed buffer cannot be the first again meanwhile. */
	_Atomic(struct buffer *) spare;
	atomic_size_t spares;
	size_t most, bytes; /* most spare buffers; size of one */
	unsigned arrays;
	uint32_t rows, columns[ARRAYS], width[ARRAYS]; /* width: bytes of an integer */
	size_t at[ARRAYS];			       /* where an array begins */
};

struct buffers {
	PyObject_HEAD struct pool *pool;
};

/* ---- the pool ---- */

static void free_buffer(struct buffer *b)
{
	free(b->memory);
	free(b);
}

static void drop(struct pool *p)
{
	if (atomic_fetch_sub(&p->users, 1) > 1)
		return;
	for (struct buffer *b = atomic_load(&p->spare), *next; b; b = next) {
		next = b->next;
		free_buffer(b);
	}
	free(p);
}

static void array_ended(struct dl_managed *managed)
{
	struct buffer *b = managed->context;
	struct pool *p = b->of;

	if (atomic_fetch_sub(&b->users, 1) > 1)
		return;
	if (atomic_fetch_add(&p->spares, 1) < p->most) {
		b->next = atomic_load(&p->spare);
		while (!atomic_compare_exchange_weak(&p->spare, &b->next, b))
			;
	} else {
		atomic_fetch_sub(&p->spares, 1);
		free_buffer(b);
	}
	drop(p);
}

/* Returns the buffer that was freed last, because the caches know it best; or NULL. */
static struct buffer *take_spare(struct pool *p)
{
	struct buffer *b = atomic_load(&p->spare);

	while (b && !atomic_compare_exchange_weak(&p->spare, &b, b->next))
		;
	if (b)
		atomic_fetch_sub(&p->spares, 1);
	return b;
}

static struct buffer *new_buffer(struct pool *p)
{
	struct buffer *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->of = p;
	b->memory = aligned_alloc(PAGE, p->bytes);
	if (!b->memory) {
		free(b);
		return NULL;
	}
	for (unsigned i = 0; i < p->arrays; i++) {
		struct array *a = &b->array[i];

		a->shape[0] = p->rows;
		a->shape[1] = p->columns[i];
		a->managed = (struct dl_managed){
			.tensor = {(char *)b->memory + p->at[i], {DEVICE_CPU, 0}, 2,
				{CODE_INT, (uint8_t)(8 * p->width[i]), 1}, a->shape, NULL, 0},
			.context = b,
			.deleter = array_ended,
		};
	}
	return b;
}

/* ---- the Python object ---- */

static PyObject *buffers_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
	allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
	unsigned rows, columns[ARRAYS] = {0}, width[ARRAYS] = {0};
	struct pool *p;

	(void)keywords;
	if (!PyArg_ParseTuple(
		    args, "III|II", &rows, &columns[0], &width[0], &columns[1], &width[1]))
		return NULL;
	if (!rows || !columns[0] || !width[0]) {
		PyErr_SetString(PyExc_ValueError, "Buffers: sizes must not be 0");
		return NULL;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return PyErr_NoMemory();
	atomic_store(&p->users, 1);
	p->rows = rows;
	for (; p->arrays < ARRAYS && width[p->arrays]; p->arrays++) {
		unsigned i = p->arrays;
		size_t bytes = (size_t)rows * columns[i] * width[i];

		p->columns[i] = columns[i];
		p->width[i] = width[i];
		p->at[i] = p->bytes;
		p->bytes += (bytes + LINE - 1) / LINE * LINE;
	}
	p->bytes = (p->bytes + PAGE - 1) / PAGE * PAGE;
	p->most = KEPT_BYTES > p->bytes ? KEPT_BYTES / p->bytes : 1;

	struct buffers *self = (struct buffers *)allocate(type, 0);

	if (self)
		self->pool = p;
	else
		free(p);
	return (PyObject *)self;
}

static void buffers_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = PyType_GetSlot(type, Py_tp_free);

	drop(((struct buffers *)self)->pool);
	release(self);
	Py_DECREF(type);
}

/* The addresses of @b's arrays, then their capsules. */
static PyObject *described(const struct pool *p, struct buffer *b)
{
	PyObject *all = PyTuple_New(2 * p->arrays);
	unsigned i = 0;

	for (; all && i < p->arrays; i++) {
		PyObject *address = PyLong_FromVoidPtr(b->array[i].managed.tensor.data);
		PyObject *capsule = address ? dl_capsule(&b->array[i].managed) : NULL;

		if (address)
			PyTuple_SetItem(all, i, address);
		if (!capsule)
			break;
		PyTuple_SetItem(all, p->arrays + i, capsule);
	}
	if (all && i == p->arrays)
		return all;
	for (unsigned rest = i; rest < p->arrays; rest++)
		array_ended(&b->array[rest].managed);
	Py_XDECREF(all);
	return NULL;
}

static PyObject *buffers_take(PyObject *self, PyObject *none)
{
	struct pool *p = ((struct buffers *)self)->pool;
	struct buffer *b = take_spare(p);

	(void)none;
	if (!b)
		b = new_buffer(p);
	if (!b)
		return PyErr_NoMemory();
	atomic_store(&b->users, p->arrays);
	atomic_fetch_add(&p->users, 1);
	return described(p, b);
}

static PyMethodDef buffers_methods[] = {
	{"take", buffers_take, METH_NOARGS,
		"take()\n\nReturns the addresses of a buffer's arrays, then their DLPack "
		"capsules."},
	{0},
};

static PyType_Slot buffers_slots[] = {
	{Py_tp_doc,
		"Buffers(rows, columns, bytes, columns=0, bytes=0)\n\n"
		"Memory for one or two arrays [rows, columns] of integers of 4 or 8 bytes, which "
		"is used again after the last tensor over it is freed."},
	{Py_tp_new, buffers_new},
	{Py_tp_dealloc, buffers_dealloc},
	{Py_tp_methods, buffers_methods},
	{0},
};

PyType_Spec buffers_spec = {
	"tokend._tokend.Buffers", sizeof(struct buffers), 0, Py_TPFLAGS_DEFAULT, buffers_slots};
