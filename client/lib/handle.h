/*
 * A handle from the inside, shared by the files of the library and by the Python extension; not
 * installed.
 *
 *   tokend.c   its beginning and end; checkpoints      request.c  an operator's requests
 *   next.c     batches out, slots back
 *   attach.c   looking for the daemon, attaching, waiting, asking it something
 *   patience.c how long a search goes on, and what it says meanwhile
 *   process.c  the number that tells this process from others
 *   trust.c    whether who answers at the socket may be our daemon
 *   seek.c     the cursor: where we are, and every way to be elsewhere
 *   record.c   a record of what was taken
 *   connect.c  packets          map.c  a mapped ring          giveback.h  slots that come back in
 * any order copy.c     batches that go to a GPU      pin.c  what that asks of its driver
 *
 * Positions. `origin` is the cursor of the last attach or seek, and covers all that may still be
 * asked for. `taken` is the position behind the last batch handed out, `committed` behind the last
 * one committed; cursors in between are made from origin. A lost daemon changes none of this: the
 * new ring begins at `taken`.
 */
#ifndef TOKEND_HANDLE_H
#define TOKEND_HANDLE_H

#include "client/lib/connect.h"
#include "client/lib/map.h"
#include "client/lib/tokend.h"
#include "proto/cursor.h"

/* What an attach asks for. */
struct target {
	const void *cursor; /* or NULL */
	size_t cursor_bytes;
	const char *tag; /* or NULL */
	uint64_t position;
	bool at_position; /* none of the three: the beginning */
	uint64_t rank, world;
	uint32_t micro_batch;
};

/*
 * How long a search goes on. Where nobody listens: connect_ms. Where somebody does who is starting,
 * or refuses for now: deadline_ms, unless @never.
 */
struct patience {
	uint32_t connect_ms, deadline_ms;
	bool never; /* a passing refusal is an error at once */
};

/* A search for a daemon that attaches us: goes through connect, hello and attach until a feed
 * comes. */
struct search {
	int fd;	     /* connected, no feed yet; -1 */
	int error;   /* errno of the last try; 0: see refused */
	int refused; /* a passing refusal that ended the last try, an enum tokend_error; 0: none */
	bool active;
	uint32_t backoff_ms, warnings;
	struct patience patience;
	int64_t since, retry, answer_by; /* ns */
	char why[1200];			 /* of that refusal */
};

/* What tokend_obey() carried out and tokend_answer() has not yet told: at which place, from where
 * it acts. */
struct obeyed {
	bool any;
	uint64_t from, acts_from;
};

/*
 * Where we were before the edit that was obeyed last, with the ring and its session: taking the
 * edit back needs neither memory nor the daemon. Kept until the request is answered, the next batch
 * is looked for, or the cursor moves.
 */
struct kept {
	struct cursor origin; /* datasets 0: nothing is kept */
	uint64_t taken, committed, number, batches;
	struct generation *ring; /* NULL: the edit is not carried out yet */
	int fd;			 /* of its session; -1: lost */
	uint32_t late;
};

/* Batches taken since `start` lie `step` positions apart. Another world or micro-batch begins a new
 * one. */
struct leg {
	uint64_t start, step;
	uint64_t from; /* where the one before it ended: < start behind a skip */
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
	struct generation
		*now; /* never NULL; its published slots are served even when the daemon is gone */
	uint64_t taken, end;
	uint64_t step; /* world × micro_batch */
	uint64_t rank, world;
	uint64_t number;
	uint32_t micro_batch;
	uint32_t copying;	  /* slots on their way to a GPU */
	int fd;			  /* of the session; -1: lost */
	uint64_t session;	  /* its id at the daemon, or NO_SESSION */
	struct recording *record; /* or NULL */

	int failed; /* an error that holds until the next seek */
	char why[1400], failed_why[1400];

	struct cursor origin;
	struct cursor spoken; /* origin moved to where it was last asked for */
	bool spoken_ok, committing;
	uint32_t late; /* answers to come to questions that were interrupted */
	uint64_t committed;
	struct leg *leg; /* ascending; the last is the current one */
	uint32_t legs;
	struct obeyed obeyed;
	struct kept kept;

	char *socket, *stream, *run;
	uint32_t peer, slots, deadline_ms, connect_ms;
	bool helper, strict;
	int64_t heard;	      /* when the socket was looked at last, although batches were there */
	struct search search; /* for a lost daemon */
	struct pin *pin;      /* a GPU's driver; NULL: none was asked for */
	bool pins;	      /* each ring is registered with it */
	uint64_t generations, reattached, lost_wakes, waited_ns, batches;
	uint8_t *bytes; /* [LIMIT_CURSOR_BYTES] of an attach */
	uint8_t *saved; /* [LIMIT_CURSOR_BYTES] of a checkpoint, which may have to attach first */
	uint8_t *out;	/* [LIMIT_PACKET_BYTES] */
	struct packet *packet;

	struct callbacks call;
};

/* ---- tokend.c ---- */

static inline bool handle_forked(const struct tokend *t)
{
	return *t->alive == 0;
}

/* Puts one line into why and returns @code. */
__attribute__((format(printf, 3, 4))) int handle_fail(
	struct tokend *t, int code, const char *format, ...);
/* The same for an error that holds until the next seek; why is set already. */
int handle_latch(struct tokend *t, int code);
/* That error again. */
int handle_failed(struct tokend *t);
int handle_check(struct tokend *t); /* EFORKED in a child */
/* Makes @g the current ring, reached over @fd. The former one stays while batches of it are held.
 */
void handle_adopt(struct tokend *t, struct generation *g, int fd);

/* ---- next.c ---- */

/* A batch's handle: its slot, and above it the generation. */
enum { HANDLE_BITS = 48 };

static inline uint64_t handle_slot(uint64_t handle)
{
	return handle & ((UINT64_C(1) << HANDLE_BITS) - 1);
}

/* The generation that @handle names, through the pointer that holds it; NULL there if there is
 * none. */
struct generation **handle_generation(struct tokend *t, uint64_t handle);
/* Slot @s of the generation that @at points to is back. False if it was not out. */
bool handle_return(struct tokend *t, struct generation **at, uint64_t s);

/* ---- copy.c ---- */

/* Gives back the slots whose copies are over, if they were handed out. */
void handle_collect(struct tokend *t);
/* Is slot @s of @g on its way to a GPU? */
static inline bool handle_copies(const struct generation *g, uint64_t s)
{
	return g->copies && copies_has(g->copies, s);
}
/* Registers @g, if rings are to be. False, and why: it stays as it was. */
bool handle_pin(struct tokend *t, struct generation *g);

/* ---- attach.c ---- */

int64_t handle_clock(void);
/* 1: @fd is ready for @events (-1: none), 0: it is @until, TOKEND_EAGAIN: idle() wants out. */
int handle_doze(struct tokend *t, int fd, short events, int64_t until);
/* Looks for a daemon and attaches. 1, and *@g, *@cursor, *@fd are the caller's; or an error. */
int handle_find(struct tokend *t, const struct target *target, const struct patience *patience,
	struct generation **g, struct cursor *cursor, int *fd);
/* The daemon is lost: looks on for one, and attaches where we are. 1, 0 if !wait and not yet, or an
 * error. */
int handle_revive(struct tokend *t, bool wait);
void handle_lose(struct tokend *t);
void handle_stop_search(struct search *s);
/* Takes what the daemon said on its own account. 0, or an error that was latched. */
int handle_listen(struct tokend *t);
/* The session is about to be left: passes on what it was warned of, and drops everything else. */
void handle_hear_warnings(struct tokend *t);
/* Sends @question, waits for @answer, which is then in t->packet->wire. */
int handle_ask(struct tokend *t, const struct wire *question, enum wire_op answer);

/* ---- patience.c ---- */

/* The try that has just failed with errno @error, or with the passing refusal @refused in t->why.
 */
void search_failed(struct tokend *t, struct search *s, int error, int refused);
/* When the search is over if nothing changes, in ns. */
int64_t search_give_up(const struct search *s);
/* When search_warn() has something to say again, in ns. */
int64_t search_warn_at(const struct search *s);
/* Says what is waited for, if it is time. 0, or TOKEND_EAGAIN. */
int search_warn(struct tokend *t, struct search *s);
/* The error at the end of a search that found nothing. */
int search_gave_up(struct tokend *t, const struct search *s);

/* ---- seek.c ---- */

/* The cursor at @position, or NULL and why. Valid until the next call. */
const struct cursor *handle_speak(struct tokend *t, uint64_t position);
/* The place that tokend_cursor() speaks of. */
static inline uint64_t handle_position(const struct tokend *t)
{
	return t->committing ? t->committed : t->taken;
}
/* Begins at a cursor, which becomes ours, on the ring that was adopted for it. */
void handle_start(struct tokend *t, const struct cursor *origin, const struct target *target);
/* tokend_set_mix() from @at on, or TOKEND_SOON. *@acts_from as there. */
int handle_mix(struct tokend *t, const char *const *names, const double *weights, uint32_t n,
	uint64_t at, uint64_t *acts_from);
/* Keeps where we are, and its ring, for handle_undo() of the edit that follows. */
int handle_remember(struct tokend *t);
/* What was remembered is not needed any more. */
void handle_forget(struct tokend *t);
/* Goes @samples further than what is taken. *@to: the position it comes to. */
int handle_skip(struct tokend *t, uint64_t samples, uint64_t *to);
/* EARGUMENT unless rank, world and micro_batch are ones. */
int handle_check_target(struct tokend *t, const struct target *target);

/* ---- record.c ---- */

/* Records @rows that are about to be handed out, behind which the session is at @next. There is a
 * record. An error: nothing of it is in the file. */
int handle_record(struct tokend *t, const struct tokend_row *row, uint32_t rows, const void *tokens,
	size_t row_bytes, uint64_t next);
/* After a seek, an undo, or a skip by request: the record, if there is one, says so, now or with
 * the next row. What fails here is tried again with that. */
int handle_record_place(struct tokend *t);
int handle_record_skip(struct tokend *t);
/* Before all up to @next is committed: what was taken of it is recorded. */
int handle_record_commit(struct tokend *t, uint64_t next);
/* The session goes elsewhere, and what is not committed will never be. */
void handle_record_drop(struct tokend *t);
/* Before a seek: does it go to the beginning of another pass? */
void handle_record_pass(struct tokend *t, bool again);
/* @ours: not in a child. */
void handle_end_record(struct tokend *t, bool ours);

#endif
