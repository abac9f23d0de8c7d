/*
 * Mapping a ring that another process handed over. Nothing is believed before it is checked: a
 * segment that could shrink would turn a load into SIGBUS, and sizes that do not fit would point
 * outside.
 *
 * Neither segment is inherited over fork(): a child that kept them would keep the memory of a dead
 * trainer's ring.
 */
#include "client/lib/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct segment {
	const char *name;
	int fd;
	uint64_t bytes;
	int protection;
};

static void *map_segment(const struct segment *s, bool *no_memory, char *why, size_t why_bytes)
{
	struct stat st;
	int seals = fcntl(s->fd, F_GET_SEALS);

	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
		snprintf(why, why_bytes, "the %s segment is not sealed against resizing", s->name);
		return NULL;
	}
	if (fstat(s->fd, &st) != 0 || (uint64_t)st.st_size != s->bytes || s->bytes == 0) {
		snprintf(why, why_bytes, "the %s segment has %lld bytes, %llu were announced",
			s->name, (long long)st.st_size, (unsigned long long)s->bytes);
		return NULL;
	}

	void *at = mmap(NULL, s->bytes, s->protection, MAP_SHARED, s->fd, 0);

	if (at == MAP_FAILED || madvise(at, s->bytes, MADV_DONTFORK) != 0) {
		snprintf(why, why_bytes, "the %s segment of %llu bytes cannot be mapped: %s",
			s->name, (unsigned long long)s->bytes, strerror(errno));
		*no_memory = errno == ENOMEM;
		if (at != MAP_FAILED)
			munmap(at, s->bytes);
		return NULL;
	}
	return at;
}

struct generation *generation_map(int meta_fd, uint64_t meta_bytes, int data_fd,
	uint64_t data_bytes, bool *no_memory, char *why, size_t why_bytes)
{
	const struct segment meta_segment = {"meta", meta_fd, meta_bytes, PROT_READ};
	const struct segment data_segment = {"data", data_fd, data_bytes, PROT_READ | PROT_WRITE};
	struct generation *g = NULL;
	struct ring ring;
	void *data = NULL;

	*no_memory = false;
	void *meta = map_segment(&meta_segment, no_memory, why, why_bytes);

	if (!meta)
		return NULL;
	data = map_segment(&data_segment, no_memory, why, why_bytes);
	if (!data)
		goto fail;
	if (!ring_open(&ring, meta, meta_bytes, data, data_bytes)) {
		snprintf(why, why_bytes, "the segments are not a ring of version %d", RING_VERSION);
		goto fail;
	}
	g = calloc(1, sizeof(*g) + giveback_words(ring.geometry.slots) * sizeof(g->bits[0]));
	if (!g) {
		snprintf(why, why_bytes, "out of memory");
		*no_memory = true;
		goto fail;
	}
	g->ring = ring;
	g->meta = meta;
	g->data = data;
	g->out = (struct giveback){.slots = ring.geometry.slots, .bits = g->bits};
	return g;
fail:
	munmap(meta, meta_bytes);
	if (data)
		munmap(data, data_bytes);
	return NULL;
}

bool generation_idle(const struct generation *g)
{
	return !g->kept && g->held == 0 && (!g->copies || copies_none(g->copies));
}

void generation_free(struct generation *g, bool mapped)
{
	if (!g)
		return;
	if (!mapped) {
		copies_forget(g->copies);
	} else {
		munmap(g->meta, g->ring.geometry.meta_bytes);
		if (copies_free(g->copies))
			munmap(g->data, g->ring.geometry.data_bytes);
	}
	free(g);
}
