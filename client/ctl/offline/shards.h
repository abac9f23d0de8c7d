/* Shards that `tokctl inspect`, `manifest` and `pack` read: where they are (location.c), how they
 * are opened, and all their tokens (input.c). */
#ifndef TOKEND_CTL_SHARDS_H
#define TOKEND_CTL_SHARDS_H

#include "client/ctl/common/ctl.h"
#include "daemon/catalog/catalog.h"
#include "daemon/config/config.h"
#include "daemon/shard/bytes.h"
#include "daemon/shard/shard.h"
#include "daemon/store/store.h"
#include "proto/fault.h"

#include <jansson.h>
#include <limits.h>

enum {
	CTL_GETS = 64,		     /* reads of a store that a tool makes at once */
	CTL_DIGEST_TOKENS = 1 << 20, /* per piece of the digest */
};

/* ---- stores: a tool waits for a fault that can heal, but not for ever ---- */

/* @config may be NULL: only the environment says where stores are. It outlives the stores. NULL:
 * @fault. */
struct stores *ctl_stores_open(const struct config *config, struct fault *fault);

/* ---- a place: the shards at one path of the command line ---- */

/*
 * A file, all below a directory, those that match a pattern, or the objects at a URL: a prefix of
 * keys that ends in '/', or one object, which is asked for with its side files. Objects are listed
 * by the rules of a walk through a directory (daemon/shard/shard.h).
 */
struct ctl_place {
	const char *path; /* as given; borrowed */
	size_t prefix;	  /* a file's path is so many bytes of `path`, and its name */
	/* Its list, of which links in the root are resolved, and hint.indexes. In a store also what
	 * dataset_object() and `finder` need: bucket, sizes, ETags, side files. */
	struct dataset set;
	const char *masks; /* the URL of the directory label_mask; borrowed; or NULL */
};

/*
 * Lists the shards. @p stays where it is. @masks: NULL, or the URL of their label_mask. @names:
 * NULL, or for a server without listings the sorted names of shards and side files to ask for, some
 * of them repeated; those that are not there are left out. False: @fault, which names URL and key
 * but not a file. Only after true the caller closes p->set.
 */
bool ctl_place_open(struct ctl_place *p, struct stores *stores, const char *path,
	const struct shard_list *names, const char *masks, struct fault *fault);

/* The path of shard @i as the user would write it: the place's, or one below it. Returns @path. */
const char *ctl_place_path(const struct ctl_place *p, uint64_t i, char path[PATH_MAX + 1]);
/* Would it be noticed if the shard was replaced? An object needs an ETag. False: @fault. */
bool ctl_place_pinned(const struct ctl_place *p, uint64_t i, struct fault *fault);
/* The side files that exist, {"NAME": [SIZE, "ETAG"]} with an ETag in a store: a manifest's member
 * `side`. The caller frees it. NULL: @fault. */
json_t *ctl_place_sides(const struct ctl_place *p, uint64_t i, struct fault *fault);
/* How many threads read all of its shards. */
unsigned ctl_place_threads(const struct ctl_place *p);

/* ---- opening shards, in any format ---- */

/* The options --config, --input-format, --input-dtype and --input-column. */
struct ctl_input {
	const struct shard_format *format; /* NULL: the format that recognises the file */
	struct shard_hint hint;
	struct config *config; /* NULL: none */
	struct stores *stores;
};

#define CTL_INPUT_FORMAT_OPTION                                                                    \
	OPTION_CHOICE("input-format", "auto|" SHARD_FORMATS,                                       \
		"format of the shards; default: auto, recognise each")
#define CTL_INPUT_DTYPE_OPTION                                                                     \
	OPTION_CHOICE("input-dtype", "u8|i8|u16|i16|u32|i32|u64|i64",                              \
		"type of a token, for files that do not say; default: u16")
#define CTL_INPUT_COLUMN_OPTION                                                                    \
	OPTION_TEXT("input-column", "NAME",                                                        \
		"column of the tokens in mds and arrow shards; default: tokens, then input_ids, "  \
		"then the only one that fits")

/*
 * Takes the options, and opens config and stores. The first *@n arguments are paths of shards. Side
 * files (an index, a mask, …) of shards that are also named are removed from them: a shell expands
 * DIRECTORY/[*] to all of them. Returns an exit status. The caller closes input->stores either way;
 * the rest lasts until the process ends.
 */
int ctl_input_begin(struct ctl_input *input, const struct ctl_arguments *a, int *n);
/* @input for the shards of the place. */
struct ctl_input ctl_input_at(const struct ctl_place *p, const struct ctl_input *input);
/* @text without @path, if it begins with it. */
const char *ctl_input_text(const char *path, const char *text);

/* ---- all tokens of a shard ---- */

/*
 * The digest of tokens that begin with piece @piece. A shard's digest depends only on the tokens'
 * values, not on format or width: it is the sum modulo 2^64, over its pieces of CTL_DIGEST_TOKENS
 * tokens, of the XXH3-64 of the piece as little-endian u32, seeded with the number of the piece.
 */
uint64_t ctl_digest(const uint32_t *tokens, uint64_t n, uint64_t piece);

struct ctl_scan {
	uint64_t vocab; /* tokens must be below it; 0: no limit */
	bool digests;	/* compute the digest */
	bool masks;	/* count masked tokens; the shard was opened with loss_mask */
	bool progress;	/* is made, in tokens */

	/* the result */
	uint64_t digest;
	uint64_t most;		       /* the largest token */
	uint64_t masked;	       /* number of tokens that may not be labels */
	uint64_t beyond, beyond_value; /* index and value of the first token not below vocab;
					  SHARD_UNKNOWN: none */
};

/* Reads them in order, up to the first that cannot be read: false, and @fault. */
bool ctl_scan(struct ctl_scan *scan, const struct shard *shard, struct fault *fault);

/* ---- pack ---- */

/*
 * `tokctl pack`: the inputs are one row of tokens (pack_in.c), which is cut into files
 * (cmd_pack.c). One thread writes one file: its tokens in order, or with --fit rows of documents,
 * in the form of its format (pack_out.c).
 */
enum pack_format { PACK_FLAT, PACK_ZSTD, PACK_MEGATRON };

/* Traits of sources. The packed file cannot have the last four. */
enum pack_trait {
	PACK_UNINDEXED, /* no document bounds */
	PACK_DOCUMENTS, /* document bounds */
	PACK_OUTSIDE,	/* tokens outside all documents */
	PACK_MASK,	/* a loss mask */
	PACK_PADDING,	/* what is padding: it is packed in rows already */
	PACK_TRAITS,
};

/* A shard that is read. It must be the same from the start to the end. */
struct pack_source {
	const struct ctl_place *place;
	uint64_t shard;		/* in the place */
	uint64_t begin, tokens; /* its range of the row */
	uint32_t token_bytes;	/* its own width */
	uint64_t sample_tokens; /* of a format that mixes rows; 0: they differ; SHARD_UNKNOWN */
	uint64_t identity;	/* hash of what tells whether it or a side file was replaced */
	bool has[PACK_TRAITS];
};

/* A file that is written. */
struct pack_file {
	char *path;
	const struct pack_source *source; /* in which its tokens begin */
	uint64_t begin, end;		  /* those of the inputs */

	/* the result */
	uint64_t bytes;	    /* of the file; 0: it is not there yet */
	uint64_t documents; /* of the inputs, if they are kept */
	uint64_t digest;    /* as ctl_digest() */
	uint64_t padding;   /* the rest is of --fit; tokens */
	uint64_t cut;	    /* documents longer than a row */
	uint64_t split;	    /* documents that windows of a row's length would cut without --fit */
};

struct pack {
	struct ctl_input input;
	struct ctl_place *place; /* of each path */
	unsigned places;
	unsigned threads; /* that read them */
	json_t *seen;	  /* the place of each file or object */
	uint64_t twice;	  /* of them, that are in a place twice */
	struct pack_source *source;
	size_t sources;
	const struct pack_source *first[PACK_TRAITS]; /* that has it; NULL: none */
	uint64_t tokens;
	_Atomic bool noted; /* a remark on one of them, as on a column that is not used */
	bool has_eos;
	uint64_t eos; /* ends a document in formats without document bounds */

	const char *out;
	bool single; /* it is a file */
	enum pack_format format;
	uint32_t token_bytes;
	uint32_t row_tokens; /* --fit: documents are packed into rows; 0: tokens stay in order */
	int level;
	uint32_t frame_bytes;
	struct pack_file *file;
	uint64_t files; /* at first those that --shards asks for, or 0 */
	bool writes;	/* all that were there have been compared */
	struct emit emit;
};

/* Files are cut between documents, and say where those are. */
static inline bool pack_keeps_documents(const struct pack *p)
{
	return p->format == PACK_MEGATRON || p->row_tokens;
}

/* Lists the shards of the @n paths, and opens each once for its facts. */
bool pack_find_sources(struct pack *p, char *const *path, int n, struct fault *fault);
/* Gets tokens, and if files keep documents, where @ends of them end, relative to the first token
 * and ascending. The end of a source ends a document. */
typedef bool pack_take(void *context, const uint32_t *tokens, uint64_t n, const uint32_t *end,
	uint64_t ends, struct fault *fault);
/* Passes on tokens [begin, end) in order; they begin in @s or after it. Fails for a token that the
 * width or the format cannot store, or if @take returns false. Any thread. */
bool pack_read(const struct pack *p, const struct pack_source *s, uint64_t begin, uint64_t end,
	pack_take *take, void *context, struct fault *fault);

enum {
	PACK_FIT_TOKENS = 1 << 27, /* of a file, if --shards does not say */
	PACK_FIT_MOST = 1 << 28,   /* of all in memory: 1 GiB, and 40 bytes per document */
	PACK_FIT_ROW = 1 << 24,	   /* of a row, at most */
};

/*
 * Writes a file, and a side file if there is one, under names that begin with SHARD_UNFINISHED;
 * makes both durable, reads them back, compares, and gives them their names. A file that is there
 * already must have what would be written, and stays. Fills the result. Any thread.
 */
bool pack_write(struct pack *p, struct pack_file *f, struct fault *fault);
/* Whether files have a side file. Sets @side to that of @path. */
bool pack_side_path(const struct pack *p, const char *path, char side[PATH_MAX]);
/* Fills in @fault: a system call on @path failed with @error. Always false. */
bool pack_fail(struct fault *fault, const char *path, int error);

#endif
