/*
 * libtokend: the client of tokend. It attaches one process to one stream and hands out
 * micro-batches of tokens that the daemon has put into shared memory. See README.md for a whole
 * trainer in C.
 *
 * A handle belongs to one thread at a time; distinct handles are independent. After fork() a child
 * must not use its parent's handles: every call says so. No function here raises signals, starts
 * threads or writes to stdio.
 *
 * Functions return 0 or more on success and one of enum tokend_error, which are negative, on
 * failure; tokend_why() then has one line with the field, the value and what to do.
 *
 * When the daemon dies or is upgraded nothing is lost: tokend_next() goes on with what is in the
 * ring, then reconnects by itself (1 to 250 ms apart, for deadline_ms in all) and attaches at its
 * own cursor. Batches held meanwhile stay valid.
 *
 * A handle takes tokens only from a daemon whose socket is root's (systemd listens), this user's,
 * or that of a uid in $TOKEND_TRUST_UID (numbers with commas between them): TOKEND_EREFUSED names
 * anybody else. In a rootless container, where the users outside have no numbers, the socket's
 * directory must be theirs and not writable for all.
 */
#ifndef TOKEND_H
#define TOKEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOKEND_API __attribute__((visibility("default")))

enum tokend_error {
	TOKEND_EARGUMENT = -1, /* a value that cannot be: the call changed nothing */
	TOKEND_ECONNECT = -2,  /* no daemon answers at the socket (within the deadline) */
	TOKEND_EREFUSED = -3,  /* the daemon refused: why names the field */
	TOKEND_EDATA = -4,   /* the stream stopped: a shard is unreadable, truncated or replaced */
	TOKEND_EHELD = -5,   /* all slots are held by batches that were not released */
	TOKEND_EMEMORY = -6, /* out of memory, or of file descriptors */
	TOKEND_EPROTOCOL = -7, /* the peer is not a tokend of a version we speak */
	TOKEND_EFORKED = -8,   /* used in a child of the process that attached */
	TOKEND_EAGAIN = -9,    /* not now: see the function */
};

#define TOKEND_PADDING	    UINT64_MAX /* position of a row behind the end of a finite stream */
#define TOKEND_ENDLESS	    UINT64_MAX
#define TOKEND_CURSOR_BYTES (96 * 1024) /* no cursor is longer */

struct tokend; /* a session */

struct tokend_options {
	size_t size; /* sizeof(struct tokend_options): lets the struct grow */
	const char
		*socket; /* NULL: $TOKEND_SOCKET; otherwise that of a daemon which this user started
			    without   root, if there is one: $XDG_RUNTIME_DIR/tokend/tokend.sock or
			    /tmp/tokend-UID/tokend.sock; otherwise /run/tokend/tokend.sock */
	const char *stream; /* required */
	const char *run;    /* names the job; NULL: "default". Jobs with other names never touch */
	uint64_t rank, world; /* data-parallel coordinate: rank < world */
	uint32_t micro_batch; /* rows of a batch, ≥ 1 */
	uint32_t peer;	/* tensor/pipeline/context-parallel process of this rank: same batches, own
			   ring */
	uint32_t slots; /* batches of read-ahead; 0: the daemon's choice */
	/*
	 * How long to look for a lost daemon, and to wait for one that is starting or that refuses
	 * for now because others hold its memory or connections; 0: 300,000.
	 */
	uint32_t deadline_ms;
	uint32_t connect_ms; /* how long the first attach waits where nobody listens; 0: not at all
			      */
	/* Where to start: exactly one of cursor, tag, position and the beginning. */
	const void *cursor; /* bytes from tokend_cursor() */
	size_t cursor_bytes;
	const char *tag; /* of a tokend_checkpoint() of this stream and run, or "RUN/TAG" of another
			    run */
	uint64_t position; /* used if start_at_position is not 0 */
	int start_at_position;
	int helper; /* 1: reads for another session of this rank, which is the one operators speak
		       to */
	/*
	 * Called, unless NULL, when a call has waited for the daemon for 2, 10 and 60 s: @line says
	 * what it waits for and for how much longer. It must not use the handle. If it does not
	 * return 0, the call ends with TOKEND_EAGAIN. Also called, within any call and whatever it
	 * returns, when the daemon warns that another process reads for this rank.
	 */
	int (*warn)(void *warn_context, const char *line);
	void *warn_context;
	/*
	 * 1: while another process reads for this stream, run, world, rank and peer, the attach
	 * waits, up to deadline_ms, and then fails. 0: both get the same samples, and are warned.
	 * Needs a run.
	 */
	int strict;
	/*
	 * Called, unless NULL, while a call waits: every 100 ms, and after signals. If it does not
	 * return 0, the call ends with TOKEND_EAGAIN. While it runs, another thread
	 * may use the handle for what does not wait, such as tokend_cursor().
	 */
	int (*idle)(void *context);
	/*
	 * Called, unless NULL, each time that nobody listens at the socket. It may start a daemon,
	 * and must not wait for it. If it does not return 0, the call ends with TOKEND_EAGAIN.
	 */
	int (*absent)(void *context);
	/*
	 * Called, unless NULL, instead of @warn when the daemon itself warns. It may be called
	 * within any call, so it only stores a copy of @line.
	 */
	void (*notice)(void *context, const char *line);
	void *context; /* of idle, absent and notice */
};

struct tokend_row {
	uint64_t position; /* number of the sample in the whole run, or TOKEND_PADDING */
	uint64_t epoch;	   /* of its dataset */
	uint64_t window;   /* its number in the dataset */
	uint64_t offset;   /* of its first token in its shard, in tokens */
	uint32_t dataset;  /* see tokend_dataset() */
	uint32_t shard;	   /* number in the dataset's sorted list */
};

struct tokend_batch {
	const void *tokens; /* [rows][window_tokens], packed, token_bytes each, in the host's byte
			       order; padding rows are 0 */
	const struct tokend_row *row; /* [rows] */
	uint32_t rows;
	uint32_t rows_valid; /* fewer than rows only at the end of a finite stream */
	uint32_t window_tokens;
	uint32_t token_bytes; /* 2 or 4, unsigned */
	uint64_t position;    /* of row 0 */
	uint64_t next; /* the cursor's position once every rank has taken its batch of this step */
	uint64_t number; /* 0, 1, 2, … since attach or seek */
	uint64_t handle; /* private */
};

/*
 * Attaches. *@out is owned by the caller until tokend_detach(); on failure it is NULL and @why, if
 * not NULL, gets one line. Errors: EARGUMENT, ECONNECT, EREFUSED (unknown stream or tag, a cursor
 * that does not belong, no memory left for the ring), EMEMORY, EPROTOCOL.
 */
TOKEND_API int tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes);
/* Gives everything back; batches still held become invalid. NULL is fine. */
TOKEND_API void tokend_detach(struct tokend *t);

/*
 * Waits for the next micro-batch: 1 and *@batch, or 0 at the end of a finite stream, or an error.
 * The tokens and rows stay valid and unchanged until tokend_release(). On a ready ring this makes
 * no system call. A signal does not interrupt it. Errors: EDATA, EHELD, ECONNECT after the deadline
 * (the cursor is still good), EREFUSED if a restarted daemon's config no longer fits (names the
 * field), EFORKED. After an error the handle still answers tokend_cursor(); it serves again after
 * tokend_seek().
 */
TOKEND_API int tokend_next(struct tokend *t, struct tokend_batch *batch);
/* The same, but TOKEND_EAGAIN where there is nothing yet instead of waiting. */
TOKEND_API int tokend_try_next(struct tokend *t, struct tokend_batch *batch);
/* Gives the slot back, in any order. The batch's memory is the daemon's again. Once a batch. */
TOKEND_API void tokend_release(struct tokend *t, const struct tokend_batch *batch);

/*
 * Where documents begin in a row of a batch that is held: the indices in its window, from 1 on and
 * ascending, of the tokens that are the first of another document than the token before (position
 * ids begin again there). Valid as the tokens are. NULL, and *@count is 0, where the stream has no
 * `documents: true` in the daemon's config, and for what is no row of a held batch.
 */
TOKEND_API const uint32_t *tokend_documents(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row, uint32_t *count);

/*
 * The loss mask of a row of a batch that is held: [window_tokens] bytes, 1 where the token may be a
 * label, 0 where it must not be (its label is ignored) and in rows that are padding. Valid as the
 * tokens are. NULL where the stream has no `loss_mask: true` in the daemon's config, and for what
 * is no row of a held batch.
 */
TOKEND_API const uint8_t *tokend_loss_mask(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row);

/* Shape of the batches and the length of the stream; valid from attach on, changed only by
 * tokend_seek(), but for token_bytes: a restarted daemon whose config has a wider dataset serves wider
 * tokens from then on. */
struct tokend_shape {
	uint32_t rows, window_tokens, token_bytes, slots;
	uint64_t seq_len;
	uint64_t rank, world;
	uint64_t batches;    /* this rank gets from here on, or TOKEND_ENDLESS */
	uint64_t data_bytes; /* of the data segment */
	uint64_t lost_wakes; /* waits that ended by the clock although the batch was there: 0 in a
				sound system */
	uint64_t reattached; /* times the daemon was lost and found */
	uint64_t waited_ns;  /* time spent waiting in tokend_next(), in all */

	uint64_t pinned_bytes; /* of the ring, registered with a GPU's driver; 0: it is not */
	uint64_t copying;      /* slots on their way to a GPU */
};
TOKEND_API void tokend_shape(const struct tokend *t, struct tokend_shape *shape);
/* What batches carry next to tokens: the sum of the bits below; changed only by tokend_seek(). */
enum {
	TOKEND_DOCUMENTS = 1, /* tokend_documents() */
	TOKEND_LOSS_MASK = 2, /* tokend_loss_mask() */
};
TOKEND_API unsigned tokend_annotations(const struct tokend *t);
/* Name of a dataset by its index in tokend_row, or NULL. Owned by the handle until seek or detach.
 */
TOKEND_API const char *tokend_dataset(const struct tokend *t, uint32_t dataset);
/* Name of the run. The daemon may call an unnamed one default@UID. Owned by the handle until its
 * next call.
 */
TOKEND_API const char *tokend_run(const struct tokend *t);
/* Name of the stream. Owned by the handle. */
TOKEND_API const char *tokend_stream_name(const struct tokend *t);
/* 1 in a child of the process that attached, where every call fails with EFORKED; otherwise 0. */
TOKEND_API int tokend_forked(const struct tokend *t);
/* 1 while there is no session: the daemon was lost, or tokend_leave() was called; otherwise 0. */
TOKEND_API int tokend_lost(const struct tokend *t);

/*
 * For trainers that fetch ahead: says that everything up to and including the batch with this
 * `next` has been trained on. From the first call on, tokend_cursor() and tokend_checkpoint() speak
 * of the committed place instead of the taken one; so before the first batch, with where the
 * session begins, it says that nothing is trained on yet. EARGUMENT if @next is neither committed
 * last nor that of a batch taken since.
 */
TOKEND_API int tokend_commit(struct tokend *t, uint64_t next);

/*
 * The cursor behind the last batch taken (or committed): the same bytes on every rank at the same
 * step. Returns their number, or EMEMORY if @capacity is too small (TOKEND_CURSOR_BYTES never is).
 * Makes no system call.
 */
TOKEND_API int64_t tokend_cursor(const struct tokend *t, void *bytes, size_t capacity);
/* The position of that cursor. */
TOKEND_API uint64_t tokend_position(const struct tokend *t);
/* The position after the last batch taken by all ranks, whatever is committed. */
TOKEND_API uint64_t tokend_taken(const struct tokend *t);
/* A number over cursor, world and micro-batch: equal on all ranks at one step, or the job is not
 * one job. */
TOKEND_API uint64_t tokend_fingerprint(const struct tokend *t);

/*
 * Has the daemon write the cursor durably under @tag (1 to 64 of A-Z a-z 0-9 . _ - : @ +), and
 * waits for it.
 * @path, if not NULL, gets where. Reconnects as tokend_next() does. Errors: EARGUMENT, EREFUSED
 * with the daemon's errno text (the former snapshot is then still valid), ECONNECT.
 */
TOKEND_API int tokend_checkpoint(struct tokend *t, const char *tag, char *path, size_t path_bytes);

/*
 * Goes to another cursor, rank, world or micro-batch: detach and attach, in one handle. Batches
 * still held stay valid until released. NULL for @cursor means the taken one. Errors as
 * tokend_attach(); the handle is then where it was.
 */
TOKEND_API int tokend_seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch);
/*
 * The same, to the beginning of another pass over a finite stream whose end this process has
 * reached: a record then says so.
 */
TOKEND_API int tokend_seek_pass(struct tokend *t, const void *cursor, size_t cursor_bytes,
	uint64_t rank, uint64_t world, uint32_t micro_batch);

/*
 * Cursors as values: each writes the edited cursor to @to and returns its length, touching no
 * session. @to may be @cursor; TOKEND_CURSOR_BYTES are always enough. On failure EARGUMENT or
 * EMEMORY, and one line (field, value, what would be right) in @why. What they refuse is said at
 * the functions of the same name in proto/cursor.h.
 */
struct tokend_edit {
	const void *cursor;
	size_t cursor_bytes;
	void *to;
	size_t capacity;
	char *why; /* may be NULL */
	size_t why_bytes;
};
TOKEND_API int64_t tokend_cursor_seek(const struct tokend_edit *edit, uint64_t position);
TOKEND_API int64_t tokend_cursor_skip(const struct tokend_edit *edit, uint64_t samples);
TOKEND_API int64_t tokend_cursor_rewind(const struct tokend_edit *edit, uint64_t position);
/* @at: the position from which it acts, or TOKEND_SOON. A dataset that is not named gets 0. */
#define TOKEND_SOON UINT64_MAX
TOKEND_API int64_t tokend_cursor_mix(const struct tokend_edit *edit, uint64_t at,
	const char *const *names, const double *weights, uint32_t n);
/* Appends dataset @name as it stands in another cursor of the stream, e.g. that of tokend_stream().
 */
TOKEND_API int64_t tokend_cursor_add(
	const struct tokend_edit *edit, const void *from, size_t from_bytes, const char *name);
TOKEND_API int64_t tokend_cursor_remove(
	const struct tokend_edit *edit, const char *name, uint64_t at);
/* Position of a cursor, or an error; pure. */
TOKEND_API int tokend_cursor_position(
	const void *cursor, size_t cursor_bytes, uint64_t *position, char *why, size_t why_bytes);
/* The key that the order derives from @seed for @tag and @value (`order.md`, 2); pure. */
TOKEND_API uint64_t tokend_derive(uint64_t seed, uint64_t tag, uint64_t value);
/*
 * The cursor as one JSON object, as `tokctl cursor show --json` prints it. Returns the length of
 * the text, which ends with a 0 that is not counted; EMEMORY if @capacity is too small (4 MiB never
 * is).
 */
TOKEND_API int64_t tokend_cursor_show(const void *cursor, size_t cursor_bytes, char *json,
	size_t capacity, char *why, size_t why_bytes);

/*
 * New weights, by dataset name; a dataset that is not named gets 0. They act from *@acts_from on,
 * the least multiple of 1024 that is not before the taken position. A dataset that the stream has
 * and the cursor does not is added first. All ranks of a job make the same call at the same step.
 * It is an edit of the cursor and a seek: what was read ahead is read again; what is taken and not
 * committed stays so. Errors: EARGUMENT (unknown name, bad weight, a stream with epochs), EAGAIN
 * (more mixes have begun since what is committed than a cursor holds: commit first), and those of
 * tokend_seek().
 */
TOKEND_API int tokend_set_mix(struct tokend *t, const char *const *names, const double *weights,
	uint32_t n, uint64_t *acts_from);

/*
 * ---- an operator's requests ----
 *
 * `tokctl mix | skip | checkpoint | drain | rescale` leaves a request in the daemon. A session sees
 * its number, one rank fetches it (from then on the operator cannot take it back), all ranks carry
 * it out at the same step, and each answers. How the ranks agree on the step is the job's business;
 * the Python loader's control() does it over torch.distributed.
 */
#define TOKEND_ARGS_BYTES 65536

struct tokend_request {
	uint64_t number;	      /* never the same twice; 0: none */
	char kind[16];		      /* "mix", "skip", "checkpoint", "drain", "rescale" */
	char args[TOKEND_ARGS_BYTES]; /* lines "KEY VALUE\n": "at 4096", "weight 0.5 web", "samples
					 100", "tag before", "world 3", "micro 8" */
};

enum tokend_outcome {
	TOKEND_NOTED = 1, /* control() has come by and seen it */
	TOKEND_DONE,	  /* carried out; the operator gets the cursor too */
	TOKEND_FAILED,	  /* not carried out, nothing was changed: the text says why */
};

/*
 * Looks after the connection while there are batches enough: notices that the daemon died, and
 * looks for its successor, so that requests find this session again. Never waits. 1: connected, 0:
 * not yet. Errors: those of tokend_next(), which says them again once the ring is empty.
 */
TOKEND_API int tokend_attend(struct tokend *t);
/* The number of the operator's last request as this session sees it: one atomic load. 0: none. */
TOKEND_API uint64_t tokend_request_number(const struct tokend *t);
/* Fetches it. request->number is 0 if there is none (any more). Errors: ECONNECT, EPROTOCOL. */
TOKEND_API int tokend_request(struct tokend *t, struct tokend_request *request);
/*
 * Carries out what is an edit of the cursor (mix, skip): edits the taken cursor and seeks. What is
 * taken and not committed stays so; the skip is committed with the last batch before it.
 * *@acts_from gets the position from which the order is another. For kinds that only the trainer
 * can carry out (they ask it to save) it checks the args and does nothing. Errors: EARGUMENT (what
 * the edit refuses, a mix of a finite stream, an unknown kind or key), and those of
 * tokend_set_mix(); nothing is changed then.
 */
TOKEND_API int tokend_obey(
	struct tokend *t, const char *kind, const char *args, uint64_t *acts_from);
/*
 * Takes back the mix or skip that tokend_obey() carried out last, for jobs where another rank could
 * not carry it out. Needs neither memory nor the daemon. It is possible until tokend_answer() with
 * TOKEND_DONE or TOKEND_FAILED, the next look for a batch, or a seek. Returns 1, or 0 if there is
 * nothing to take back. Errors: EFORKED.
 */
TOKEND_API int tokend_undo(struct tokend *t);
/*
 * Tells the operator how request @number stands here, with one line for people, cut to 1023 bytes.
 * With TOKEND_DONE the present cursor goes along, and what tokend_obey() said. Answer before
 * seeking elsewhere as another rank. Does not wait: ECONNECT if the daemon is lost, and then the
 * request is too.
 */
TOKEND_API int tokend_answer(
	struct tokend *t, uint64_t number, enum tokend_outcome outcome, const char *text);
/* The cursor at position 0 of this stream as the daemon's config has it now, with all its datasets.
 * Returns the number of bytes. Errors: ECONNECT, EPROTOCOL, EMEMORY. */
TOKEND_API int64_t tokend_stream(struct tokend *t, void *cursor, size_t capacity);

/*
 * ---- proof ----
 *
 * Appends to @path (created if need be) what is taken from now on: where this session began, then
 * 16 bytes a row (position, checksum of its tokens); `tokctl verify` reads such files. From the
 * first tokend_commit() on a batch is written when it is committed. One write a batch, no fsync. A
 * file belongs to one process at a time. NULL ends it. Errors: EARGUMENT with the errno's text;
 * later, a disk that takes no more makes tokend_next() fail with EARGUMENT rather than lose a
 * record.
 */
TOKEND_API int tokend_record(struct tokend *t, const char *path);

/*
 * ---- to a GPU ----
 *
 * tokend_pin(), once; then in turns tokend_peek(), tokend_copy() and tokend_next(): what comes next
 * goes to the GPU, and is taken. client/example/gpu_trainer.c is a whole one.
 *
 * With two buffers and two streams the batch after this one is copied while this one is trained on:
 * peek and copy it behind tokend_next(). A batch that was copied ahead is not taken: cursor, commit
 * and seek know nothing of it.
 *
 * All of it is driver API, found by dlopen(): programs that never call these need no GPU, and those
 * that use the CUDA runtime, or torch, share its primary context. The calls may be made while a
 * stream elsewhere in the process is being captured into a graph. Nothing of a GPU works after
 * fork(), so neither do they.
 */

/*
 * Registers the ring with the driver, so that copies out of it are asynchronous and at full speed;
 * from now on also every ring that this handle gets by a seek or from a restarted daemon. @device:
 * -1 for that of the current context, else of the first active one. What is registered is
 * unregistered before it is unmapped, by tokend_detach() at the latest. Errors: EREFUSED (no
 * driver, no such device, no context), EMEMORY (the driver does not register it: a limit),
 * EARGUMENT (another device before). The handle then goes on, unpinned; tokend_shape() says which.
 */
TOKEND_API int tokend_pin(struct tokend *t, int device);
/*
 * The batch that tokend_next() hands out next, without taking it. 1, or as tokend_next() if @wait,
 * else as tokend_try_next(). Good for tokend_copy() and for reading until it is taken, or until a
 * seek.
 */
TOKEND_API int tokend_peek(struct tokend *t, struct tokend_batch *batch, int wait);
/*
 * Queues a copy of the whole slot, [rows][window_tokens] × batch->token_bytes, to @device_pointer on
 * @stream (a CUstream or cudaStream_t of the pinned device; NULL: the default stream), of a batch
 * that is held or was peeked at. Its slot is given back by itself in tokend_next(),
 * tokend_try_next() or tokend_peek(), once the copy is over and the batch was taken; slots go back
 * in the order of the copies. tokend_release() refuses it meanwhile. tokend_detach() waits for
 * copies under way (10 s; then their memory stays mapped for good). Without tokend_pin() it copies
 * from pageable memory. Errors, which leave the batch the caller's: EARGUMENT (not held, being
 * copied already, a stream that is being captured, what the driver says), EREFUSED (no driver, no
 * context).
 */
TOKEND_API int tokend_copy(
	struct tokend *t, const struct tokend_batch *batch, uint64_t device_pointer, void *stream);

/*
 * 1 if @batch is on its way to a GPU: it was given to tokend_copy(), and its slot has not come back
 * yet. @batch NULL: the batch that tokend_next() hands out next. Otherwise 0.
 */
TOKEND_API int tokend_copied(const struct tokend *t, const struct tokend_batch *batch);

/*
 * ---- lending ----
 *
 * For trainers that pass slots on without a copy, to code that queues copies of its own.
 */

/*
 * Releases a batch once all work is over that the pinned context has been given so far; at once
 * where the ring is not pinned. For batches that were lent to code whose streams are not known.
 */
TOKEND_API void tokend_settle(struct tokend *t, const struct tokend_batch *batch);
/*
 * How many of the last batches taken from the present ring it cannot fill again: all from the
 * oldest one on that is neither released nor being copied.
 */
TOKEND_API uint64_t tokend_held(const struct tokend *t);
/*
 * Ends the session, as if the daemon was lost: the daemon may reuse its part of the memory. Batches
 * that are held stay valid until they are released, or until tokend_detach().
 */
TOKEND_API void tokend_leave(struct tokend *t);

/* Widens @n tokens to int64. For consumers without a GPU. Nothing is written unless @token_bytes is
 * 2 or 4. */
TOKEND_API void tokend_widen(int64_t *to, const void *tokens, size_t n, uint32_t token_bytes);
/* The same to @to, and to @next the @n tokens that begin one later: n + 1 are read. */
TOKEND_API void tokend_widen_pair(
	int64_t *to, int64_t *next, const void *tokens, size_t n, uint32_t token_bytes);

/* One line on the last failure of this handle; "" if there was none. Valid until its next call. */
TOKEND_API const char *tokend_why(const struct tokend *t);
/* What that failure is about: an option ("rank"), a member of the daemon's config or of a cursor
 * ("dataset web: windows"); "" if it is about none. Valid until the handle's next call. */
TOKEND_API const char *tokend_field(const struct tokend *t);
/* The errno of the system call that failed; 0 if it was none. */
TOKEND_API int tokend_errno(const struct tokend *t);
TOKEND_API const char *tokend_version(void);
/*
 * Where a daemon is looked for if the options name no socket (see there), as a path that ends with
 * a 0. EMEMORY if @capacity is too small: 108 bytes always hold a path that can be a socket's.
 */
TOKEND_API int tokend_default_socket(char *path, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
