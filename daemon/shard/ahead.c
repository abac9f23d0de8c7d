#include "daemon/shard/ahead.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
	LEAST = 64 << 10,
	MOST = 8 << 20,
	/* Parts of an object: its head, its tail, and those of arrays that are read side by side.
	 */
	HEAD = 0,
	TAIL = 1,
	MOVING = 2,
	PARTS = 5,
};

struct part {
	uint64_t at, n, used; /* used: when it was read from last */
	char *bytes;
};

struct file {
	struct file *next;
	const char *key;
	const struct store_bucket *bucket;
	uint64_t reads;
	struct part part[PARTS];
};

struct ahead {
	_Atomic unsigned owners;
	bool ended;
	struct file *files;
	struct fault *fault; /* of a read that failed; or NULL */
};

struct ahead *ahead_new(void)
{
	struct ahead *ahead = calloc(1, sizeof(*ahead));

	if (ahead)
		ahead->owners = 1;
	return ahead;
}

struct ahead *ahead_share(struct ahead *ahead)
{
	ahead->owners++;
	return ahead;
}

static void drop(struct ahead *ahead)
{
	for (struct file *file; (file = ahead->files);) {
		ahead->files = file->next;
		for (unsigned i = 0; i < PARTS; i++)
			free(file->part[i].bytes);
		free(file);
	}
	free(ahead->fault);
	ahead->fault = NULL;
}

void ahead_free(struct ahead *ahead)
{
	if (!ahead || --ahead->owners > 0)
		return;
	drop(ahead);
	free(ahead);
}

void ahead_end(struct ahead *ahead)
{
	if (!ahead)
		return;
	drop(ahead);
	ahead->ended = true;
}

/* NULL: out of memory. */
static struct file *file_of(struct ahead *ahead, const struct object *object)
{
	struct file *file = ahead->files;

	while (file && (file->bucket != object->bucket || strcmp(file->key, object->key) != 0))
		file = file->next;
	if (file || !(file = calloc(1, sizeof(*file))))
		return file;
	file->key = object->key;
	file->bucket = object->bucket;
	file->next = ahead->files;
	ahead->files = file;
	return file;
}

static bool has(const struct part *p, uint64_t at, size_t n)
{
	return p->bytes && at >= p->at && at + n <= p->at + p->n;
}

/*
 * The shard cannot be opened, so all its formats get this answer. To ask the store again for each
 * of them takes minutes if it does not answer.
 */
static bool keep_fault(struct ahead *ahead, const struct fault *fault)
{
	ahead->fault = malloc(sizeof(*fault));
	if (ahead->fault)
		*ahead->fault = *fault;
	return false;
}

/* The part whose end is at, or shortly before, @at; NULL: none. */
static struct part *before(struct file *file, uint64_t at)
{
	for (struct part *p = file->part; p < file->part + PARTS; p++)
		if (p->bytes && at >= p->at && at <= p->at + 2 * p->n)
			return p;
	return NULL;
}

/* Chooses a part for bytes [at, at + n), which none has, and sets its range. */
static struct part *choose(struct file *file, uint64_t size, uint64_t at, size_t n)
{
	struct part *p = &file->part[MOVING], *last;
	uint64_t bytes = LEAST;

	if (size <= 2 * LEAST || at + n <= LEAST) {
		p = &file->part[HEAD];
		at = 0;
		bytes = size <= 2 * LEAST ? size : LEAST;
	} else if (at >= size - LEAST) {
		p = &file->part[TAIL];
		at = size - LEAST;
	} else {
		last = before(file, at);
		if (last)
			bytes = 2 * last->n < MOST ? 2 * last->n : MOST;
		if (last >= p)
			p = last;
		else
			for (struct part *q = p + 1; q < file->part + PARTS; q++)
				p = q->used < p->used ? q : p;
		bytes = bytes < n ? n : bytes;
		bytes = bytes < size - at ? bytes : size - at;
	}
	free(p->bytes);
	*p = (struct part){.at = at, .n = bytes};
	return p;
}

bool ahead_read(struct ahead *ahead, struct stores *stores, const struct object *object,
	uint64_t at, void *to, size_t n, struct fault *fault)
{
	struct file *file = ahead->ended || n > MOST ? NULL : file_of(ahead, object);
	struct part *p = NULL;

	if (ahead->fault) {
		*fault = *ahead->fault;
		return false;
	}
	if (!file)
		return store_read(stores, object, at, to, n, fault);
	for (unsigned i = 0; i < PARTS && !p; i++)
		p = has(&file->part[i], at, n) ? &file->part[i] : NULL;
	if (!p) {
		p = choose(file, object->size, at, n);
		p->bytes = malloc(p->n);
		if (!p->bytes)
			return store_read(stores, object, at, to, n, fault);
		if (!store_read(stores, object, p->at, p->bytes, p->n, fault)) {
			free(p->bytes);
			p->bytes = NULL;
			return keep_fault(ahead, fault);
		}
	}
	p->used = ++file->reads;
	memcpy(to, p->bytes + (at - p->at), n);
	return true;
}
