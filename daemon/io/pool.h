/*
 * A pool of threads that may hang. Each takes one work after the other and does it with plain
 * system calls. There are as many threads as works in flight, so that none waits for one that
 * hangs; how many of these are one stream's is the engine's rule. The data thread takes the works
 * that are done; a descriptor announces them, so that it can wait for other events, too.
 */
#ifndef TOKEND_POOL_H
#define TOKEND_POOL_H

#include "daemon/io/io.h"

STAILQ_HEAD(works, io_work);

struct io_work *works_take(struct works *works); /* NULL: none */

struct pool;

/* At most @most works are given and not taken. NULL: @fault, as of io_new(). */
struct pool *pool_open(unsigned most, struct fault *fault);
void pool_close(struct pool *pool); /* only after every work was taken */
/* An eventfd that becomes readable when pool_take() has news. Read it, then take. */
int pool_news_fd(const struct pool *pool);
/* Begins all works. */
void pool_give(struct pool *pool, struct works *works);
/* Appends the works that are done to @done. True: there was a kick since the last call. */
bool pool_take(struct pool *pool, struct works *done);
void pool_kick(struct pool *pool); /* any thread */

#endif
