/*
 * The threads that may hang: each takes one work after the other and does it with plain system calls. What is
 * done lies ready for the data thread, which is told through a descriptor, so it can wait for this and for
 * other things at once.
 */
#ifndef TOKEND_POOL_H
#define TOKEND_POOL_H

#include "disk_ops.h"

enum {
	/* A file system with the latency of an object store, 50 ms, then still gives 640 windows a second. */
	POOL_THREADS = 32,
};

struct works {
	struct disk_work *first, **end;
	unsigned count;
};

void works_clear(struct works *works);
void works_add(struct works *works, struct disk_work *work);
struct disk_work *works_take(struct works *works); /* NULL: none */
void works_move(struct works *to, struct works *from);

/* Closes what is to be closed before, which may hang. */
void opening_make_room(struct disk_opening *opening);

struct pool;

struct pool *pool_open(const char **what, int *error);
void pool_close(struct pool *pool); /* every work must have been taken */
/* An eventfd, written to when pool_take() has something new. Whoever waits on it reads it, then takes. */
int pool_news_fd(const struct pool *pool);
void pool_give(struct pool *pool, struct works *works);
/* Appends what is done to @done. Returns whether there was a kick since the last call. */
bool pool_take(struct pool *pool, struct works *done);
void pool_kick(struct pool *pool); /* any thread */

#endif
