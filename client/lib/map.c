/*
 * Maps a ring received from the daemon. Everything is checked before it is used: in memory that
 * could shrink a load would be a SIGBUS, and wrong sizes would lead outside the mapping.
 *
 * A forked child does not inherit the mappings: it would keep a dead trainer's ring alive.
 */
#include "client/lib/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct memory {
	const char *name;
	int fd;
	uint64_t bytes;
	int protection;
};

static void *map_memory(const struct memory *s, struct fault *fault)
{
	struct stat st;
	int seals = fcntl(s->fd, F_GET_SEALS);

	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
		fault_set(fault, FAULT_PROTOCOL, "ring", "the %s memory can be resized (no seals)",
			s->name);
		return NULL;
	}
	if (fstat(s->fd, &st) != 0 || (uint64_t)st.st_size != s->bytes || s->bytes == 0) {
		fault_set(fault, FAULT_PROTOCOL, "ring",
			"the %s memory has %lld bytes instead of %llu", s->name,
			(long long)st.st_size, (unsigned long long)s->bytes);
		return NULL;
	}

	void *at = mmap(NULL, s->bytes, s->protection, MAP_SHARED, s->fd, 0);

	if (at == MAP_FAILED || madvise(at, s->bytes, MADV_DONTFORK) != 0) {
		fault_errno(fault, errno, "ring", "cannot map the %s memory of %llu bytes: %s",
			s->name, (unsigned long long)s->bytes, strerror(errno));
		if (at != MAP_FAILED)
			munmap(at, s->bytes);
		return NULL;
	}
	return at;
}

struct mapping *mapping_open(
	int meta_fd, uint64_t meta_bytes, int data_fd, uint64_t data_bytes, struct fault *fault)
{
	const struct memory meta_memory = {"meta", meta_fd, meta_bytes, PROT_READ};
	const struct memory data_memory = {"data", data_fd, data_bytes, PROT_READ | PROT_WRITE};
	struct mapping *m = NULL;
	struct ring ring;
	void *data = NULL;
	void *meta = map_memory(&meta_memory, fault);

	if (!meta)
		return NULL;
	data = map_memory(&data_memory, fault);
	if (!data)
		goto fail;
	if (!ring_open(&ring, meta, meta_bytes, data, data_bytes, fault))
		goto fail;
	m = calloc(1, sizeof(*m) + release_queue_words(ring.geometry.slots) * sizeof(m->bits[0]));
	if (!m) {
		fault_memory(fault);
		goto fail;
	}
	m->ring = ring;
	m->meta = meta;
	m->data = data;
	m->queue = (struct release_queue){.slots = ring.geometry.slots, .bits = m->bits};
	return m;
fail:
	munmap(meta, meta_bytes);
	if (data)
		munmap(data, data_bytes);
	return NULL;
}

bool mapping_sound(const struct mapping *m)
{
	const struct release_queue *q = &m->queue;

	return q->released <= q->taken && q->taken <= m->published &&
	       m->published - q->released <= q->slots && m->held <= q->taken - q->released &&
	       q->slots == m->ring.geometry.slots;
}

bool mapping_idle(const struct mapping *m)
{
	return !m->undoable && m->held == 0;
}

void mapping_close(struct mapping *m, bool mapped)
{
	if (!m)
		return;
	if (mapped) {
		if (m->gone)
			m->gone(m->context, m->data, m->ring.geometry.control_at);
		munmap(m->meta, m->ring.geometry.meta_bytes);
		munmap(m->data, m->ring.geometry.data_bytes);
	}
	free(m);
}
