/*
 * libtokend, the C client of tokend. A handle attaches one process to one stream of the node's
 * daemon. The daemon puts micro-batches of tokens into shared memory, and the handle hands them
 * out. client/example/trainer.c is a complete trainer.
 *
 * Threads. One thread at a time may use a handle. Different handles are independent. The library
 * starts no threads, installs no signal handlers and prints nothing.
 *
 * fork(). A child must not use its parent's handles: in a child every call fails with
 * TOKEND_EFORKED. tokend_detach() is allowed there and frees the child's memory.
 *
 * Errors. A function that returns int or int64_t returns a value >= 0 on success and a negative
 * enum tokend_error on failure. tokend_why() then returns one line that says what failed, on what,
 * why, and what to do. tokend_field() returns the option or member that the error is about.
 *
 * Lost daemon. If the daemon dies or is upgraded, no sample is lost or repeated. tokend_next()
 * first returns the batches that are in the ring. Then it looks for a daemon for up to deadline_ms
 * and attaches at the handle's position. Batches that the caller holds stay valid.
 *
 * Trust. The socket must belong to root (systemd listens), to the caller's user, or to a uid in
 * $TOKEND_TRUST_UID (numbers separated by commas); otherwise attaching fails with TOKEND_EREFUSED.
 * In a rootless container users from outside appear as uid 65534: there the socket's directory must
 * belong to that uid and must not be writable by all.
 */
#ifndef TOKEND_H
#define TOKEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOKEND_API     __attribute__((visibility("default")))
#define TOKEND_CHECKED __attribute__((warn_unused_result)) /* an ignored error would lose data */

enum tokend_error {
	TOKEND_EARGUMENT = -1, /* an invalid value; nothing was changed */
	TOKEND_ECONNECT = -2,  /* no daemon answered at the socket within the deadline */
	TOKEND_EREFUSED = -3,  /* the daemon refused: see tokend_field() */
	TOKEND_EDATA = -4,   /* the stream stopped: a shard is unreadable, truncated or replaced */
	TOKEND_EHELD = -5,   /* every slot holds a batch that was not released */
	TOKEND_EMEMORY = -6, /* out of memory or file descriptors, or a buffer is too small */
	TOKEND_EPROTOCOL = -7, /* not a tokend of a compatible version, or a bug in the library */
	TOKEND_EFORKED = -8,   /* used in a child of the process that attached */
	TOKEND_EAGAIN = -9,    /* not yet, or a callback ended the call */
	TOKEND_ESTART = -10,   /* the private daemon of a config cannot be started */
	TOKEND_EWAIT = -11,    /* no batch came within max_wait_ms */
};

#define TOKEND_PADDING	    UINT64_MAX /* position of a padding row, after a finite stream's end */
#define TOKEND_ENDLESS	    UINT64_MAX
#define TOKEND_CURSOR_BYTES (96 * 1024) /* the longest cursor */
#define TOKEND_MICRO_BATCH  (64 * 1024) /* the most rows of a batch */

struct tokend; /* a handle */

/* ---- attach and detach ---- */

/* Arguments of tokend_attach(). Set unused members to 0. New members are added at the end only. */
struct tokend_options {
	size_t size;	      /* sizeof(struct tokend_options) */
	const char *socket;   /* the daemon's. NULL: that of tokend_default_socket() */
	const char *stream;   /* required: a stream of the daemon's config */
	const char *run;      /* name of the job. NULL: "default" */
	uint64_t rank, world; /* data-parallel coordinates: rank < world */
	uint32_t micro_batch; /* rows per batch: 1 to TOKEND_MICRO_BATCH */
	/* Number of this process within its rank (tensor, pipeline or context parallelism). All
	 * peers of a rank get the same batches, each through its own ring. */
	uint32_t peer;
	uint32_t slots; /* batches to read ahead. 0: the daemon chooses */
	/* How long to look for a lost daemon, to wait for one that is starting or is silent, and to
	 * repeat an attach that lacks memory or connections. 0: 300,000 ms. */
	uint32_t deadline_ms;
	uint32_t connect_ms; /* how long the first attach waits while nobody listens. 0: it fails */
	/* First position: from a cursor, a tag or a number. None of them: the beginning. */
	const void *cursor; /* [cursor_bytes], from tokend_cursor() */
	size_t cursor_bytes;
	const char *tag;   /* of tokend_checkpoint() in this stream; "RUN/TAG": of another run */
	uint64_t position; /* used if start_at_position is not 0 */
	int start_at_position;
	/* 1: this session feeds another session of the same rank, for example from a worker
	 * process. Operators' requests go to the other session only. */
	int helper;
	/*
	 * Called when a call has waited for the daemon, or tokend_next() for a batch, for 2, 10 and
	 * 60 s, and when such a wait is over. @line says what it waits for and for how much longer.
	 * A result other than 0 ends the call with TOKEND_EAGAIN. Also called for the daemon's own
	 * warnings if @notice is NULL; the result is then ignored. The callback must not use the
	 * handle. NULL: no warnings.
	 */
	int (*warn)(void *warn_context, const char *line);
	void *warn_context;
	/* 1: if another process already reads for this stream, run, world, rank and peer, wait up
	 * to deadline_ms for it to leave, then fail. Requires @run. 0: both get the same samples,
	 * and both are warned. */
	int strict;
	/* Called every 100 ms while a call waits, and after signals. A result other than 0 ends the
	 * call with TOKEND_EAGAIN. During the callback another thread may call tokend_commit(),
	 * tokend_release() and functions that change nothing, such as tokend_cursor(). */
	int (*idle)(void *context);
	/* Called with the daemon's warnings instead of @warn, from within any call. The callback
	 * must not use the handle; it should only copy @line. NULL: they go to @warn. */
	void (*notice)(void *context, const char *line);
	void *context; /* of idle and notice */
	/*
	 * Path of a config file, instead of @socket. A daemon of this file at the socket that the
	 * file names is used, otherwise this user's private daemon of the file's path and text. It
	 * may take @connect_ms to listen (0: deadline_ms), is started again when it is lost, and
	 * ends a minute after its last session. The library runs `tokctl start` (see
	 * tokend_program()) in a child process, which is reaped within the library's calls.
	 *
	 * With both @config and @socket, they must be tokend_config() and tokend_socket() of
	 * another session, which then shares its private daemon even if the file was edited since.
	 */
	const char *config;
	/* How long tokend_next() waits for a batch while storage or an object store does not
	 * answer, before TOKEND_EWAIT. The search for a lost daemon does not count. 0: no limit. */
	uint64_t max_wait_ms;
};

/*
 * Attaches this process to a stream. Returns 0 and sets *@out to a handle, which tokend_detach()
 * frees. On failure *@out is NULL, and @why (NULL: not wanted) gets one line, cut to @why_bytes.
 *
 * Errors: EARGUMENT, ECONNECT, EREFUSED (unknown stream or tag, a cursor of another stream, no
 * memory for the ring), ESTART, EMEMORY, EPROTOCOL, EAGAIN (a callback ended it).
 */
TOKEND_API int tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes);
/* Ends the session and frees the handle. Batches still held become invalid. @t may be NULL. */
TOKEND_API void tokend_detach(struct tokend *t);
/* Writes the socket that is used if the options name none: $TOKEND_SOCKET; otherwise the first of
 * $XDG_RUNTIME_DIR/tokend/tokend.sock, /tmp/tokend-UID/tokend.sock (both if no other user may write
 * there) and /run/tokend/tokend.sock at which a daemon listens. Returns 0, or EMEMORY if @path
 * ([@capacity], 108 are enough) is too short. */
TOKEND_API int tokend_default_socket(char *path, size_t capacity);
/* Writes the path of the program @name ("tokend" or "tokctl") to @path ([@capacity] bytes): in
 * $TOKEND_BIN, near the file of the library, or in $PATH. Returns 0, or EARGUMENT if there is none
 * or its path is too long. */
TOKEND_API int tokend_program(const char *name, char *path, size_t capacity);

/* Message of the handle's last failure. "": there was none. Valid until the handle's next call. */
TOKEND_API const char *tokend_why(const struct tokend *t);
/* Subject of the last failure: an option ("rank"), or a member of the daemon's config or of a
 * cursor ("dataset web: windows"). "": none. Valid until the handle's next call. */
TOKEND_API const char *tokend_field(const struct tokend *t);
/* Version of the library, such as "0.2.0". A constant. */
TOKEND_API const char *tokend_version(void);

/* ---- batches ---- */

/* Where a row comes from. */
struct tokend_row {
	uint64_t position; /* number of the sample in the run, or TOKEND_PADDING */
	uint64_t epoch;	   /* of its dataset */
	uint64_t window;   /* number of the window in the dataset */
	uint64_t offset;   /* of the window's first token in its shard, in tokens */
	uint32_t dataset;  /* index for tokend_dataset() */
	uint32_t shard;	   /* index in the dataset's sorted list of shards */
};

/* A micro-batch. The daemon owns the memory that the pointers refer to. */
struct tokend_batch {
	const void *tokens; /* [rows][window_tokens], packed, unsigned integers of token_bytes in
			       host byte order. Padding rows are 0 */
	const struct tokend_row *row; /* [rows] */
	uint32_t rows;
	uint32_t rows_valid; /* the rows after them are padding, at the end of a finite stream */
	uint32_t window_tokens;
	uint32_t token_bytes; /* 2 or 4 */
	uint64_t position;    /* of row 0 */
	uint64_t next;	      /* the cursor's position after all ranks' batches of this step */
	uint64_t number;      /* 0, 1, 2, … since attach or seek */
	uint64_t handle;      /* private */
};

/*
 * Waits for the next micro-batch and takes it. Makes no system call while the ring has batches
 * ready. Returns 1 and fills *@batch, whose tokens and rows are valid and constant until
 * tokend_release(). Returns 0 at the end of a finite stream.
 *
 * Errors: EDATA, ECONNECT (no daemon within deadline_ms), EREFUSED (a restarted daemon's config no
 * longer fits), EPROTOCOL: the error is repeated until tokend_seek(). EHELD (release a batch
 * first), EAGAIN (a callback ended it), EARGUMENT (see tokend_record()), ESTART, EMEMORY, EWAIT (no
 * batch within max_wait_ms): the next call tries again. EFORKED. tokend_cursor() works after every
 * error except EFORKED.
 */
TOKEND_API int tokend_next(struct tokend *t, struct tokend_batch *batch);
/* The same without waiting: EAGAIN if no batch is ready; tokend_why() is then that of a former
 * failure. */
TOKEND_API int tokend_try_next(struct tokend *t, struct tokend_batch *batch);
/* Describes the batch that the next tokend_next() returns, without taking it. It may be read until
 * it is taken, or until a seek. As tokend_next() if @wait is not 0, otherwise as tokend_try_next().
 */
TOKEND_API int tokend_peek(struct tokend *t, struct tokend_batch *batch, int wait);
/* Returns a batch's slot to the daemon. Batches may be released in any order. A second release of a
 * batch has no effect; tokend_why() reports it. */
TOKEND_API void tokend_release(struct tokend *t, const struct tokend_batch *batch);
/* If the daemon died, looks for its successor, so that operators' requests reach this session again
 * while the ring has batches. Waits at most 50 ms. Returns 1 if connected, 0 if not yet. Errors:
 * those of tokend_next(), which returns them again when the ring is empty. */
TOKEND_API int tokend_attend(struct tokend *t);

/* Annotations of the stream's batches: the sum of the bits below. Only tokend_seek() and a new
 * daemon change it. */
enum {
	TOKEND_DOCUMENTS = 1, /* document starts (`documents: true` in the daemon's config) */
	TOKEND_LOSS_MASK = 2, /* a loss mask (`loss_mask: true` there) */
};
TOKEND_API unsigned tokend_annotations(const struct tokend *t);
/* Document starts in row @row of a held batch: [*@count] ascending indices, from 1 on, of the
 * tokens that begin a document in the middle of the window. Valid as long as the tokens. NULL and
 * *@count 0: the stream carries no document starts, or there is no such row. */
TOKEND_API const uint32_t *tokend_documents(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row, uint32_t *count);
/* Loss mask of row @row of a held batch: [window_tokens] bytes, 1 if the token may be a label,
 * otherwise 0, as in padding rows. Valid as long as the tokens. NULL: the stream carries no loss
 * mask, or there is no such row. */
TOKEND_API const uint8_t *tokend_loss_mask(
	const struct tokend *t, const struct tokend_batch *batch, uint32_t row);

/* Converts @n tokens of @token_bytes (2 or 4; other values write nothing) to int64 in @to. */
TOKEND_API void tokend_widen(int64_t *to, const void *tokens, size_t n, uint32_t token_bytes);
/* The same to int32. Returns 0, or EARGUMENT if a token is above INT32_MAX or @token_bytes is not 2
 * or 4; do not use the contents of @to then. */
TOKEND_API TOKEND_CHECKED int tokend_widen_int32(
	int32_t *to, const void *tokens, size_t n, uint32_t token_bytes);
/* The same for tokens 0 to n - 1, to @to, and tokens 1 to n, to @next: inputs and labels in one
 * pass. Reads n + 1 tokens. */
TOKEND_API TOKEND_CHECKED int tokend_widen_pair_int32(
	int32_t *to, int32_t *next, const void *tokens, size_t n, uint32_t token_bytes);

/* ---- the session ---- */

/*
 * Shape of the batches, length of the stream, counters. Only tokend_seek() changes the members from
 * rows to world. Exception: token_bytes grows if a restarted daemon's config has a wider dataset.
 */
struct tokend_shape {
	uint32_t rows, window_tokens, token_bytes, slots;
	uint64_t seq_len;
	uint64_t rank, world;
	uint64_t batches;    /* of this rank from attach or seek to the end, or TOKEND_ENDLESS */
	uint64_t data_bytes; /* of the ring memory that holds the tokens */
	uint64_t lost_wakes; /* waits that timed out although a batch was ready: a bug */
	uint64_t reattached; /* how often a lost daemon was found again */
	uint64_t waited_ns;  /* total time spent waiting in tokend_next() */
};
TOKEND_API void tokend_shape(const struct tokend *t, struct tokend_shape *shape);
/* Name of dataset number @dataset (see tokend_row). NULL: there is none. Valid until the next seek
 * or set_mix. */
TOKEND_API const char *tokend_dataset(const struct tokend *t, uint32_t dataset);
/* Name of the run. The daemon may call an unnamed run "default@UID". Valid until the next call. */
TOKEND_API const char *tokend_run(const struct tokend *t);
/* Path of the daemon's socket; path of the config whose private daemon listens there (NULL: it is
 * not private). The handle owns them. */
TOKEND_API const char *tokend_socket(const struct tokend *t);
TOKEND_API const char *tokend_config(const struct tokend *t);
/* 1 in a child of the process that attached, where calls fail with EFORKED; otherwise 0. */
TOKEND_API int tokend_forked(const struct tokend *t);
/* 1 without a session, after the daemon was lost; otherwise 0. */
TOKEND_API int tokend_lost(const struct tokend *t);

/* ---- position and cursor ---- */

/*
 * Reports that the batch whose `next` is @next, and all before it, were trained on: for trainers
 * that fetch ahead. From the first call on, tokend_cursor() and tokend_checkpoint() use the
 * committed position instead of that of the last batch taken. Call it with the session's first
 * position to say that nothing was trained on yet. Returns 0. Errors: EARGUMENT (@next is before
 * the committed position, after the last batch taken or within a skip, or the record cannot be
 * written), EFORKED.
 */
TOKEND_API int tokend_commit(struct tokend *t, uint64_t next);
/* Writes the cursor after the last batch taken (or committed) to @bytes ([@capacity];
 * TOKEND_CURSOR_BYTES are always enough), and returns its length. All ranks get the same bytes at
 * the same step. Makes no system call. Errors: EMEMORY, EFORKED. */
TOKEND_API int64_t tokend_cursor(const struct tokend *t, void *bytes, size_t capacity);
/* Position of that cursor, in samples. */
TOKEND_API uint64_t tokend_position(const struct tokend *t);
/* Position after the last batch taken, committed or not. */
TOKEND_API uint64_t tokend_taken(const struct tokend *t);
/* Hash of cursor, world and micro-batch. It is equal on all ranks of a job at the same step; if it
 * differs, the ranks read different orders. */
TOKEND_API uint64_t tokend_fingerprint(const struct tokend *t);
/* Hash of the shards' contents as the daemon knew them at the attach, of their side files, and of
 * the stream's eos, vocab, documents and loss_mask. If ranks that attach together have different
 * ones, their nodes have other shards under equal names, or other configs. */
TOKEND_API uint64_t tokend_contents(const struct tokend *t);

/*
 * Makes the daemon store the cursor durably under @tag (1 to 64 bytes, without '/', control
 * characters or a leading dot), and waits until it is stored. Looks for a lost daemon as
 * tokend_next() does. Returns 0; @path (NULL: not wanted) gets the file's path, cut to @path_bytes.
 * Errors: EARGUMENT, EREFUSED (not saved; the tag is as before, or has the new snapshot), ECONNECT,
 * EAGAIN, EFORKED.
 */
TOKEND_API int tokend_checkpoint(struct tokend *t, const char *tag, char *path, size_t path_bytes);

/* ---- moving ---- */

/*
 * Moves to another cursor, rank, world or micro-batch: like detach and attach, in one handle.
 * @cursor ([@cursor_bytes]) NULL: the position after the last batch taken. Batches still held stay
 * valid. Returns 0. Errors: those of tokend_attach(), EFORKED; the handle then stays where it was.
 */
TOKEND_API int tokend_seek(struct tokend *t, const void *cursor, size_t cursor_bytes, uint64_t rank,
	uint64_t world, uint32_t micro_batch);
/* The same, to begin another pass at position 0: after the end of a finite stream, or before. A
 * record (see tokend_record()) notes the new pass; tokend_seek() voids the batches taken. */
TOKEND_API int tokend_seek_pass(struct tokend *t, const void *cursor, size_t cursor_bytes,
	uint64_t rank, uint64_t world, uint32_t micro_batch);
/*
 * Changes the mix: dataset @names[i] gets weight @weights[i] (finite, >= 0), for i < @n; all others
 * get 0. A dataset that the cursor lacks and the daemon's config has is added. All ranks of a job
 * must make the same call at the same step. Batches in the ring are discarded and read again.
 * Batches taken before can still be committed. Returns 0. *@acts_from (NULL: not wanted) is the
 * first position of the new mix: the next multiple of 1024 at or after the last batch taken, and
 * after the start of the mix in force.
 *
 * Errors: EARGUMENT (unknown name, invalid weight, a stream with epochs; more mixes began since the
 * committed position than a cursor holds: commit first), and those of tokend_seek().
 */
TOKEND_API int tokend_set_mix(struct tokend *t, const char *const *names, const double *weights,
	uint32_t n, uint64_t *acts_from);
/* Copies the stream's cursor at position 0, with all datasets that the daemon's config has now, to
 * @cursor ([@capacity]), and returns its length. Errors: ECONNECT, EPROTOCOL, EMEMORY, EREFUSED,
 * EAGAIN, EFORKED. */
TOKEND_API int64_t tokend_stream(struct tokend *t, void *cursor, size_t capacity);

/*
 * ---- cursors as values ----
 *
 * An edit writes the edited cursor to @to, which may be @cursor. No session is needed, and
 * different threads may edit.
 */
enum tokend_edit_kind {
	TOKEND_EDIT_SEEK,   /* moves to position @number */
	TOKEND_EDIT_SKIP,   /* moves forwards by @number samples, which are never served */
	TOKEND_EDIT_REWIND, /* moves back to position @number */
	/* Gives datasets @name[i] the weights @weight[i] from position @number on, a multiple of
	 * 1024; all others get 0. */
	TOKEND_EDIT_MIX,
	TOKEND_EDIT_ADD,    /* appends datasets @name[i] of the cursor @from, without weight */
	TOKEND_EDIT_REMOVE, /* sets the weight of dataset @name[0] to 0 from position @number on */
};
#define TOKEND_SOON UINT64_MAX /* as @number of a mix or remove: the next multiple of 1024 */

struct tokend_edit {
	enum tokend_edit_kind kind;
	const void *cursor; /* [cursor_bytes] */
	size_t cursor_bytes;
	uint64_t number;
	const char *const *name; /* [names] */
	const double *weight;	 /* [names] */
	uint32_t names;
	const void *from; /* [from_bytes] another cursor of the stream, as tokend_stream()'s */
	size_t from_bytes;
	void *to; /* [capacity]; TOKEND_CURSOR_BYTES are always enough */
	size_t capacity;
	char *why; /* [why_bytes] gets one line: field, value, valid values. NULL: not wanted */
	size_t why_bytes;
};
/* Returns the number of bytes written, EARGUMENT or EMEMORY; on failure @to is unchanged. */
TOKEND_API int64_t tokend_cursor_edit(const struct tokend_edit *edit);
/* Writes a cursor as one JSON object, the output of `tokctl cursor show --json`, and returns its
 * length without the 0 that ends it; 4 MiB are always enough. Errors: EARGUMENT, EMEMORY. */
TOKEND_API int64_t tokend_cursor_show(const void *cursor, size_t cursor_bytes, char *json,
	size_t capacity, char *why, size_t why_bytes);
/* The key that the order derives from @seed for @tag and @value (section 2 of the order's
 * specification). A pure function. */
TOKEND_API uint64_t tokend_derive(uint64_t seed, uint64_t tag, uint64_t value);

/*
 * ---- an operator's requests ----
 *
 * `tokctl mix | skip | checkpoint | drain | rescale` leaves a request with the daemon. Each session
 * sees its number. One rank fetches it; after that the operator cannot withdraw it. All ranks carry
 * it out at the same step, and each rank answers. The job decides how its ranks agree on the step.
 */
#define TOKEND_ARGS_BYTES 65536

struct tokend_request {
	uint64_t number; /* unique; 0: no request */
	char kind[16];	 /* "mix", "skip", "checkpoint", "drain", "rescale" */
	/* Lines "KEY VALUE\n": "at 4096", "weight 0.5 web", "samples 100", "tag before",
	 * "world 3", "micro 8". */
	char args[TOKEND_ARGS_BYTES];
};

enum tokend_outcome {
	TOKEND_NOTED = 1, /* this rank has noted it */
	TOKEND_DONE,	  /* carried out, or saved */
	TOKEND_FAILED,	  /* not carried out, nothing was changed */
};

/* Number of the pending request, 0 if there is none. One atomic load. */
TOKEND_API uint64_t tokend_request_number(const struct tokend *t);
/* Fetches the pending request. Returns 0; request->number is 0 if none is pending. Errors:
 * ECONNECT, EPROTOCOL, EAGAIN, EFORKED. */
TOKEND_API int tokend_request(struct tokend *t, struct tokend_request *request);
/*
 * Carries out a mix or a skip: edits the cursor at the last batch taken, and seeks. Batches taken
 * before can still be committed; a skip is committed with the last batch before it. The other kinds
 * ask the trainer to save, and are rejected here, so that a loop without code for them does not
 * answer TOKEND_DONE.
 *
 * Returns 0. *@acts_from (NULL: not wanted) is the first position at which the order differs.
 * Errors: EARGUMENT (invalid edit, mix of a finite stream, another kind or key), and those of
 * tokend_set_mix(); nothing is changed then.
 */
TOKEND_API int tokend_obey(
	struct tokend *t, const char *kind, const char *args, uint64_t *acts_from);
/* Reverts the last tokend_set_mix() or tokend_obey(), for jobs where another rank failed to carry
 * it out. Possible until tokend_answer() with DONE or FAILED, the next call that looks for a batch,
 * or a seek. Needs neither memory nor the daemon. Returns 1, or 0 if there is nothing to revert.
 * Errors: EFORKED, EPROTOCOL. */
TOKEND_API int tokend_undo(struct tokend *t);
/*
 * Reports this rank's outcome of request @number to the operator. @text is one line for people, cut
 * to 1023 bytes. TOKEND_DONE also sends the current cursor and the result of tokend_obey(). Call it
 * before seeking to another rank. Returns 0. Errors: EARGUMENT, EMEMORY, EAGAIN, EFORKED, ECONNECT
 * (the daemon was lost, and the request with it; this call does not look for another one).
 */
TOKEND_API int tokend_answer(
	struct tokend *t, uint64_t number, enum tokend_outcome outcome, const char *text);

/*
 * ---- records ----
 *
 * Appends to file @path, which is created if it does not exist, every batch taken from now on: the
 * session's start, then 16 bytes a row (position, checksum of its tokens). `tokctl verify` reads
 * these files; in a directory, those whose names end in ".record". After the first tokend_commit()
 * a batch is written when it is committed. Each batch is one write, without fsync. Only one process
 * at a time may write a file. NULL ends the record. Returns 0. Errors: EARGUMENT, EMEMORY, EFORKED.
 * If a later write fails, tokend_next() or tokend_commit() returns EARGUMENT and does nothing.
 */
TOKEND_API int tokend_record(struct tokend *t, const char *path);

/*
 * ---- the ring's memory ----
 *
 * For copies to a GPU: register the ring with the CUDA runtime, so that cudaMemcpyAsync() from a
 * batch is asynchronous and fast. Release a batch only when the event after its copy has passed.
 * tests/gpu/gpu_trainer.c is a complete trainer. The library itself loads no CUDA.
 *
 * Sets *@base and *@bytes to the memory of the current ring's slots, whole pages that all `tokens`
 * of its batches point into. Register at most 1 GiB at a time: no slot crosses a multiple of 1 GiB
 * from @base. Call it after each tokend_next(), because a seek or a new daemon brings a new ring.
 *
 * The library calls @gone with @context, @base and @bytes before it unmaps this ring: after a seek
 * or a new daemon, once no batch of it is held, at the latest in tokend_detach(). @gone must wait
 * for all copies from the ring, and unregister it. It is called once, within any call that takes a
 * handle, in the thread of that call, never in a forked child. It must not use the handle.
 *
 * Returns 1 for a new ring; 0 if it is the same as before, and @gone and @context are ignored.
 * Errors: EARGUMENT (no @gone), EFORKED. Makes no system call.
 */
TOKEND_API int tokend_memory(struct tokend *t, void **base, uint64_t *bytes,
	void (*gone)(void *context, void *base, uint64_t bytes), void *context);

#ifdef __cplusplus
}
#endif

#endif
