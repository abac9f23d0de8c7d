/*
 * Memory for tensors that is used again: new memory costs a page fault per 4 KiB. A buffer has some
 * arrays, and each becomes a tensor (DLPack). After the last of them is freed, the buffer returns
 * to its pool. That may happen in any thread, with or without the interpreter's lock, or
 * after the pool is gone. So freeing a tensor takes no lock.
 */
#include "client/python/src/dlpack.h"

#include <stdlib.h>

enum { ARRAYS = 6, LINE = 64, PAGE = 4096 };

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
	size_t most, bytes, aligned; /* most spare buffers; size and alignment of one */
	unsigned arrays;
	uint32_t rows;
	uint32_t columns[ARRAYS]; /* 0: the array has one dimension, [rows] */
	uint32_t width[ARRAYS];	  /* bytes of an integer */
	size_t at[ARRAYS];	  /* where an array begins */
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
	b->memory = aligned_alloc(p->aligned, p->bytes);
	if (!b->memory) {
		free(b);
		return NULL;
	}
	for (unsigned i = 0; i < p->arrays; i++) {
		struct array *a = &b->array[i];

		a->shape[0] = p->rows;
		a->shape[1] = p->columns[i];
		a->managed = (struct dl_managed){
			.tensor = {(char *)b->memory + p->at[i], {DEVICE_CPU, 0},
				p->columns[i] ? 2 : 1, {CODE_INT, (uint8_t)(8 * p->width[i]), 1},
				a->shape, NULL, 0},
			.context = b,
			.deleter = array_ended,
		};
	}
	return b;
}

/* ---- the Python object ---- */

/* The numbers of a tuple. False, with the exception set: one is not a number. */
static bool read_numbers(PyObject *args, Py_ssize_t n, unsigned long number[])
{
	for (Py_ssize_t i = 0; i < n; i++)
		number[i] = PyLong_AsUnsignedLong(PyTuple_GetItem(args, i));
	return !PyErr_Occurred();
}

/* Arrays of one dimension follow each other without a gap, those of two begin at a cache line; no
 * buffer has both. False: too large. */
static bool lay_out(struct pool *p, const unsigned long sizes[])
{
	for (unsigned i = 0; i < p->arrays; i++) {
		unsigned long columns = sizes[2 * i], width = sizes[2 * i + 1];
		size_t bytes;

		if (__builtin_mul_overflow(p->rows * width, columns ? columns : 1, &bytes) ||
			bytes > SIZE_MAX / 2 / ARRAYS)
			return false;
		p->columns[i] = (uint32_t)columns;
		p->width[i] = (uint32_t)width;
		p->at[i] = p->bytes;
		p->bytes += columns ? (bytes + LINE - 1) / LINE * LINE : bytes;
	}
	p->aligned = p->bytes < PAGE ? LINE : PAGE;
	p->bytes = (p->bytes + p->aligned - 1) / p->aligned * p->aligned;

	size_t each = p->bytes + sizeof(struct buffer);

	p->most = KEPT_BYTES > each ? KEPT_BYTES / each : 1;
	return true;
}

static PyObject *buffers_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
	allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
	unsigned long number[1 + 2 * ARRAYS];
	Py_ssize_t n = PyTuple_Size(args);
	struct pool *p;

	(void)keywords;
	if (n < 3 || n > 1 + 2 * ARRAYS || n % 2 == 0) {
		PyErr_Format(PyExc_TypeError,
			"Buffers: %zd arguments; must be rows, and columns "
			"and bytes of up to %d arrays",
			n, ARRAYS);
		return NULL;
	}
	if (!read_numbers(args, n, number))
		return NULL;
	for (Py_ssize_t i = 0; i < n; i++) {
		unsigned least = i % 2 == 0, most = i > 0 && least ? 8 : UINT32_MAX;

		if (number[i] < least || number[i] > most) {
			PyErr_Format(PyExc_ValueError,
				"Buffers: argument %zd is %lu; must be %u to %u", i, number[i],
				least, most);
			return NULL;
		}
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return PyErr_NoMemory();
	atomic_store(&p->users, 1);
	p->rows = (uint32_t)number[0];
	p->arrays = (unsigned)(n / 2);
	if (!lay_out(p, number + 1)) {
		free(p);
		return PyErr_NoMemory();
	}

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
	{Py_tp_doc, "Buffers(rows, columns, bytes, …)\n\n"
		    "Memory for one to six arrays [rows, columns], or [rows] if columns is 0, of "
		    "integers of so many bytes. It is used again after the last tensor over it is "
		    "freed."},
	{Py_tp_new, buffers_new},
	{Py_tp_dealloc, buffers_dealloc},
	{Py_tp_methods, buffers_methods},
	{0},
};

PyType_Spec buffers_spec = {
	"tokend._tokend.Buffers", sizeof(struct buffers), 0, Py_TPFLAGS_DEFAULT, buffers_slots};
