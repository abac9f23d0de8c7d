/*
 * The handle's struct and its errors. A file of the library uses only files listed before it:
 *
 *   handle.c    the struct, its errors                 wait.c      the clock, waiting
 *   connect.c   the link to a daemon, with trust.c, process.c and places.c
 *   map.c       a mapped ring, with release_queue.h    slots.c     held batches, releasing
 *   message.c   the daemon's errors and warnings       warn.c      warnings while a call waits
 *   search.c    how long to look for a daemon          private.c   that of a config, with program.c
 *   attach.c    connect, attach, map the ring          recording.c the record of batches taken
 *   position.c  cursor, commit                         revive.c    attach again to a lost daemon
 *   query.c     queries and their replies              undo.c      reverting an edit
 *   seek.c      change of position                     services.c  checkpoints, stream's cursor
 *   mix.c       change of the mix                      operator.c  an operator's requests
 *   slow.c      warnings about slow batches            state.c     shape, names, annotations
 *   next.c      the next batch                         tokend.c    attach, detach, with options.c
 *
 * error.c (faults as public errors), edit.c (cursors as values) and widen.c use none of these.
 *
 * Positions. `origin` is the cursor of the last attach or seek. It covers every position that may
 * still be requested. `taken` is the position after the last batch taken, `committed` after the
 * last one committed. Cursors in between are derived from origin. Losing the daemon changes none of
 * them: the new ring begins at `taken`.
 */
#ifndef TOKEND_HANDLE_H
#define TOKEND_HANDLE_H

#include "client/lib/error.h"
#include "client/lib/tokend.h"
#include "proto/cursor.h"

struct mapping;
struct packet;
struct recording;
struct starter;

/*
 * How long a search lasts: connect_ms while no process listens, deadline_ms while a daemon is
 * starting or refuses for now.
 */
struct patience {
	uint32_t connect_ms, deadline_ms;
	int64_t since; /* ns: begin of a first attach, from which both count; 0: no first attach */
	bool never;    /* a refusal for now is an error at once */
};

/* The warnings of one wait: see warn.h. */
struct warnings {
	int64_t since; /* ns */
	uint32_t next; /* number of the next warning */
	bool said;     /* warn() was called */
};

/* A search for a daemon: connects, says hello and attaches, again and again, until a feed comes. */
struct search {
	int fd;	     /* connected, no feed yet; -1 */
	int error;   /* errno of the last try; 0: see refused */
	int refused; /* enum tokend_error of the refusal that ended the last try; 0: none did */
	bool active;
	uint32_t backoff_ms;
	struct patience patience;
	struct warnings warnings;
	int64_t since, retry, answer_by; /* ns */
	uint64_t position;		 /* in the attach that is under way */
	struct fault refusal;
};

/* The edit that tokend_obey() made at position @from, in effect from @acts_from on. Kept until
 * tokend_answer() has reported it. */
struct applied {
	bool any;
	uint64_t from, acts_from;
};

/*
 * The state before the last edit, with its ring and session, so that tokend_undo() needs neither
 * memory nor the daemon. Kept until the request is answered, the next look for a batch, or a seek.
 */
struct undo {
	struct cursor origin; /* datasets is 0 if nothing is kept */
	uint64_t taken, committed, number, batches;
	struct mapping *mapping; /* NULL: the edit has not been carried out yet */
	int fd;			 /* of its session; -1: no daemon */
	uint32_t late;
	uint64_t saving;
};

/* From position `start` on, batches end every `step` positions. A change of world or micro-batch,
 * or a skip, begins a new grid. */
struct grid {
	uint64_t start, step;
	uint64_t from; /* end of the grid before; less than start after a skip */
};

/* The callbacks of struct tokend_options; each may be NULL. */
struct callbacks {
	int (*idle)(void *context);
	int (*absent)(void *context);
	void (*notice)(void *context, const char *line);
	void *context;
	int (*warn)(void *context, const char *line);
	void *warn_context;
};

struct tokend {
	/* used by next() and release() while batches are ready */
	const volatile uint64_t *alive; /* a page that fork() wipes */
	struct mapping *mapping;	/* the current one, never NULL, linked to older ones */
	uint64_t taken, end;
	uint64_t step; /* world × micro_batch */
	uint64_t rank, world;
	uint64_t number;
	uint32_t micro_batch;
	int fd;			  /* of the session; -1: no daemon */
	struct recording *record; /* or NULL */

	struct fault fault;	     /* the last failure */
	char line[ERROR_LINE_BYTES]; /* its text, for tokend_why() */
	int failed;		     /* enum tokend_error, repeated until the next seek; 0: none */
	struct fault failure;	     /* its fault */

	uint64_t contents; /* of the stream's shards, from the daemon */
	struct cursor origin;
	struct cursor moved; /* cache: origin, moved to the position requested last */
	bool moved_ok, committing;
	uint64_t serial; /* of the last query */
	uint32_t late;	 /* replies still to come to interrupted queries, from a daemon whose
			    replies carry no serials */
	uint64_t saving; /* serial of an interrupted checkpoint whose reply is still to come, as
			    the daemon stores one at a time; 0: none */
	uint64_t committed;
	struct grid *grid; /* ascending; the last is the current one */
	uint32_t grids;
	struct applied applied;
	struct undo undo;

	char *socket, *stream, *run;
	char *config;		 /* whose private daemon listens at socket; NULL: not private */
	struct starter *starter; /* of that daemon; or NULL */
	uint32_t peer, slots, deadline_ms, connect_ms;
	int64_t max_wait_ns; /* of one wait for a batch */
	bool helper, strict;
	bool anywhere; /* nobody named the socket: each try before the first attach looks again */
	int64_t waits_since;  /* ns: when the last wait for a slot began */
	uint64_t waits_for;   /* 1 + that slot; 0: none in this ring */
	int64_t listened;     /* ns: when the socket was last read while batches were ready */
	int64_t slowed;	      /* ns: when a slow batch came that was warned of; 0: never */
	struct search search; /* for a lost daemon */
	uint64_t mappings, reattached, lost_wakes, waited_ns, batches;
	uint8_t *bytes; /* [LIMIT_CURSOR_BYTES], for an attach */
	uint8_t *saved; /* [LIMIT_CURSOR_BYTES], for a checkpoint, which may have to attach first */
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

/* Returns 0, or EFORKED in a forked child. */
int handle_usable(const struct tokend *t);
/*
 * Each function below stores the handle's last failure and returns its enum tokend_error.
 *
 * handle_fail(): @field is the member that is wrong ("": none), @format says what is wrong.
 */
__attribute__((format(printf, 4, 5))) int handle_fail(
	struct tokend *t, enum tokend_error error, const char *field, const char *format, ...);
/* The same for a system call that failed with errno @number. */
__attribute__((format(printf, 5, 6))) int handle_fail_errno(struct tokend *t,
	enum tokend_error error, int number, const char *field, const char *format, ...);
/* Stores a copy of @fault. */
int handle_fault(struct tokend *t, const struct fault *fault);
/* Out of memory. */
int handle_memory(struct tokend *t);
/* An invariant does not hold: a bug in the library. A library must not abort its host, so the
 * failure is EPROTOCOL, repeated until the next seek. */
int handle_broken(struct tokend *t, const char *invariant);
/* @name is not a valid name of a stream, run or tag (@field). */
int handle_fail_name(struct tokend *t, const char *field, const char *name);
/* Repeats the last failure, which is @error, until the next seek. */
int handle_latch(struct tokend *t, int error);
/* The enum tokend_error of the last failure, for callees that return a pointer or a bool. */
int handle_error(const struct tokend *t);
/* Stores the latched failure again. */
int handle_failed(struct tokend *t);
/* Closes the session: the daemon was lost, or the caller leaves. */
void handle_lose(struct tokend *t);

#endif
