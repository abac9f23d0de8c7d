/*
 * A handle from the inside: what it holds, how it fails, and whether it may be used. The files of
 * the library use each other in this order only, from the last to the first:
 *
 *   handle.c    the struct, its errors                 wait.c      the clock, waiting
 *   connect.c   the link to a daemon: trust.c, process.c, default_socket.c
 *   map.c       a mapped ring, with release_queue.h and pin.c (a GPU's driver)
 *   slots.c     batches that are held                  gpu_copy.c  batches that go to a GPU
 *   message.c   what a daemon says on its own account
 *   search.c    how long a search for a daemon goes on
 *   attach.c    a search that ends with a ring         recording.c a record of what was taken
 *   position.c  where we are in the order              revive.c    a daemon that was lost
 *   query.c     queries and their replies              undo.c      an edit that is taken back
 *   seek.c      to another position                    services.c  checkpoints, the stream's cursor
 *   mix.c       to another mix                         operator.c  an operator's requests
 *   next.c      batches out                            state.c     what a handle says of itself
 *   tokend.c    attach and detach, with options.c
 *
 * error.c (faults as public errors), edit.c (cursors as values) and widen.c stand by themselves.
 *
 * Positions. `origin` is the cursor of the last attach or seek, and covers all that may still be
 * asked for. `taken` is the position after the last batch handed out, `committed` after the last
 * one committed; cursors in between are made from origin. A lost daemon changes none of this: the
 * new ring begins at `taken`.
 */
#ifndef TOKEND_HANDLE_H
#define TOKEND_HANDLE_H

#include "client/lib/error.h"
#include "client/lib/tokend.h"
#include "proto/cursor.h"

struct mapping;
struct packet;
struct pin;
struct recording;

/*
 * How long a search goes on. Where nobody listens: connect_ms. Where a daemon is there that starts,
 * or refuses for now: deadline_ms, unless @never.
 */
struct patience {
	uint32_t connect_ms, deadline_ms;
	bool never; /* a passing refusal is an error at once */
};

/* A search for a daemon that attaches us: it connects, says hello and attaches until a feed comes.
 */
struct search {
	int fd;	     /* connected, no feed yet; -1 */
	int error;   /* errno of the last try; 0: see refused */
	int refused; /* a passing refusal that ended the last try, an enum tokend_error; 0: none */
	bool active;
	uint32_t backoff_ms, warnings;
	struct patience patience;
	int64_t since, retry, answer_by; /* ns */
	struct fault refusal;
};

/* The edit that tokend_obey() carried out and tokend_answer() has not yet reported: at which
 * position, from where it acts. */
struct applied {
	bool any;
	uint64_t from, acts_from;
};

/*
 * Where we were before the edit that was applied last, with the ring and its session: taking the
 * edit back needs neither memory nor the daemon. Kept until the request is answered, the next look
 * for a batch, or a seek.
 */
struct undo {
	struct cursor origin; /* datasets 0: nothing is kept */
	uint64_t taken, committed, number, batches;
	struct mapping *mapping; /* NULL: the edit is not carried out yet */
	int fd;			 /* of its session; -1: lost */
	uint32_t late;
	uint64_t saving;
};

/* Batches taken since position `start` end `step` positions apart. Another world or micro-batch, or
 * a skip, begins a new grid. */
struct grid {
	uint64_t start, step;
	uint64_t from; /* where the one before it ended: < start after a skip */
};

/* The callbacks of struct tokend_options, each NULL if it is not wanted. */
struct callbacks {
	int (*idle)(void *context);
	int (*absent)(void *context);
	void (*notice)(void *context, const char *line);
	void *context;
	int (*warn)(void *context, const char *line);
	void *warn_context;
};

struct tokend {
	/* what a ready next() and release() touch */
	const volatile uint64_t *alive; /* a page that fork() wipes */
	struct mapping *mapping;	/* the current one, never NULL; then older ones. Published
					   slots are served even when the daemon is gone */
	uint64_t taken, end;
	uint64_t step; /* world × micro_batch */
	uint64_t rank, world;
	uint64_t number;
	uint32_t micro_batch;
	uint32_t copying;	  /* slots on their way to a GPU */
	int fd;			  /* of the session; -1: lost */
	struct recording *record; /* or NULL */

	struct fault fault;	     /* the last failure */
	char line[ERROR_LINE_BYTES]; /* of it, for tokend_why() */
	int failed;	      /* an enum tokend_error that holds until the next seek; 0: none */
	struct fault failure; /* of that */

	struct cursor origin;
	struct cursor moved; /* origin moved to where it was last asked for */
	bool moved_ok, committing;
	uint64_t serial; /* of the last query */
	uint32_t late;	 /* replies to come to queries that were interrupted, from a daemon whose
			    replies carry no serial */
	uint64_t saving; /* serial of a checkpoint that was interrupted, whose reply is to come: the
			    daemon saves one at a time; 0: none */
	uint64_t committed;
	struct grid *grid; /* ascending; the last is the current one */
	uint32_t grids;
	struct applied applied;
	struct undo undo;

	char *socket, *stream, *run;
	uint32_t peer, slots, deadline_ms, connect_ms;
	bool helper, strict;
	int64_t listened;     /* when the socket was read last, although batches were there */
	struct search search; /* for a lost daemon */
	struct pin *pin;      /* a GPU's driver; NULL: none was asked for */
	bool pins;	      /* each ring is registered with it */
	uint64_t mappings, reattached, lost_wakes, waited_ns, batches;
	uint8_t *bytes; /* [LIMIT_CURSOR_BYTES] of an attach */
	uint8_t *saved; /* [LIMIT_CURSOR_BYTES] of a checkpoint, which may have to attach first */
	uint8_t *out;	/* [LIMIT_PACKET_BYTES] */
	struct packet *packet;

	struct callbacks call;
};

static inline bool handle_forked(const struct tokend *t)
{
	return *t->alive == 0;
}

/* The position of tokend_cursor(). */
static inline uint64_t handle_position(const struct tokend *t)
{
	return t->committing ? t->committed : t->taken;
}

/* 0, or EFORKED in a child. */
int handle_usable(const struct tokend *t);
/*
 * The functions below make something the handle's last failure, and return its enum tokend_error.
 *
 * @error, with the member that it is about ("" if there is none) and what is wrong with it.
 */
__attribute__((format(printf, 4, 5))) int handle_fail(
	struct tokend *t, enum tokend_error error, const char *field, const char *format, ...);
/* The same for a system call that failed with errno @number. */
__attribute__((format(printf, 5, 6))) int handle_fail_errno(struct tokend *t,
	enum tokend_error error, int number, const char *field, const char *format, ...);
/* A fault. */
int handle_fault(struct tokend *t, const struct fault *fault);
/* Out of memory. */
int handle_memory(struct tokend *t);
/* An invariant does not hold. That is our mistake, but a library must not abort its host: the
 * failure is EPROTOCOL, and is latched. */
int handle_broken(struct tokend *t, const char *invariant);
/* A name that is none; @field is what it names. */
int handle_fail_name(struct tokend *t, const char *field, const char *name);
/* The last failure, which is @error, holds until the next seek. */
int handle_latch(struct tokend *t, int error);
/* The enum tokend_error of the last failure, where a callee could not return it. */
int handle_error(const struct tokend *t);
/* The latched failure again. */
int handle_failed(struct tokend *t);
/* The daemon is lost, or the session is left. */
void handle_lose(struct tokend *t);

#endif
