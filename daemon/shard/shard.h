/*
 * Opens a file of any format, and reads its tokens.
 *
 * Most shards are *plain*: their tokens are contiguous, in a width that can be served. The daemon
 * reads them straight into the ring, and also windows of other shards that shard_try() finds to be
 * stored as they are served. Other tokens are gathered and converted to the served width: by
 * shard_try() if the bytes are already in memory, otherwise by shard_read() in a pool thread.
 */
#ifndef TOKEND_SHARD_H
#define TOKEND_SHARD_H

#include "daemon/shard/format.h"

/* An open shard. */
struct shard {
	const struct shard_format *format;
	struct shard_facts facts;
	struct bytes *bytes; /* owned */
	struct bytes *index; /* owned; its index, or NULL */
	struct map map;	     /* of formats with an index, or of a list of document bounds */
	struct bytes *mask;  /* owned; loss mask, or NULL */
};

/*
 * The width in bytes in which tokens of @type are served: 2 for types of 1 or 2 bytes, otherwise 4.
 * 8-byte tokens are served in the config's dtype if it is set. At least hint->token_bytes.
 */
uint32_t shard_served(enum shard_type type, const struct shard_hint *hint);
/* Are tokens of @type stored as they are served in so many bytes? Of i32 tokens, the reader checks
 * that none is negative. */
bool shard_as_served(enum shard_type type, uint32_t token_bytes);
/* The length of a sample; 0: windows are cut anywhere. Rows as long as a window are samples. */
uint64_t shard_sample(const struct shard_facts *facts, const struct shard_hint *hint);

/*
 * Opens the shard in the file @fd, which the caller closes after it; if that is -1, in the file at
 * @path, or with hint->objects the object at that URL. Its format is recognised if @format is NULL.
 * Unless @whole, it takes only a few reads, and the shard is good for its facts only. NULL: @fault,
 * without the path; FAULT_DATA: the file is wrong.
 */
struct shard *shard_open(const struct shard_format *format, const char *path, int fd,
	const struct shard_hint *hint, bool whole, struct fault *fault);
void shard_close(struct shard *shard);

/*
 * Reads tokens [token, token + n) into @to, in the served width and native byte order. Any thread;
 * several at once. False: @fault, without the path. FAULT_TOKEN: a token is negative or does not
 * fit the served width; FAULT_DATA: the file is damaged; FAULT_ARGUMENT: out of range.
 */
bool shard_read(
	const struct shard *shard, uint64_t token, uint64_t n, void *to, struct fault *fault);
/*
 * For threads that must not block. True: the tokens are at @to, and place->byte is SHARD_UNKNOWN;
 * or they are stored as they are served at @place, unless that is NULL. Then the caller may read
 * them, and must compare the header; if it is another, shard_read() says what is wrong. Either way
 * it must check i32 for negative ones. False: as bytes_read() without a fault.
 */
struct shard_place {
	uint64_t byte;	       /* of the file: the first token */
	unsigned header_bytes; /* of what must be right before it: */
	uint8_t header[SHARD_HEADER_MOST];
};
bool shard_try(
	const struct shard *shard, uint64_t token, uint64_t n, void *to, struct shard_place *place);
/* Writes the document boundaries b with token < b < token + n to @at, ascending, as offsets from
 * @token, at most @max of them. Returns their number. The hint must have had documents set. */
uint32_t shard_documents(
	const struct shard *shard, uint64_t token, uint64_t n, uint32_t *at, uint32_t max);
/* Returns the next document boundary after @token (< facts.tokens), at most facts.tokens. */
uint64_t shard_boundary(const struct shard *shard, uint64_t token);
/* Writes a byte for each of tokens [token, token + n): 1 if it may be a label, 0 if the mask
 * excludes it or it is not in a document. The hint must have had loss_mask set. */
bool shard_loss_mask(
	const struct shard *shard, uint64_t token, uint64_t n, uint8_t *to, struct fault *fault);

/* ---- samples (guess.c) ---- */

/*
 * 64 KiB of a shard: eight places spread over it, or the beginning if its compressed frames are
 * large. A flat file does not state its type, and may be anything. But ids at even and at odd
 * places are alike; the high byte of u16 varies less than the low one, unlike in text, compressed
 * or big-endian data; and few are negative, unlike in floats. Distributions tell, not single
 * values.
 */
enum { SAMPLE_PLACES = 8, SAMPLE_PLACE_TOKENS = 4096 };

enum sample_kind {
	SAMPLE_FINE,
	SAMPLE_DOUBT,	/* perhaps not meant to be served */
	SAMPLE_FOREIGN, /* of a shard that does not state its type: not tokens */
	SAMPLE_WIDE,	/* likewise: tokens of another type */
};

struct sample {
	unsigned each; /* tokens of a place; the last one may have fewer */
	uint64_t step; /* from the beginning of one place to the next; a multiple of 4 */
	unsigned n;
	uint32_t value[SAMPLE_PLACES * SAMPLE_PLACE_TOKENS]; /* of all places, one after another */
	enum sample_kind kind;
	char text[224]; /* unless it is fine: "looks like u32 (…); set dtype: u32" */
};

/* NULL: @fault, as shard_read(). Free it with free(). */
struct sample *sample_read(const struct shard *shard, struct fault *fault);
/* The number of its token @i in the shard. */
uint64_t sample_token(const struct sample *sample, unsigned i);

/* ---- lists of shards (list.c) ---- */

/* Begins the names of what tokctl pack and tokenize are writing; the last shard ends it. */
#define SHARD_UNFINISHED ".part-"
/* The sorted names of shards: four bytes and the text for each, of which there may be millions. */
struct shard_list {
	char *root; /* absolute, or a URL; the directory, a file's parent, or the directory before a
		       pattern's first wildcard */
	char *paths;  /* relative to root, each ends with a NUL */
	uint32_t *at; /* [count] offsets into paths, sorted by name as strcmp() does */
	uint64_t count;
	size_t bytes; /* used in paths */
	size_t paths_room, at_room;
	bool unfinished; /* a SHARD_UNFINISHED file was seen on the way */
};

/*
 * Lists the shards at @path, which is absolute: a file, a directory (read recursively) or a pattern
 * (`*`, `?`, `[…]`) that may match both. Links are followed; names that begin with a dot are
 * skipped, and so are side files of shards in the list. A side file without its shard is a fault,
 * an empty list is not. False: @list is empty; @fault gives the path.
 */
bool shard_list_read(struct shard_list *list, const char *path, struct fault *fault);
/* Appends a name, with @before right before it, and @n bytes @after right after its zero. False:
 * out of memory, or the names exceed 4 GiB in total. */
bool shard_list_add_between(struct shard_list *list, const char *before, const char *name,
	const void *after, size_t n, struct fault *fault);
#define shard_list_add(list, name, fault) shard_list_add_between(list, "", name, NULL, 0, fault)
/* Sorts the list after additions. */
void shard_list_sort(struct shard_list *list);
/* Sorts the names that were added to a list with a root, and moves side files to the names [count,
 * count + *@sides). False: @fault, as shard_list_read(). */
bool shard_list_split(struct shard_list *list, uint64_t *sides, struct fault *fault);
/* "data-00000-of-00002.arrow" is one of two. Returns how many there are, the length of what their
 * names share, and what follows the numbers; 0: the name does not say so. */
uint64_t shard_parts(const char *name, size_t *shared, char **after);
/* The kind of each file of a sorted list, by its name. NULL: out of memory. Free it with free(). */
enum { LIST_SHARD, LIST_ORPHAN /* a side file without its shard */, LIST_SIDE };
uint8_t *shard_list_mark(const struct shard_list *list);
void shard_list_free(struct shard_list *list);
const char *shard_list_name(const struct shard_list *list, uint64_t file);
/* Index of the file called @name, or -1. */
int64_t shard_list_find(const struct shard_list *list, const char *name);
/* Writes the file's absolute path to @path. False: it does not fit, and @path is "". */
bool shard_list_path(const struct shard_list *list, uint64_t file, char *path, size_t path_bytes);

#endif
