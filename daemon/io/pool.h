/*
 * A pool of threads that may hang. Each takes one work after the other and does it with plain
 * system calls. The data thread takes the works that are done; a descriptor announces them, so that
 * it can wait for other events, too.
 *
 * The works of each stream are a share, and shares take turns. There are POOL_ALL threads. A share
 * has at most as many as are left for others. So shares whose storage stops answering leave some to
 * others, also if several do so at once. Threads of a share that is known to be slow do not count:
 * other shares get as many as without it, and all slow shares together get POOL_SLOW more.
 *
 * Calls that wait for object stores are in shares of their own, which are away: all of them
 * together get POOL_AWAY threads more, shared out in the same way. So a store that does not answer
 * takes no threads from local reads.
 */
#ifndef TOKEND_POOL_H
#define TOKEND_POOL_H

#include "daemon/io/io.h"
#include "proto/limits.h"

#include <sys/queue.h>

enum {
	POOL_THREADS =
		32, /* of one share; at an object store's latency, 50 ms: 640 windows a second */
	POOL_ALL = 2 * POOL_THREADS,
	POOL_SLOW = POOL_THREADS / 4,
	POOL_AWAY = 8 * POOL_THREADS,
	POOL_MOST = LIMIT_READS, /* threads: one for each work in flight */
};

_Static_assert(POOL_SLOW >= 1 && POOL_ALL + POOL_SLOW + POOL_AWAY <= POOL_MOST,
	"every share may have a thread");

struct works {
	struct io_work *first, **end;
	unsigned count;
};

void works_clear(struct works *works);
void works_add(struct works *works, struct io_work *work);
struct io_work *works_take(struct works *works); /* NULL: none */
void works_move(struct works *to, struct works *from);
/* Removes @work. False: it is not among them. */
bool works_remove(struct works *works, struct io_work *work);

/* Initialise with pool_share_init(). Afterwards only the pool uses the members, under its lock. */
struct pool_share {
	struct works todo;
	TAILQ_ENTRY(pool_share) turn; /* while there is something to do */
	unsigned busy;		      /* threads at work for it */
	bool slow, away;	      /* never both */
};

void pool_share_init(struct pool_share *share, bool away);

struct pool;

/* NULL: @fault, as of io_ops.open(). */
struct pool *pool_open(struct fault *fault);
void pool_close(struct pool *pool); /* only after every work was taken */
/* An eventfd that becomes readable when pool_take() has news. Read it, then take. */
int pool_news_fd(const struct pool *pool);
/* Moves all works to their shares and starts as many as possible. */
void pool_give(struct pool *pool, struct works *works);
void pool_slow(struct pool *pool, struct pool_share *share, bool slow);
/* As io_ops.withdraw(). */
bool pool_withdraw(struct pool *pool, struct io_work *work);
/* Appends the works that are done to @done. True: there was a kick since the last call. */
bool pool_take(struct pool *pool, struct works *done);
void pool_kick(struct pool *pool); /* any thread */

#endif
