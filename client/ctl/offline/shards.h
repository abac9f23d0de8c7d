/*
 * Shards that `tokctl inspect`, `manifest` and `pack` read: where they are (place.c), how they are
 * opened (input.c), and all their tokens (scan.c).
 */
#ifndef TOKEND_CTL_SHARDS_H
#define TOKEND_CTL_SHARDS_H

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/progress.h"
#include "daemon/config/config.h"
#include "daemon/shard/list.h"
#include "daemon/shard/objects.h"
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
/* Does any dataset of the stream have a URL? @stream NULL: of any stream. */
bool ctl_stores_needed(const struct config *config, const char *stream);

/* ---- a place: the shards at one path of the command line ---- */

/*
 * A file, all below a directory, those that match a pattern, or the objects at a URL: a prefix of
 * keys that ends in '/', or one object. Objects are listed by the rules of a walk through a
 * directory (daemon/shard/list.h).
 */
struct ctl_place {
	const char *path;	     /* as given; borrowed */
	struct shard_list list;	     /* links in the root are resolved; a URL has no last '/' */
	uint64_t first, shards;	     /* those of the list that the path means */
	size_t prefix;		     /* a file's path is so many bytes of `path`, and its name */
	struct mds_indexes *indexes; /* that shards share */

	/* in a store */
	bool remote;
	struct objects objects; /* for struct shard_hint; finds those of the list */
	const struct store_bucket *bucket;
	size_t key_bytes;	       /* of the root's key, which begins those of all objects */
	uint64_t sides;		       /* side files, in the list after the shards */
	const struct ctl_place *masks; /* the directory label_mask; or NULL */
};

/*
 * Lists the shards. @p stays where it is. @masks: NULL, or another place in a store, which is kept.
 * @names: NULL, or the sorted names of shards and side files that should be at a URL of a server
 * without listings: it is asked for each, and those that are not there are left out. Shows how many
 * keys were found. False: @fault, which names URL and key but not a file; nothing is to be closed.
 */
bool ctl_place_open(struct ctl_place *p, struct stores *stores, const char *path,
	const struct shard_list *names, const struct ctl_place *masks, struct fault *fault);
void ctl_place_close(struct ctl_place *p);
/* Is @url on a server without listings? */
bool ctl_place_unlisted(const char *url);

/* Shard @i (< shards): its name below the root. */
const char *ctl_place_name(const struct ctl_place *p, uint64_t i);
/* Its path as the user would write it: the place's, or one below it. */
void ctl_place_path(const struct ctl_place *p, uint64_t i, char path[PATH_MAX + 1]);
/* Its path to open: the root's, and the name. */
void ctl_place_file(const struct ctl_place *p, uint64_t i, char path[PATH_MAX + 1]);
/* In a store: the object. Its strings belong to the place. */
struct object ctl_place_object(const struct ctl_place *p, uint64_t i);
/* Could a replaced object with this ETag be noticed? False: @fault. */
bool ctl_place_etag_ok(const char *etag, struct fault *fault);
/* The side files that exist, {"NAME": [SIZE, "ETAG"]} with an ETag in a store: a manifest's member
 * `side`. The caller frees it. */
json_t *ctl_place_sides(const struct ctl_place *p, uint64_t i, const struct shard_format *format);
/* How many threads read all of its shards. */
unsigned ctl_place_threads(const struct ctl_place *p);

/* ---- opening shards, in any format ---- */

/* The options --input-format, --input-dtype and --input-column. */
struct ctl_input {
	const struct shard_format *format; /* NULL: the format that recognises the file */
	struct shard_hint hint;
};

#define CTL_INPUT_FORMAT_OPTION                                                                    \
	{                                                                                          \
		.name = "input-format", .value = "FORMAT",                                         \
		.help = "format of the shards: npy, llmc, datatrove, flat, megatron, mds or "      \
			"arrow; default: auto, recognise each"                                     \
	}
#define CTL_INPUT_DTYPE_OPTION                                                                     \
	{                                                                                          \
		.name = "input-dtype", .value = "DTYPE",                                           \
		.help = "type of a token, for files that do not say: u8, i8, u16, i16, u32, i32, " \
			"u64 or i64; default: u16"                                                 \
	}
#define CTL_INPUT_COLUMN_OPTION                                                                    \
	{                                                                                          \
		.name = "input-column", .value = "NAME",                                           \
		.help = "column of the tokens in mds and arrow shards; default: tokens, then "     \
			"input_ids, then the only one that fits"                                   \
	}

/* Sets *@input from the options numbered @format, @dtype and @column. False: a usage error was
 * printed. */
bool ctl_input_options(struct ctl_input *input, const struct ctl_arguments *a, unsigned format,
	unsigned dtype, unsigned column);
/*
 * Removes from the @n paths side files (an index, a mask, …) of shards that are also named: a shell
 * expands DIRECTORY/[*] to all of them. Returns the number of paths left; -1: out of memory.
 */
int ctl_input_paths(char **path, int n);
/* @input for the shards of the place. */
struct ctl_input ctl_input_at(const struct ctl_place *p, const struct ctl_input *input);
/*
 * Recognises and opens a shard. The caller closes *@fd after the shard, unless it is -1. NULL: the
 * fault does not name the path.
 */
struct shard *ctl_input_open(
	const struct ctl_input *input, const char *path, int *fd, struct fault *fault);
/* Puts @path before the fault's text, unless it begins with it, as a store's faults do. Always
 * false. */
bool ctl_input_fault(const char *path, struct fault *fault);
/* @text without @path, if it begins with it. */
const char *ctl_input_text(const char *path, const char *text);

/* ---- all tokens of a shard ---- */

/* Converts @n tokens of 2 or 4 bytes to another width, or to the same. Returns the index of the
 * first token above @most, or @n. */
uint64_t ctl_convert(const void *from, uint32_t from_bytes, uint64_t n, void *to, uint32_t to_bytes,
	uint64_t most);

/*
 * The digest of tokens that begin with piece @piece. A shard's digest depends only on the tokens'
 * values, not on format or width: it is the sum modulo 2^64, over its pieces of CTL_DIGEST_TOKENS
 * tokens, of the XXH3-64 of the piece as little-endian u32, seeded with the number of the piece.
 */
uint64_t ctl_digest(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece);

struct ctl_scan {
	uint64_t vocab; /* tokens must be below it; 0: no limit */
	bool digests;	/* compute the digest */
	bool masks;	/* count masked tokens; the shard was opened with loss_mask */
	struct ctl_progress *progress; /* of tokens; or NULL */

	/* the result */
	uint64_t digest;
	uint64_t most;		       /* the largest token */
	uint64_t masked;	       /* number of tokens that may not be labels */
	uint64_t beyond, beyond_value; /* index and value of the first token not below vocab;
					  SHARD_UNKNOWN: none */
};

/* Reads them in order, up to the first that cannot be read: false, and @fault. */
bool ctl_scan(struct ctl_scan *scan, const struct shard *shard, struct fault *fault);

#endif
