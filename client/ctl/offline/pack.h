/*
 * `tokctl pack`: the inputs are one row of tokens (pack_in.c), which is cut into files (pack.c).
 * One thread writes one file: its tokens in order, or with --fit rows of documents (pack_fit.c), in
 * the form of its format (pack_out.c). pack_target.c has the files' names, and continues an
 * interrupted run.
 */
#ifndef TOKEND_CTL_PACK_H
#define TOKEND_CTL_PACK_H

#include "client/ctl/offline/shards.h"

/* ---- formats ---- */

enum pack_format { PACK_FLAT, PACK_ZSTD, PACK_MEGATRON, PACK_FORMATS };

struct pack_format_names {
	const char *name;	/* for --format */
	const char *endings[3]; /* an OUT that ends so is one file */
	const char *ending;	/* of the files in a directory */
};

extern const struct pack_format_names pack_formats[PACK_FORMATS];

struct pack_how {
	enum pack_format format;
	uint32_t token_bytes;
	uint32_t row_tokens; /* --fit: documents are packed into rows; 0: tokens stay in order */
	int level;
	uint32_t frame_bytes;
	struct ctl_progress *progress; /* of tokens */
};

struct pack_result {
	uint64_t bytes;	    /* of the file */
	uint64_t documents; /* PACK_MEGATRON, or --fit: of the inputs */
	uint64_t digest;    /* as ctl_digest() */
	uint64_t padding;   /* the rest is of --fit; tokens */
	uint64_t cut;	    /* documents longer than a row */
	uint64_t split;	    /* documents that windows of a row's length would cut without --fit */
};

/* Fills in @fault: a system call on @path failed with @error. Always false. */
bool pack_fail(struct fault *fault, const char *path, int error);

/* ---- the inputs: all shards one after another, as one row of tokens ---- */

/* Contents of a source that the packed file cannot have. */
enum pack_loss {
	PACK_DOCUMENTS, /* document bounds */
	PACK_OUTSIDE,	/* tokens outside all documents */
	PACK_MASK,	/* a loss mask */
	PACK_PADDING,	/* what is padding: it is packed in rows already */
	PACK_LOSSES,
};

/* A shard. */
struct pack_source {
	const struct ctl_place *place;
	uint64_t shard;		/* in the place */
	uint64_t begin, tokens; /* its range of the row */
	uint32_t token_bytes;	/* its own width */
	uint64_t identity; /* hash of facts, and of sizes, times or ETags, of the shard and its side
			      files */
	bool unindexed;	   /* it has no document bounds */
	bool loses[PACK_LOSSES];
};

struct pack_in {
	struct ctl_input input;
	struct stores *stores;	 /* NULL: no input is a URL; the caller's */
	struct ctl_place *place; /* of each path */
	unsigned places;
	bool has_eos;
	uint64_t eos; /* ends a document in formats without document bounds */
	struct pack_source *source;
	size_t sources;
	uint64_t unindexed; /* number of sources without document bounds */
	uint64_t tokens;
	uint32_t token_bytes; /* the largest width of a source */
	uint64_t digest;      /* of the names and identities of all sources */
	struct {
		uint64_t first, sources; /* the first source concerned; the number of them */
	} loss[PACK_LOSSES];
};

/* Lists the shards of the @n paths, and opens each once for its facts. Call pack_in_end() either
 * way. */
bool pack_in_add(struct pack_in *in, char *const *path, int n, struct fault *fault);
void pack_in_end(struct pack_in *in);
/* A source's path as the user would write it. */
void pack_source_path(const struct pack_source *s, char path[PATH_MAX + 1]);
/* Sets *@boundary to the first token from @token on with which a document begins, or to the end of
 * the row. */
bool pack_in_boundary(
	const struct pack_in *in, uint64_t token, uint64_t *boundary, struct fault *fault);

/* Reads the row from one thread. A source is opened when it is read and closed after it: there may
 * be more than a process can have open. It must be the same from the start to the end. */
struct pack_reader {
	const struct pack_in *in;
	const struct pack_source *source; /* the open one; NULL: none */
	struct shard *shard;
	int fd; /* -1: an object */
};

/*
 * Reads tokens [token, token + n) into @to, which has room for n of 4 bytes; then they have
 * how->token_bytes each. Fails for a token that this or the format cannot store. @at NULL, or
 * the ends of documents among them are written there, ascending and relative to @token; it has room
 * for n, and *@count is their number. The end of a source ends a document.
 */
bool pack_read(struct pack_reader *r, const struct pack_how *how, uint64_t token, uint64_t n,
	uint32_t *to, uint32_t *at, uint64_t *count, struct fault *fault);
/* False: the source that is open has changed. */
bool pack_read_end(struct pack_reader *r, struct fault *fault);

/* ---- --fit ---- */

enum {
	PACK_FIT_TOKENS = 1 << 27, /* of a window, if --shards does not say */
	PACK_FIT_MOST = 1 << 28,   /* of all in memory: 1 GiB, and 20 bytes per document */
	PACK_FIT_ROW = 1 << 24,	   /* of a row, at most */
};

/* Tokens of one document. */
struct pack_piece {
	uint32_t from, tokens;
};

struct pack_rows {
	uint32_t row_tokens;
	uint32_t rows, documents, cut; /* cut: documents longer than a row */
	uint32_t *first;	       /* [rows + 1] row r has pieces [first[r], first[r + 1]) */
	struct pack_piece *piece;      /* of each row one after another; owned, as first */
};

/*
 * A window of documents, in memory, that are packed into rows. Each row is filled up with padding,
 * which repeats its last token. The file's list of document bounds, a .csv.gz, leaves the padding
 * out, so a loss mask excludes it.
 */
struct pack_fit {
	struct pack_rows rows;
	uint64_t pieces, padding;
	uint64_t split; /* documents that windows of a row's length would cut without --fit */
	void *tokens;	/* of the window; owned */
	uint32_t token_bytes;
};

/*
 * Reads tokens [begin, end) of the row of inputs, which are whole documents, and packs them.
 * False: @fault. Call pack_fit_end() either way.
 */
bool pack_fit_begin(struct pack_fit *f, struct pack_reader *reader, const struct pack_how *how,
	uint64_t begin, uint64_t end, struct fault *fault);
void pack_fit_end(struct pack_fit *f);
/* Writes the list of the documents' bounds durably to @path. */
bool pack_fit_list(const struct pack_fit *f, const char *path, struct fault *fault);

/* ---- one file ---- */

/*
 * Writes tokens [begin, last), or the rows that --fit packs from them, to @part, which is replaced,
 * and its side file; makes both durable, reads them back and compares. False: both are removed.
 */
bool pack_out(const struct pack_in *in, const struct pack_how *how, uint64_t begin, uint64_t last,
	const char *part, struct pack_result *result, struct fault *fault);
/* Whether files have a side file. Sets @side to that of @path. */
bool pack_side_path(const struct pack_how *how, const char *path, char *side);
/* Removes @part and its side file, if they exist. */
void pack_out_remove(const struct pack_how *how, const char *part);

/* ---- all files ---- */

/*
 * In a directory, an interrupted run is continued. The first line of DIR/.pack identifies inputs
 * and options; each further line is a finished file. A file is written under a dot name and renamed
 * after it was read back. Its line is written before the rename, so a file without a line is
 * someone else's.
 */
struct pack_target {
	const char *path;
	bool single; /* @path is a file */
	const struct pack_how *how;
	uint64_t shards;
	uint64_t digest; /* of inputs and options: a run continues only one with the same */
	int state;	 /* DIR/.pack, locked; -1: not open */
};

struct pack_done {
	bool is;
	struct pack_result result;
};

/* Creates or opens the directory, and sets which shards are @done ([shards]). A single file must
 * not exist yet. Nothing is overwritten. pack_target_close() is needed either way. */
bool pack_target_open(struct pack_target *t, struct pack_done *done, struct fault *fault);
/* Sets @path to the name of shard @i, and @part to its name until it is complete. PATH_MAX each. */
bool pack_target_name(
	const struct pack_target *t, uint64_t i, char *path, char *part, struct fault *fault);
/* Notes that shard @i is complete, and renames it and its side file durably. Any thread. */
bool pack_target_publish(const struct pack_target *t, uint64_t i, const struct pack_result *result,
	struct fault *fault);
/* Removes the state, after all shards are complete. */
bool pack_target_end(const struct pack_target *t, struct fault *fault);
void pack_target_close(struct pack_target *t);

#endif
