/*
 * libtokend: the client of tokend. A handle attaches one process to one stream and hands out
 * micro-batches of tokens that the daemon has put into shared memory. client/example/trainer.c is a
 * whole trainer.
 *
 * Threads and processes. A handle may be used by one thread at a time; handles are independent of
 * each other. After fork() a child must not use its parent's handles: each call then fails with
 * TOKEND_EFORKED. The library raises no signals, starts no threads and writes nothing to stdio.
 *
 * Errors. Functions that return int or int64_t return 0 or more on success and a negative enum
 * tokend_error on failure. tokend_why() then returns one line that says what is wrong and what to
 * do, tokend_field() the option or member that it is about.
 *
 * A lost daemon. When the daemon dies or is upgraded, nothing is lost. tokend_next() hands out what
 * is in the ring, then connects again (after 1 to 250 ms each time, for deadline_ms in total) and
 * attaches at its own cursor. Batches held meanwhile stay valid.
 *
 * Trust. A handle takes tokens only from a daemon whose socket belongs to root (systemd listens),
 * to this user, or to a uid in $TOKEND_TRUST_UID (numbers separated by commas). Otherwise attaching
 * fails with TOKEND_EREFUSED and names the user. In a rootless container, where users outside have
 * no number, the socket's directory must belong to them and not be writable by all.
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
	TOKEND_EARGUMENT = -1, /* a value that cannot be; the call changed nothing */
	TOKEND_ECONNECT = -2,  /* no daemon answers at the socket (within the deadline) */
	TOKEND_EREFUSED = -3,  /* the daemon refuses: tokend_field() says what */
	TOKEND_EDATA = -4,   /* the stream stopped: a shard is unreadable, truncated or replaced */
	TOKEND_EHELD = -5,   /* all slots are held by batches that were not released */
	TOKEND_EMEMORY = -6, /* out of memory or of file descriptors */
	TOKEND_EPROTOCOL = -7, /* the peer is not a tokend of a version that we speak, or an
				  invariant of the library does not hold */
	TOKEND_EFORKED = -8,   /* used in a child of the process that attached */
	TOKEND_EAGAIN = -9,    /* not now, or interrupted by a callback */
};

#define TOKEND_PADDING	    UINT64_MAX /* position of a row after the end of a finite stream */
#define TOKEND_ENDLESS	    UINT64_MAX
#define TOKEND_CURSOR_BYTES (96 * 1024) /* no cursor is longer */

struct tokend; /* a handle */

/* ---- attach and detach ---- */

/* What to attach to. Members that are not needed are 0. New members are added at the end only. */
struct tokend_options {
	size_t size; /* sizeof(struct tokend_options) */
	/* NULL: tokend_default_socket() */
	const char *socket;
	const char *stream; /* required */
	/* Name of the job; NULL: "default". Jobs of different names do not affect each other. */
	const char *run;
	uint64_t rank, world; /* data-parallel coordinate: rank < world */
	uint32_t micro_batch; /* rows of a batch, at least 1 */
	/* Which of the processes of this rank (tensor, pipeline, context parallel). Peers get the
	 * same batches, each through its own ring. */
	uint32_t peer;
	uint32_t slots; /* batches to read ahead; 0: the daemon chooses */
	/* How long to look for a lost daemon, and to wait for a daemon that is starting or that
	 * refuses for now because others hold its memory or connections; 0: 300,000. */
	uint32_t deadline_ms;
	/* How long the first attach waits while nobody listens at the socket; 0: not at all. */
	uint32_t connect_ms;
	/* Where to start: cursor, tag, position, or at the beginning if none of them is given. */
	const void *cursor; /* [cursor_bytes], from tokend_cursor() */
	size_t cursor_bytes;
	const char *tag;   /* of a tokend_checkpoint() of this stream and run; "RUN/TAG" of
			      another run */
	uint64_t position; /* used if start_at_position is not 0 */
	int start_at_position;
	int helper; /* 1: reads for another session of this rank, which takes operators' requests */
	/*
	 * Called, unless NULL, when a call has waited for the daemon for 2, 10 and 60 s. @line says
	 * what it waits for, and for how much longer. The callback must not use the handle. If it
	 * does not return 0, the call ends with TOKEND_EAGAIN. Also called, within any call and
	 * without regard to the result, when the daemon warns that another process reads for this
	 * rank (but see @notice).
	 */
	int (*warn)(void *warn_context, const char *line);
	void *warn_context;
	/*
	 * 1: while another process reads for this stream, run, world, rank and peer, the attach
	 * waits, up to deadline_ms, and then fails. Needs a run. 0: both get the same samples, and
	 * both are warned.
	 */
	int strict;
	/*
	 * Called, unless NULL, while a call waits: every 100 ms, and after signals. If it does not
	 * return 0, the call ends with TOKEND_EAGAIN. While it runs, another thread may use the
	 * handle for calls that do not wait, such as tokend_cursor().
	 */
	int (*idle)(void *context);
	/*
	 * Called, unless NULL, each time that nobody listens at the socket. It may start a daemon,
	 * but must not wait for it. If it does not return 0, the call ends with TOKEND_EAGAIN.
	 */
	int (*absent)(void *context);
	/*
	 * Called, unless NULL, instead of @warn when the daemon itself warns. It may be called
	 * within any call, so it should only store a copy of @line.
	 */
	void (*notice)(void *context, const char *line);
	void *context; /* of idle, absent and notice */
};

/*
 * Attaches. On success *@out is a handle, which the caller passes to tokend_detach() at the end. On
 * failure it is NULL and @why, if it is not NULL, gets one line. Errors: EARGUMENT, ECONNECT,
 * EREFUSED (unknown stream or tag, a cursor of another stream, no memory left for the ring),
 * EMEMORY, EPROTOCOL, EAGAIN.
 */
TOKEND_API int tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes);
/* Releases everything; batches still held become invalid. @t may be NULL. */
TOKEND_API void tokend_detach(struct tokend *t);
/*
 * Where a daemon is looked for if the options name no socket, as text that ends with a 0. It is
 * $TOKEND_SOCKET; otherwise the socket of a daemon that this user started without root, if there is
 * one ($XDG_RUNTIME_DIR/tokend/tokend.sock or /tmp/tokend-UID/tokend.sock); otherwise
 * /run/tokend/tokend.sock. EMEMORY if @capacity is too small: 108 bytes hold every path that can be
 * a socket's.
 */
TOKEND_API int tokend_default_socket(char *path, size_t capacity);

/* One line on the last failure of this handle; "" if there was none. Valid until its next call. */
TOKEND_API const char *tokend_why(const struct tokend *t);
/* What that failure is about: an option ("rank"), a member of the daemon's config or of a cursor
 * ("dataset web: windows"); "" if it is about none. Valid until the handle's next call. */
TOKEND_API const char *tokend_field(const struct tokend *t);
/* The errno of the system call that failed; 0 if it was none. */
TOKEND_API int tokend_errno(const struct tokend *t);
/* Version of the library, such as "0.1.0". */
TOKEND_API const char *tokend_version(void);

/* ---- batches ---- */

struct tokend_row {
	uint64_t position; /* number of the sample in the run, or TOKEND_PADDING */
	uint64_t epoch;	   /* of its dataset */
	uint64_t window;   /* its number in the dataset */
	uint64_t offset;   /* of its first token in its shard, in tokens */
	uint32_t dataset;  /* index for tokend_dataset() */
	uint32_t shard;	   /* number in the dataset's sorted list */
};

struct tokend_batch {
	const void *tokens; /* [rows][window_tokens], packed, token_bytes each, in the host's byte
			       order; 0 in padding rows */
	const struct tokend_row *row; /* [rows] */
	uint32_t rows;
	uint32_t rows_valid; /* fewer than rows only at the end of a finite stream */
	uint32_t window_tokens;
	uint32_t token_bytes; /* 2 or 4, unsigned */
	uint64_t position;    /* of row 0 */
	uint64_t next;	      /* the cursor's position once every rank has taken its batch of this
				 step */
	uint64_t number;      /* 0, 1, 2, … since attach or seek */
	uint64_t handle;      /* private */
};

/*
 * Waits for the next micro-batch. Returns 1 and *@batch, 0 at the end of a finite stream, or an
 * error. Tokens and rows belong to the daemon; they stay valid and unchanged until
 * tokend_release(). While the ring has batches ready this makes no system call. A signal does not
 * interrupt it. Errors: EDATA, EHELD, ECONNECT after the deadline, EREFUSED if a restarted daemon's
 * config no longer fits, EPROTOCOL, EFORKED, EAGAIN. After an error tokend_cursor() still works;
 * batches follow again after tokend_seek().
 */
TOKEND_API int tokend_next(struct tokend *t, struct tokend_batch *batch);
/* The same without waiting: EAGAIN if no batch is ready. */
TOKEND_API int tokend_try_next(struct tokend *t, struct tokend_batch *batch);
/* Gives a batch's slot back to the daemon, once a batch, in any order. */
TOKEND_API void tokend_release(struct tokend *t, const struct tokend_batch *batch);
/*
 * Looks after the connection while there are batches enough: notices that the daemon died and looks
 * for its successor, so that requests find this session again. Waits 50 ms at most. Returns 1 if
 * connected, 0 if not yet, or an error of tokend_next(), which reports it again when the ring is
 * empty.
 */
TOKEND_API int tokend_attend(struct tokend *t);

/* What batches carry next to tokens: the sum of the bits below. Changed only by tokend_seek(). */
enum {
	TOKEND_DOCUMENTS = 1, /* `documents: true` in the daemon's config: tokend_documents() */
	TOKEND_LOSS_MASK = 2, /* `loss_mask: true` there: tokend_loss_mask() */
};
TOKEND_API unsigned tokend_annotations(const struct tokend *t);
/*
 * Where documents begin in a row of a batch that is held: the indices in its window, from 1 on and
 * ascending, of tokens whose document is another one than that of the token before (position ids
 * begin again there). [*@count], valid as long as the tokens. NULL and 0 if the stream carries no
 * documents, or if @row is not a row of a held batch.
 */
TOKEND_API const uint32_t *tokend_documents(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row, uint32_t *count);
/*
 * The loss mask of a row of a batch that is held: [window_tokens] bytes, 1 if the token may be a
 * label, 0 if it must not be, and 0 in padding rows. Valid as long as the tokens. NULL if the
 * stream carries no loss mask, or if @row is not a row of a held batch.
 */
TOKEND_API const uint8_t *tokend_loss_mask(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row);

/* Widens @n tokens to int64, for consumers without a GPU. Nothing is written unless @token_bytes is
 * 2 or 4. */
TOKEND_API void tokend_widen(int64_t *to, const void *tokens, size_t n, uint32_t token_bytes);
/* The same to @to, and to @next the @n tokens that begin one later: n + 1 tokens are read. */
TOKEND_API void tokend_widen_pair(
	int64_t *to, int64_t *next, const void *tokens, size_t n, uint32_t token_bytes);

/* ---- the session ---- */

/*
 * Shape of the batches, length of the stream, counters. The members from rows to world are changed
 * only by tokend_seek(), except for token_bytes: if a restarted daemon's config has a wider
 * dataset, tokens are wider from then on.
 */
struct tokend_shape {
	uint32_t rows, window_tokens, token_bytes, slots;
	uint64_t seq_len;
	uint64_t rank, world;
	uint64_t batches;    /* that this rank gets from attach or seek on, or TOKEND_ENDLESS */
	uint64_t data_bytes; /* of the ring memory that holds the tokens */
	uint64_t lost_wakes; /* waits that ended by the clock although the batch was there: 0 in a
				sound system */
	uint64_t reattached; /* times that the daemon was lost and found */
	uint64_t waited_ns;  /* time spent waiting in tokend_next(), in total */

	uint64_t pinned_bytes; /* of the ring, registered with a GPU's driver; 0: it is not */
	uint64_t copying;      /* slots on their way to a GPU */
};
TOKEND_API void tokend_shape(const struct tokend *t, struct tokend_shape *shape);
/* Name of a dataset by its index in tokend_row, or NULL. Owned by the handle until seek or detach.
 */
TOKEND_API const char *tokend_dataset(const struct tokend *t, uint32_t dataset);
/* Name of the run. The daemon may call an unnamed run default@UID. Owned by the handle until its
 * next call. */
TOKEND_API const char *tokend_run(const struct tokend *t);
/* Name of the stream. Owned by the handle. */
TOKEND_API const char *tokend_stream_name(const struct tokend *t);
/* 1 in a child of the process that attached, where every call fails with EFORKED; otherwise 0. */
TOKEND_API int tokend_forked(const struct tokend *t);
/* 1 while there is no session: the daemon was lost, or tokend_leave() was called; otherwise 0. */
TOKEND_API int tokend_lost(const struct tokend *t);

/* ---- where we are ---- */

/*
 * For trainers that fetch ahead: everything up to and including the batch with this `next` has been
 * trained on. From the first call on, tokend_cursor() and tokend_checkpoint() use the committed
 * position instead of the taken one. Calling it before the first batch, with the position at which
 * the session begins, says that nothing has been trained on yet. EARGUMENT if @next is neither the
 * last one committed nor that of a batch taken since.
 */
TOKEND_API int tokend_commit(struct tokend *t, uint64_t next);
/*
 * The cursor after the last batch taken (or committed): the same bytes on every rank at the same
 * step. Returns their number, or EMEMORY if @capacity is too small; TOKEND_CURSOR_BYTES are always
 * enough. Makes no system call.
 */
TOKEND_API int64_t tokend_cursor(const struct tokend *t, void *bytes, size_t capacity);
/* The position of that cursor. */
TOKEND_API uint64_t tokend_position(const struct tokend *t);
/* The position after the last batch taken, whatever is committed. */
TOKEND_API uint64_t tokend_taken(const struct tokend *t);
/* A number made of cursor, world and micro-batch. If it is not equal on all ranks at one step, they
 * do not belong to one job. */
TOKEND_API uint64_t tokend_fingerprint(const struct tokend *t);

/*
 * Has the daemon write the cursor durably under @tag (1 to 64 of A-Z a-z 0-9 . _ - : @ +), and
 * waits for it. @path, if it is not NULL, gets the file's path. Connects again as tokend_next()
 * does. Errors: EARGUMENT, EREFUSED if the daemon could not write it (the former snapshot is then
 * still valid), ECONNECT.
 */
TOKEND_API int tokend_checkpoint(struct tokend *t, const char *tag, char *path, size_t path_bytes);

/* ---- going elsewhere ---- */

/*
 * Goes to another cursor, rank, world or micro-batch: detach and attach in one handle. Batches
 * still held stay valid until they are released. @cursor NULL: the one taken. Errors as
 * tokend_attach(); the handle then stays where it was.
 */
TOKEND_API int tokend_seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch);
/* The same, to the beginning of another pass over a finite stream whose end this process has
 * reached: a record then says so. */
TOKEND_API int tokend_seek_pass(struct tokend *t, const void *cursor, size_t cursor_bytes,
	uint64_t rank, uint64_t world, uint32_t micro_batch);
/*
 * Sets new weights by dataset name; a dataset that is not named gets 0. They act from *@acts_from
 * on, the least multiple of 1024 that is not before the position taken. A dataset that the stream
 * has and the cursor has not is added first. All ranks of a job make the same call at the same
 * step. It is an edit of the cursor and a seek: batches read ahead are read again, batches taken
 * and not committed stay so. Errors: EARGUMENT (unknown name, bad weight, a stream with epochs),
 * EAGAIN (more mixes have begun since the position committed than a cursor holds: commit first),
 * and those of tokend_seek().
 */
TOKEND_API int tokend_set_mix(struct tokend *t, const char *const *names, const double *weights,
	uint32_t n, uint64_t *acts_from);
/* Copies the cursor at position 0 of this stream, as the daemon's config has it now, with all its
 * datasets. Returns the number of bytes. Errors: ECONNECT, EPROTOCOL, EMEMORY. */
TOKEND_API int64_t tokend_stream(struct tokend *t, void *cursor, size_t capacity);

/*
 * ---- cursors as values ----
 *
 * Each of these writes the edited cursor to @to and returns its length. No session is involved. @to
 * may be @cursor; TOKEND_CURSOR_BYTES are always enough. On failure they return EARGUMENT or
 * EMEMORY, and @why gets one line (field, value, what would be right). What they reject is listed
 * at the functions of the same name in proto/cursor.h.
 */
struct tokend_edit {
	const void *cursor; /* [cursor_bytes] */
	size_t cursor_bytes;
	void *to; /* [capacity] */
	size_t capacity;
	char *why; /* [why_bytes], or NULL */
	size_t why_bytes;
};
TOKEND_API int64_t tokend_cursor_seek(const struct tokend_edit *edit, uint64_t position);
TOKEND_API int64_t tokend_cursor_skip(const struct tokend_edit *edit, uint64_t samples);
TOKEND_API int64_t tokend_cursor_rewind(const struct tokend_edit *edit, uint64_t position);
/* @at: the position from which it acts; TOKEND_SOON: the next multiple of 1024. A dataset that is
 * not named gets weight 0. */
#define TOKEND_SOON UINT64_MAX
TOKEND_API int64_t tokend_cursor_mix(const struct tokend_edit *edit, uint64_t at,
	const char *const *names, const double *weights, uint32_t n);
/* Appends dataset @name as another cursor of the stream has it, for example that of
 * tokend_stream(). */
TOKEND_API int64_t tokend_cursor_add(
	const struct tokend_edit *edit, const void *from, size_t from_bytes, const char *name);
TOKEND_API int64_t tokend_cursor_remove(
	const struct tokend_edit *edit, const char *name, uint64_t at);
/* The position of a cursor: 0 and *@position, or an error. */
TOKEND_API int tokend_cursor_position(
	const void *cursor, size_t cursor_bytes, uint64_t *position, char *why, size_t why_bytes);
/*
 * The cursor as one JSON object, as `tokctl cursor show --json` prints it. Returns the length of
 * the text without the 0 that ends it; EMEMORY if @capacity is too small (4 MiB are always enough).
 */
TOKEND_API int64_t tokend_cursor_show(const void *cursor, size_t cursor_bytes, char *json,
	size_t capacity, char *why, size_t why_bytes);
/* The key that the order derives from @seed for @tag and @value (`order.md`, 2). */
TOKEND_API uint64_t tokend_derive(uint64_t seed, uint64_t tag, uint64_t value);

/*
 * ---- an operator's requests ----
 *
 * `tokctl mix | skip | checkpoint | drain | rescale` leaves a request in the daemon. A session sees
 * its number. One rank fetches it (from then on the operator cannot take it back), all ranks carry
 * it out at the same step, and each answers. How the ranks agree on the step is up to the job; the
 * Python loader's control() does it over torch.distributed.
 */
#define TOKEND_ARGS_BYTES 65536

struct tokend_request {
	uint64_t number;	      /* never the same twice; 0: none */
	char kind[16];		      /* "mix", "skip", "checkpoint", "drain", "rescale" */
	char args[TOKEND_ARGS_BYTES]; /* lines "KEY VALUE\n": "at 4096", "weight 0.5 web", "samples
					 100", "tag before", "world 3", "micro 8" */
};

enum tokend_outcome {
	TOKEND_NOTED = 1, /* this rank has seen it */
	TOKEND_DONE,	  /* carried out; the operator gets the cursor, too */
	TOKEND_FAILED,	  /* not carried out, and nothing was changed: the text says why */
};

/* The number of the operator's last request as this session sees it: one atomic load. 0: none. */
TOKEND_API uint64_t tokend_request_number(const struct tokend *t);
/* Fetches it. request->number is 0 if there is none (any more). Errors: ECONNECT, EPROTOCOL. */
TOKEND_API int tokend_request(struct tokend *t, struct tokend_request *request);
/*
 * Carries out a mix or a skip, which are edits of the cursor: edits the taken cursor and seeks.
 * Batches taken and not committed stay so; the skip is committed with the last batch before it.
 * *@acts_from gets the position from which the order is another. Requests of other kinds ask the
 * trainer to save: their arguments are checked, and nothing is done. Errors: EARGUMENT (what the
 * edit rejects, a mix of a finite stream, an unknown kind or key), and those of tokend_set_mix();
 * nothing is changed then.
 */
TOKEND_API int tokend_obey(
	struct tokend *t, const char *kind, const char *args, uint64_t *acts_from);
/*
 * Takes back the mix or skip that tokend_obey() carried out last, for jobs where another rank could
 * not carry it out. Needs neither memory nor the daemon. It is possible until tokend_answer() with
 * TOKEND_DONE or TOKEND_FAILED, the next look for a batch, or a seek. Returns 1, or 0 if there is
 * nothing to take back. Errors: EFORKED, EPROTOCOL.
 */
TOKEND_API int tokend_undo(struct tokend *t);
/*
 * Tells the operator the outcome of request @number here, with one line for people, cut to 1023
 * bytes. With TOKEND_DONE the present cursor and the result of tokend_obey() are sent along. Answer
 * before seeking as another rank. Does not wait for a lost daemon: ECONNECT, and the request is
 * lost, too.
 */
TOKEND_API int tokend_answer(
	struct tokend *t, uint64_t number, enum tokend_outcome outcome, const char *text);

/*
 * ---- proof ----
 *
 * Appends to the file @path (created if it does not exist) what is taken from now on: where this
 * session began, then 16 bytes a row (position, checksum of its tokens). `tokctl verify` reads such
 * files. From the first tokend_commit() on, a batch is written when it is committed. One write a
 * batch, no fsync. A file belongs to one process at a time. @path NULL ends the record. Errors:
 * EARGUMENT with the errno. If the disk takes no more later, tokend_next() fails with EARGUMENT
 * rather than lose a record.
 */
TOKEND_API int tokend_record(struct tokend *t, const char *path);

/*
 * ---- to a GPU ----
 *
 * tokend_pin() once; then tokend_peek(), tokend_copy() and tokend_next() in turns: the batch that
 * comes next goes to the GPU, and is taken. client/example/gpu_trainer.c is a whole trainer.
 *
 * With two buffers and two streams, the next batch is copied while this one is trained on: peek and
 * copy it after tokend_next(). A batch that was copied ahead is not taken: cursor, commit and seek
 * do not count it.
 *
 * All calls are of the driver API, found by dlopen(). Programs that do not use these functions need
 * no GPU; programs that use the CUDA runtime, or torch, share its primary context. The functions
 * may be called while a stream elsewhere in the process is captured into a graph. Nothing of a GPU
 * works after fork(), and neither do they.
 */

/*
 * Registers the ring with the driver, so that copies out of it are asynchronous and at full speed;
 * later also every ring that this handle gets by a seek or from a restarted daemon. @device: -1 for
 * that of the current context, otherwise that of the first active one. Rings are unregistered
 * before they are unmapped, by tokend_detach() at the latest. Errors: EREFUSED (no driver, no such
 * device, no context), EMEMORY (the driver does not register it: a limit), EARGUMENT (another
 * device before). The handle then works on unpinned; tokend_shape() says which.
 */
TOKEND_API int tokend_pin(struct tokend *t, int device);
/*
 * The batch that tokend_next() hands out next, without taking it. Returns as tokend_next() if
 * @wait, otherwise as tokend_try_next(). It may be copied and read until it is taken, or until a
 * seek.
 */
TOKEND_API int tokend_peek(struct tokend *t, struct tokend_batch *batch, int wait);
/*
 * Queues a copy of the whole slot, [rows][window_tokens] × batch->token_bytes, to @device_pointer
 * on
 * @stream (a CUstream or cudaStream_t of the pinned device; NULL: the default stream), for a batch
 * that is held or was peeked at. The slot comes back by itself, in tokend_next(), tokend_try_next()
 * or tokend_peek(), once the copy is over and the batch was taken; slots come back in the order of
 * the copies. tokend_release() rejects the batch meanwhile. tokend_detach() waits for copies under
 * way (10 s; after that their memory stays mapped for good). Without tokend_pin() the copy is made
 * from pageable memory. Errors, after which the batch is still the caller's: EARGUMENT (not held,
 * being copied already, a stream that is being captured, an error of the driver), EREFUSED (no
 * driver, no context).
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
 * Releases a batch once all work is over that the pinned context has been given so far; at once if
 * the ring is not pinned. For batches that were lent to code whose streams are not known.
 */
TOKEND_API void tokend_settle(struct tokend *t, const struct tokend_batch *batch);
/*
 * How many of the last batches taken from the present ring it cannot fill again: all of them from
 * the oldest one on that is neither released nor being copied.
 */
TOKEND_API uint64_t tokend_held(const struct tokend *t);
/*
 * Ends the session, as if the daemon was lost: the daemon forgets this process. Batches that are
 * held stay valid until they are released, or until tokend_detach().
 */
TOKEND_API void tokend_leave(struct tokend *t);

#ifdef __cplusplus
}
#endif

#endif
