/*
 * Shards that `tokctl inspect` and `tokctl pack` read: how they are named and opened (input.c), the
 * objects below a prefix of a store (listing.c), all tokens of a shard (scan.c), and manifests that
 * list them (manifest.c).
 */
#ifndef TOKEND_CTL_SHARDS_H
#define TOKEND_CTL_SHARDS_H

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/file.h"
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

/* ---- the shards and side files below a prefix of a store ---- */

/* From a listing of its keys, by the rules of a walk through a directory (daemon/shard/list.h). */
struct ctl_listing {
	struct objects objects; /* for struct shard_hint; finds those of the listing */
	const struct store_bucket *bucket;
	struct shard_list
		list; /* shards, then `sides` side files; root: a URL without a last '/' */
	uint64_t sides;
	size_t key_bytes;		 /* of the root's key, which begins those of all objects */
	uint64_t file, files;		 /* the shards that the URL means */
	struct ctl_listing_side *side;	 /* [sides], by owner */
	const struct ctl_listing *masks; /* the directory label_mask; or NULL */
};

/*
 * Lists the shards at @url: a prefix that ends in '/', or one object. @masks is kept, or NULL.
 * Shows how many keys were found. @l stays where it is. False: @fault, which names URL and key;
 * nothing is to be closed then.
 */
bool ctl_listing_open(struct ctl_listing *l, struct stores *stores, const char *url,
	const struct ctl_listing *masks, struct fault *fault);
/*
 * The same for @url, a directory of a server that has no listings: asks for each of @names, the
 * shards and side files that should be there. Those that are not there are left out.
 */
bool ctl_listing_ask(struct ctl_listing *l, struct stores *stores, const char *url,
	const struct shard_list *names, struct fault *fault);
void ctl_listing_close(struct ctl_listing *l);
/* The object with number @i, a shard or a side file. Its strings belong to the listing. */
struct object ctl_listing_object(const struct ctl_listing *l, uint64_t i);
/* Is @url on a server that has no listings? */
bool ctl_listing_none(const char *url);
/* Can an object with this ETag be listed in a manifest? False: @fault. */
bool ctl_listing_etag_ok(const char *etag, struct fault *fault);
/* The side files of a shard, with size and ETag: a manifest's member `side`. The caller frees it.
 */
json_t *ctl_listing_sides(const struct ctl_listing *l, uint64_t shard);

/* ---- shards named on the command line, in any format ---- */

/* The options --input-format, --input-dtype and --input-column. */
struct ctl_input {
	const struct shard_format *format; /* NULL: the format that recognises the file */
	struct shard_hint hint;
	const char *name; /* the shard's name in its dataset, a suffix of its path, if the hint has
			     a label_mask; otherwise NULL */
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
 * Removes from the @n paths side files (an index, a mask, …) of shards that are also named or are
 * in a directory that is: a shell expands DIRECTORY/[*] to all of them. Returns the number of paths
 * left; -1: out of memory.
 */
int ctl_input_paths(char **path, int n);
/* @path with links resolved; for a pattern, the directory below which it matches. The caller frees
 * it. NULL: it does not exist. */
char *ctl_input_real(const char *path);
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

/* The shards at one path of the command line: a file, all below a directory, those that match a
 * pattern, or the objects at a URL. */
struct ctl_place {
	const char *path; /* as given; borrowed */
	bool remote;	  /* a URL: the shards are those of @listing */
	struct ctl_listing listing;
	struct shard_list list; /* of files */
	size_t prefix;		/* their names continue so many bytes of the path */
	struct cache *cache;	/* of files that shards share */
	uint64_t shards;
};

/*
 * Lists the shards. @p stays where it is; it is empty, or another place that was closed, whose
 * cache is used again if the directory is the same. @names: NULL, or as ctl_listing_ask(); @masks:
 * as ctl_listing_open(). False: @fault, which does not name the path.
 */
bool ctl_place_open(struct ctl_place *p, struct stores *stores, const char *path,
	const struct shard_list *names, const struct ctl_listing *masks, struct fault *fault);
/* Keeps the cache, which cache_free() frees. */
void ctl_place_close(struct ctl_place *p);
/* Shard @i relative to the place, as in a manifest. */
const char *ctl_place_name(const struct ctl_place *p, uint64_t i);
/* Writes its path as the user would write it: the place's, or one below it. */
void ctl_place_path(const struct ctl_place *p, uint64_t i, char path[PATH_MAX + 1]);
/* How many threads read its shards. */
unsigned ctl_place_threads(const struct ctl_place *p);
/* @input for the shards of the place. */
struct ctl_input ctl_place_input(const struct ctl_place *p, const struct ctl_input *input);

/* ---- all tokens of a shard ---- */

/* Converts @n tokens of 2 or 4 bytes to another width, or to the same. Returns the index of the
 * first token above @most, or @n. */
uint64_t ctl_convert(const void *from, uint32_t from_bytes, uint64_t n, void *to, uint32_t to_bytes,
	uint64_t most);

/*
 * The digest of one piece. A shard's digest depends only on the tokens' values, not on format or
 * width: it is the sum modulo 2^64, over its pieces of CTL_DIGEST_TOKENS tokens, of the XXH3-64 of
 * the piece as little-endian u32, seeded with the number of the piece.
 */
uint64_t ctl_digest_piece(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece);

struct ctl_scan {
	const struct shard *shard;
	uint64_t piece_tokens; /* per piece of the digest */
	unsigned threads;
	bool whole;	/* a piece is one read: for a store. Otherwise some that fit a cache */
	uint64_t vocab; /* tokens must be below it; 0: no limit */
	bool digests;	/* compute the digest */
	bool masks;	/* count masked tokens; the shard was opened with loss_mask */
	struct ctl_progress *progress;

	/* the result */
	uint64_t digest;	       /* valid if all reads succeeded */
	uint64_t most;		       /* the largest token */
	uint64_t masked;	       /* number of tokens that may not be labels */
	uint64_t beyond, beyond_value; /* index and value of the first token not below vocab;
					  SHARD_UNKNOWN: none */
	uint64_t failures;	       /* number of failed reads */
	uint64_t failed_token;	       /* first token of the first failed read */
	struct fault failed;	       /* fault of that read */
};

/* Reads them. False: out of memory. All other faults are in the result. */
bool ctl_scan(struct ctl_scan *scan);

/* ---- manifests (daemon/catalog/manifest.h) ---- */

struct ctl_manifest {
	struct ctl_file file;
	char last[PATH_MAX]; /* name */
};

struct ctl_manifest_line {
	const char *name; /* relative to the directory of the shards, and sorted after the last */
	const char *format;
	const struct shard_facts *facts;
	uint64_t size; /* of the file, in bytes */
	bool has_digest;
	uint64_t digest;
	const char *etag;		   /* of an object; otherwise NULL */
	const char *path;		   /* of a file, to find its side files; or NULL */
	const struct ctl_listing *listing; /* it has the side files of an object; or NULL */
	uint64_t shard;			   /* its number in the listing */
};

/* False: it cannot be listed; the fault has no file name. */
bool ctl_manifest_add(
	struct ctl_manifest *m, const struct ctl_manifest_line *line, struct fault *fault);
/* Adds a line of another manifest, with etag and side files of @line. @from: its object, of which
 * those members are dropped. */
bool ctl_manifest_copy(struct ctl_manifest *m, json_t *from, const struct ctl_manifest_line *line,
	struct fault *fault);

#endif
