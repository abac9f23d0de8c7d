/*
 * The library's own header. Files may call each other:
 *
 *   handle.c    errors, attach and detach, shape      link.c      packets, sockets, trust (link.h)
 *   wait.c      waiting, and the warnings of that     start.c     the private daemon of a config
 *   search.c    attach, also to a daemon that came back
 *   mapping.c   mapped rings, held batches            next.c      the next batch
 *   query.c     queries: a checkpoint, the stream     position.c  cursor, commit, seek
 *   edit.c      edits of cursors, their reversal      operator.c  an operator's requests
 *   widen.c     conversion of tokens                  recording.c the record of batches taken
 *
 * Positions. `origin` is the cursor of the last attach or seek. It covers every position that may
 * still be requested. `taken` is the position after the last batch taken, `committed` after the
 * last one committed. Cursors in between are derived from origin. Losing the daemon changes none of
 * them: the new ring begins at `taken`.
 */
#ifndef TOKEND_HANDLE_H
#define TOKEND_HANDLE_H

#include "client/lib/link.h"
#include "client/lib/release_queue.h"
#include "client/lib/tokend.h"
#include "proto/cursor.h"
#include "proto/ring.h"

#include <sys/types.h>

struct recording;

enum { ERROR_LINE_BYTES = FAULT_FIELD_BYTES + LIMIT_TEXT_BYTES + 4 };

/* ---- the structs ---- */

/* The warnings of one wait, after 2, 10 and 60 s. */
struct waiting {
	int64_t since; /* ns */
	uint32_t next; /* number of the next warning */
	bool said;     /* warn() was called */
};

/*
 * A search for a daemon: connects, says hello and attaches, again and again, until a feed comes. It
 * lasts deadline_ms while a daemon is starting or refuses for now.
 */
struct search {
	int fd;	     /* connected, no feed yet; -1 */
	int error;   /* errno of the last try; 0: see refused */
	int refused; /* enum tokend_error of the refusal that ended the last try; 0: none did */
	bool active;
	bool waits;	     /* also while refused for now */
	uint32_t connect_ms; /* how long, while no process listens */
	uint32_t backoff_ms;
	struct waiting waiting;	  /* since the search began */
	int64_t retry, answer_by; /* ns */
	uint64_t position;	  /* in the attach that is under way */
	struct fault refusal;
};

/* A process of `tokctl start`. */
struct starter {
	pid_t pid;  /* 0: none */
	int ended;  /* a pidfd: forks of this process may keep the pipe open */
	int output; /* of stdout and stderr */
};

/* The position and the rank to attach at. */
struct target {
	const void *cursor; /* or NULL */
	size_t cursor_bytes;
	const char *tag; /* or NULL */
	uint64_t position;
	bool at_position; /* with neither cursor, tag nor position: the beginning */
	uint64_t rank, world;
	uint32_t micro_batch;
};

/* This process's mapping of a ring. */
struct mapping {
	struct ring ring;
	struct release_queue queue;
	uint64_t published; /* as last seen */
	uint64_t answered;  /* the last wake_at for which a wake-up byte was sent */
	uint64_t held;	    /* batches taken and not released */
	uint64_t id;
	uint64_t session;	    /* the daemon's number of it */
	uint64_t contents;	    /* of the stream's shards, from the daemon */
	struct wire_shards *shards; /* [datasets] of the feed's cursor */
	uint32_t datasets;
	bool undoable; /* kept by struct undo, although nothing of it is held */
	void *meta, *data;
	void (*gone)(void *context, void *base, uint64_t bytes); /* of tokend_memory(); or NULL */
	void *context;
	struct mapping *older;
	uint64_t bits[]; /* of queue */
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
	uint64_t saving;	 /* of that */
};

/* Positions that an edit left out after a batch that was not committed. */
struct skip {
	uint64_t from, to;
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

	struct cursor origin;
	bool committing;
	uint64_t serial; /* of the last query */
	uint64_t saving; /* of a checkpoint whose reply is still to come; 0: none */
	uint64_t committed;
	struct skip *skip; /* ascending, after `committed` */
	uint32_t skips;
	struct applied applied;
	struct undo undo;

	char socket[WIRE_SOCKET_BYTES], stream[LIMIT_NAME_BYTES + 1], run[LIMIT_NAME_BYTES + 1];
	char *config;		/* whose private daemon listens at socket; NULL: not private */
	struct starter starter; /* that starts that daemon */
	struct tokend_options options; /* as given. Its pointers to data are no longer valid */
	int64_t max_wait_ns;	       /* of one wait for a batch */
	int64_t waits_since;	       /* ns: when the last wait for a slot began */
	uint64_t waits_for;	       /* 1 + that slot; 0: none in this ring */
	int64_t listened;     /* ns: when the socket was last read while batches were ready */
	int64_t slowed;	      /* ns: when a slow batch came that was warned of; 0: never */
	struct search search; /* for a lost daemon */
	uint64_t mappings, reattached, lost_wakes, waited_ns, batches;
	struct packet packet;
	uint8_t bytes[LIMIT_CURSOR_BYTES]; /* for an attach */
	uint8_t saved[LIMIT_CURSOR_BYTES]; /* for a checkpoint, which may have to attach first */
	uint8_t out[LIMIT_PACKET_BYTES];
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

static inline int handle_usable(const struct tokend *t)
{
	return handle_forked(t) ? TOKEND_EFORKED : 0;
}

/*
 * Each function below stores the handle's last failure and returns its enum tokend_error.
 *
 * handle_fail(): @field is the member that is wrong ("": none), @format says what is wrong.
 */
__attribute__((format(printf, 4, 5))) int handle_fail(
	struct tokend *t, enum tokend_error error, const char *field, const char *format, ...);
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
/* Stores the latched failure again. */
int handle_failed(struct tokend *t);
/* Reports a line to the trainer: by notice(), otherwise by warn(). */
void handle_tell(const struct tokend *t, const char *line);
/* Closes the session: the daemon was lost, or the caller leaves. */
void handle_lose(struct tokend *t);
/* Converts a fault's code to a public error. */
enum tokend_error error_of(enum fault_code code);
/* Writes "field: text" to @line, unless it is NULL. Returns error_of(fault->code). */
enum tokend_error error_line(const struct fault *fault, char *line, size_t line_bytes);

/* ---- wait.c ---- */

#define WAIT_MS INT64_C(1000000) /* ns */
#define FOREVER (INT64_MAX / 2)	 /* ns, for a wait without a limit */

enum { WAIT_SLICE_MS = 1000 }; /* longest single wait, so a lost wake-up costs at most this */

/* CLOCK_MONOTONIC in ns. */
int64_t wait_now(void);

static inline int64_t wait_earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/*
 * Waits until @fd is ready for @events, or until @until (ns, see wait_now()). @fd -1: only for the
 * time. Returns 1 if it is ready, 0 after @until, TOKEND_EAGAIN if idle() ended the wait.
 */
int wait_ready(struct tokend *t, int fd, short events, int64_t until);

void waiting_begin(struct waiting *w, int64_t since);
/* The time of the next warning, in ns. */
int64_t waiting_at(const struct waiting *w);
/* If a warning is due, calls warn() with "SUBJECT: waiting N s for TEXT", and for how long it waits
 * yet, until @end (ns). Each is due once. Returns 0, or EAGAIN if that ends the call. */
__attribute__((format(printf, 5, 6))) int waiting_say(struct tokend *t, struct waiting *w,
	int64_t end, const char *subject, const char *format, ...);
/* The wait is over: if warn() was called, says so. Returns 0 or EAGAIN. */
int waiting_over(struct tokend *t, struct waiting *w);

/* Call at the begin of a wait for a batch, with *w 0, and again when a lost daemon is back. Soon
 * after another slow batch, the first warning comes later. */
void slow_begin(const struct tokend *t, struct waiting *w);
/* The time at which the wait for a batch is too long, in ns. */
int64_t slow_end(const struct tokend *t, const struct waiting *w);
/* Warns if it is due, with what the daemon waits for. Returns 0 or EAGAIN; EWAIT after slow_end().
 */
int slow_look(struct tokend *t, struct waiting *w);
/* The batch has come. Returns 0 or EAGAIN. */
int slow_over(struct tokend *t, struct waiting *w);

/* ---- start.c ---- */

/* Uses the private daemon of @config at the socket that t->socket is. Returns 0 or EMEMORY. */
int start_join(struct tokend *t, const char *config);
/* Runs `tokctl start`, for up to @ms. Sets t->socket, and t->config if the daemon is a private one.
 * Returns 0, or ESTART, ECONNECT, EMEMORY, EAGAIN. */
int start_find(struct tokend *t, const char *config, uint32_t ms);
/* Has a private daemon started at t->socket, without waiting for it. Returns 0 or an error. */
int start_begin(struct tokend *t);
/* tokctl, whose starter->ended is readable, has ended. Returns 0, or ESTART if the daemon has
 * failed. */
int start_finish(struct tokend *t);
/* Ends the process of tokctl, if there is one. The daemon lives on. */
void start_end(struct tokend *t);

/* ---- search.c ---- */

/* Checks rank, world and micro_batch. Returns 0 or EARGUMENT. */
int attach_check(struct tokend *t, const struct target *target);
/* A complete search: for @connect_ms while no process listens, and if @waits also while refused for
 * now. Returns 1, and the caller owns *@m, *@cursor and *@fd; or an error. */
int attach_find(struct tokend *t, const struct target *target, uint32_t connect_ms, bool waits,
	struct mapping **m, struct cursor *cursor, int *fd);
/* Ends a search that may be under way. */
void search_end(struct search *s);
/* Makes @m the current mapping and @fd its session; the handle owns both. The former mapping stays
 * while batches of it are held. */
void attach_adopt(struct tokend *t, struct mapping *m, int fd);
/* Whether the feed in @m, at @cursor, is of the shards, documents and masks of the current one.
 * Returns 1 or EREFUSED. */
int attach_same(struct tokend *t, const struct mapping *m, const struct cursor *cursor);
/* After the daemon was lost: continues the search for one, and attaches at the position taken.
 * Returns 1; 0 if !@wait and none was found yet; or an error, latched unless the next call tries
 * again: EAGAIN, ESTART, EMEMORY. */
int revive(struct tokend *t, bool wait);

/* ---- mapping.c ---- */

/* True if the counters are consistent: released ≤ taken ≤ published ≤ released + slots. */
bool mapping_sound(const struct mapping *m);
/* True if nothing needs it: no batch is held, and no undo leads back to it. */
bool mapping_idle(const struct mapping *m);
/*
 * Maps a ring's two memfds, which the caller still owns. On failure returns NULL and sets @fault:
 * FAULT_PROTOCOL if they are not a sealed ring of these sizes, otherwise the errno of the call that
 * failed.
 */
struct mapping *mapping_open(
	int meta_fd, uint64_t meta_bytes, int data_fd, uint64_t data_bytes, struct fault *fault);
/* Calls `gone`, unmaps and frees. @mapped: false in a forked child, which does not inherit the
 * memory. */
void mapping_close(struct mapping *m, bool mapped);
/* tokend_batch.handle of slot @s. */
uint64_t slots_handle(const struct mapping *m, uint64_t s);

/* ---- position.c ---- */

/* Returns 0 if all invariants hold: origin ≤ committed ≤ taken ≤ end, the rings' counters, the
 * skips. Otherwise handle_broken(). Called at attach, after each seek and before the handle sleeps.
 */
int position_check(struct tokend *t);
/* The cursor at @position, which origin covers. It borrows from origin. */
struct cursor position_cursor(const struct tokend *t, uint64_t position);
/* Starts at @origin, which the handle then owns, on the ring that was adopted for it. */
void position_start(struct tokend *t, const struct cursor *origin, const struct target *target);
/* Takes rank, world and micro-batch of @target, on the ring that was adopted for it. */
void position_set_target(struct tokend *t, const struct target *target);
/* Replaces the origin; the handle then owns @origin. */
void position_set_origin(struct tokend *t, const struct cursor *origin);
/* Reserves memory for one more skip. */
bool position_make_room(struct tokend *t);
/* Attaches at @edited, with the session's rank, without waiting. Returns 0 or an error. */
int seek_edited(struct tokend *t, const struct cursor *edited);

/* ---- edit.c ---- */

/* Applies @edit to the cursor at the position taken, and attaches there; edit->stream is set if the
 * stream's datasets are needed. Sets *@acts_from. Returns 0, or an error: nothing was changed. */
int edit_session(struct tokend *t, struct cursor_edit *edit, uint64_t *acts_from);
/* Saves the state before an edit, for tokend_undo(). Returns 0 or EMEMORY. */
int undo_prepare(struct tokend *t);
/* After undo_prepare(), before another ring is adopted: keeps the current ring and its session. */
void undo_keep_mapping(struct tokend *t);
void undo_forget(struct tokend *t);

/* ---- query.c ---- */

/* Sends @query and waits for its reply, of kind @reply, which is then in t->packet->wire. If the
 * daemon is lost, attaches again and repeats the query. Returns 0 or an error. */
int query(struct tokend *t, const struct wire *query, enum wire_op reply);
/* Reads messages that are not replies. Returns 0, or an error, which is latched. */
int query_listen(struct tokend *t);
/* Makes the error in t->packet the handle's last failure, and returns it. */
int message_refused(struct tokend *t);
/* Fails with EPROTOCOL; @what is wrong with the peer. */
int message_unknown(struct tokend *t, const char *what);
/* The same for t->packet->fault. */
int message_invalid(struct tokend *t);
/* Receives the next packet on @fd that is neither a wake-up nor a warning, and passes warnings on.
 */
enum link_event message_next(struct tokend *t, int fd);
/* Before a session ends: passes on the warnings in the socket and drops all other messages. */
void message_warnings(struct tokend *t);

/* ---- recording.c: the record of the batches taken, in the format of proto/record.h ---- */

/* Records @rows rows before they are taken; the session is then at @next. t->record must not be
 * NULL. Returns 0, or an error: nothing was written. */
int recording_rows(struct tokend *t, const struct tokend_row *row, uint32_t rows,
	const void *tokens, size_t row_bytes, uint64_t next);
/* Notes a seek, an undo (moved) or a requested skip (skipped), at once or with the next row. After
 * an error the next row tries again. */
int recording_moved(struct tokend *t);
int recording_skipped(struct tokend *t);
/* The session has another origin: with other mixes, the next row has a beginning of its own. */
void recording_origin(struct tokend *t);
/* Writes the batches up to @next, before they are committed. */
int recording_commit(struct tokend *t, uint64_t next);
/* Drops the entries that are not committed: the session moves, and they never will be. */
void recording_drop(struct tokend *t);
/* After a seek, before recording_moved(). @again: to the beginning of another pass. */
void recording_pass(struct tokend *t, bool again);
/* Ends the record. @ours: false in a forked child, which only frees memory. */
void recording_end(struct tokend *t, bool ours);

#endif
