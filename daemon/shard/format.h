/*
 * The interface of a shard format. A format recognises its shards, and reads from their headers and
 * indexes what they hold and where.
 *
 * Headers are untrusted. Compare every count and offset with the size of the file before using it,
 * and allocate memory in proportion to the file, never to a number read from it. Shards are read,
 * never mapped. All functions block.
 *
 * A new format is one file with recognise() and scan(), a row in sides.c for each kind of its side
 * files, and what ARCHITECTURE.md lists. Compression, widths, the config, `inspect` and the input
 * of `pack` then work.
 */
#ifndef TOKEND_SHARD_FORMAT_H
#define TOKEND_SHARD_FORMAT_H

#include "daemon/shard/bytes.h"

#include <jansson.h>
#include <limits.h>

/* ---- tokens (tokens.c): the types that they are stored in, and their conversion ---- */

enum shard_type { /* in this order: shard_type_bytes() and shard_type_signed() rely on it */
	SHARD_U8,
	SHARD_I8,
	SHARD_U16,
	SHARD_I16,
	SHARD_U32,
	SHARD_I32,
	SHARD_U64,
	SHARD_I64
};

/* The width of a token in bytes: 1, 2, 4 or 8. */
static inline uint32_t shard_type_bytes(enum shard_type type)
{
	return UINT32_C(1) << (type / 2);
}

static inline bool shard_type_signed(enum shard_type type)
{
	return type % 2 == 1;
}

const char *shard_type_name(enum shard_type type); /* "u16" */
/* Sets *@type to the type called @name. Returns false if there is none. */
bool shard_type(const char *name, enum shard_type *type);

/*
 * Converts @n tokens of @type at @from, which need not be aligned, to @token_bytes (2 or 4) each at
 * @to. Returns false if a token does not fit; @to may have been written to.
 */
bool convert_tokens(
	enum shard_type type, uint32_t token_bytes, const void *from, uint64_t n, void *to);

/* Searches for ids that are too large, in the served width of @token_bytes (2 or 4). Another
 * process may write to the tokens, so loops end by their number, never by their values. */

/* The largest of @n tokens; 0 if @n is 0. */
uint32_t tokens_most(const void *tokens, uint64_t n, uint32_t token_bytes);
/* The index of the first of @n tokens that is above @most, or @n if there is none. */
uint64_t tokens_first_above(const void *tokens, uint64_t n, uint32_t token_bytes, uint32_t most);
uint32_t tokens_value(const void *tokens, uint64_t i, uint32_t token_bytes);

/* ---- what a shard holds ---- */

#define SHARD_UNKNOWN UINT64_MAX

/* What the caller wants, and what the config says about files without a header. */
struct shard_hint {
	enum shard_type type; /* of flat files: SHARD_U16 or SHARD_U32 */
	bool has_type;	    /* the config sets dtype; 8-byte tokens are then served in its width */
	const char *column; /* of MDS and Arrow; NULL: "tokens", "input_ids" or the only one */
	uint32_t token_bytes;	/* least width of served tokens: 2 or 4; 0: their own width */
	uint64_t window_tokens; /* seq_len + extra; 0: no windows are read (inspect) */
	bool joined;		/* the dataset's samples are joined; see mixes_rows */
	const struct objects *objects; /* shards are objects in a store; NULL: files */
	struct frames *frames;	       /* cache of decoded frames, or NULL */
	uint64_t budget_bytes;	       /* largest size of a decoded frame; 0: 256 MiB */
	struct mds_indexes *indexes;   /* the dataset's; NULL: shards are not compared with them */
	bool documents, loss_mask;     /* are requested: look for their side files */
	const char *label_mask;	       /* directory of masks, each with its shard's name; or NULL */
	size_t root_bytes; /* with label_mask: length of the path before the shard's name */
};

struct shard_facts {
	enum shard_type type; /* as stored */
	uint32_t token_bytes; /* as served: 2 or 4; see shard_served() */
	uint64_t tokens;
	uint64_t documents;	/* SHARD_UNKNOWN: the format keeps no index */
	uint64_t sample_tokens; /* > 0: length of each sample; a window is a sample */
	bool believed;		/* the config gives the type, although the format can state it */
	uint64_t row_tokens; /* > 0: length of each row; rows are samples if a window is as long */
	uint64_t padding; /* of samples that `tokctl pack --fit` made: tokens outside documents */
	/* Token t is at byte data_at + t·token_bytes of the file, as u16, u32 or i32. Of Megatron,
	 * it is known when the shard is opened. */
	bool plain;
	uint64_t data_at;     /* of plain shards */
	uint64_t frame_bytes; /* > 0: compressed; the most bytes to decode for one token */
	uint64_t index_bytes; /* memory of an open shard */
	/* bytes_id() of each side file, 0: none. */
	uint64_t index;	 /* the format's own */
	uint64_t bounds; /* the list of document bounds, if the hint asks for it */
	uint64_t mask;	 /* the loss mask, if the hint asks for it */
	char column[64]; /* that holds the tokens; "": the format has no columns */
	char note[160];	 /* "", or a remark for users ("multimodal modes are ignored") */
};

struct map;
struct mds_indexes;

/* Side files that are read with a shard. */
enum side_kind { SIDE_OTHER, SIDE_INDEX, SIDE_BOUNDS, SIDE_MASK };

/* A shard that is described or opened. */
struct shard_scan {
	const struct bytes *b, *index; /* index: the open side file, or NULL */
	const struct shard_hint *hint;
	struct shard_facts *facts;
	struct map *map; /* counts: it is only described */
	struct fault *fault;
};

struct shard_format {
	const char *name;   /* as in the config's `format:` */
	const char *ending; /* of its shards' names, or NULL */
	/* By its first bytes or side files, or NULL. Cheap; scan() finds damage. */
	bool (*recognise)(const struct bytes *b);
	bool raw; /* a shard has only tokens, so its content must be checked */
	/*
	 * Fills the facts. On entry documents is SHARD_UNKNOWN, plain is true, and the rest is 0.
	 * An indexed format adds a span for each document to the map, which tells how many tokens
	 * there are, and whether they are plain. If the map only counts, few reads are better than
	 * all spans; otherwise all that tells where tokens are is read and checked. False: s->fault
	 * gives field, value and limit; FAULT_DATA: the file is wrong.
	 */
	bool (*scan)(const struct shard_scan *s);
	/* Its shards say where tokens and documents are, and a .csv.gz is ignored. Tokens of other
	 * formats are contiguous from data_at on. */
	bool indexed;
	/* Samples are joined unless those of all shards of a dataset are as long as a window. */
	bool mixes_rows;
};

extern const struct shard_format shard_flat, shard_npy, shard_llmc, shard_megatron, shard_datatrove,
	shard_mds, shard_arrow;

/* ---- the table of formats (formats.c) ---- */

/* In the order in which they are tried; the last is NULL. */
extern const struct shard_format *const shard_formats[];
/* The format called @name, or NULL. "auto" is not a format. */
const struct shard_format *shard_format(const char *name);
#define SHARD_FORMATS "megatron|npy|llmc|arrow|datatrove|mds|flat" /* for messages and options */
/* The format of an open file, or @format, unless it is foreign as tokens of @type. NULL: @fault. */
const struct shard_format *shard_recognise(const struct bytes *b, const struct shard_format *format,
	enum shard_type type, struct fault *fault);

/* The columns of a shard: which of them has the tokens. */
struct columns {
	const char *wanted; /* the config's; NULL: "tokens", "input_ids" or the only one */
	unsigned best;	/* 3 and 2: the best so far is called so; 1: otherwise; 0: there is none */
	unsigned times; /* so many are as good: there must be one */
	const char *mask; /* one that excludes padding or prompts; or NULL */
};

/* Takes the next column. Is it better than those before? */
bool columns_take(struct columns *columns, const char *name);
/* Notes that a mask among them is not read. */
void columns_doubt(const struct columns *columns, const struct shard_scan *s);

/* ---- files that are not shards (foreign.c) ---- */

/* By its first bytes, whatever the config says: "a Parquet file", or "an RAR archive; unpack it";
 * NULL: unknown content, perhaps tokens. */
const char *foreign_kind(const struct bytes *b);
/* Of a file that is to be read as tokens of @type without a header: also a shard with one. */
const char *foreign_to_plain(const struct bytes *b, enum shard_type type);

/* ---- JSON, with jansson (json.c) ---- */

/*
 * Parses one object, which must end with the text. Rejects duplicate keys, NUL and more than 2,048
 * levels. The caller frees it. NULL: @fault; of FAULT_DATA, syntax errors give the byte.
 */
json_t *json_object_of(const char *text, size_t n, struct fault *fault);
/* The type of a value, for messages: "null", "a string", … NULL: "missing". */
const char *json_kind(const json_t *value);

/* ---- where tokens are (map.c) ---- */

/* Spans of contiguous tokens, in the order in which they are served: documents, and gaps between
 * them. Takes about three bytes a span, or twice as much where one does not follow the last. */
struct map_anchor;

struct map {
	uint32_t width;	   /* of a token in the file, in bytes; set it before the first span */
	bool joins;	   /* documents are not requested: spans that follow one another are one */
	bool counts;	   /* spans are not stored, so there are no searches */
	bool failed;	   /* out of memory */
	uint64_t tokens;   /* of all spans */
	uint64_t byte;	   /* offset in the file of the end of the last stored span */
	uint64_t data_at;  /* offset of the first token */
	uint64_t outside;  /* tokens of all gaps */
	bool scattered;	   /* the spans are not contiguous */
	unsigned presumed; /* not 0: spans have headers, which were not read: mds_header()'s @before
			    */

	uint64_t last_at, last; /* the last span, which is not stored yet, and its tokens */
	bool last_gap;
	uint8_t *code; /* the encoded spans */
	struct map_anchor *anchor;
	uint64_t bytes, spans;
	size_t bytes_room, anchors_room;
};

/* Appends a span; ignores an empty one. @at: offset of its first token. */
void map_add(struct map *map, uint64_t at, uint64_t tokens, bool gap);
/* Call it after the last span and before any search. False: out of memory. */
bool map_done(struct map *map);
void map_free(struct map *map);
uint64_t map_bytes(const struct map *map); /* allocated memory, without the struct */

struct map_span {
	uint64_t begin, end; /* tokens */
	uint64_t at;	     /* offset of the first one */
	bool gap;
	const uint8_t *next; /* the code of the next span */
};

/* The span that contains @token (< map->tokens). */
struct map_span map_find(const struct map *map, uint64_t token);
/* Moves to the next span, which must exist. */
void map_step(const struct map *map, struct map_span *span);
/* Sets *@byte to the offset of @token. Returns how many tokens are contiguous there, at most @most.
 * *@from: the last call's, to go on from there; 0 for a first one, or if @token is before it. */
uint64_t map_extent(const struct map *map, struct map_span *from, uint64_t token, uint64_t most,
	uint64_t *byte);
/* Clears @to[i] for each of the @n tokens token + i that is in a gap. */
void map_mask(const struct map *map, uint64_t token, uint64_t n, uint8_t *to);

/* ---- side files (sides.c) ---- */

/*
 * The document bounds of NAME.npy or NAME.bin are NAME.csv.gz, as dolma and OLMo write it: a row is
 * a document: its first token, the one after its last, then columns that are ignored. Tokens
 * between two documents belong to neither. A list by `tokctl pack --fit` says in its gzip comment
 * (BOUNDS_ROWS) that the shard is rows, each of whole documents and then padding.
 *
 * A loss mask is a byte for each token, 1 if it may be a label, otherwise 0: the file with the
 * shard's name in the hint's label_mask directory, or the format's side file.
 */
#define BOUNDS_ENDING ".csv.gz"
#define BOUNDS_ROWS   "tokend: rows of %" PRIu64 " tokens, %" PRIu64 " of padding"

/* A kind of side file. A dataset's list skips it, and rejects it if its shard is missing. */
struct shard_companion {
	/* Its path is the shard's, with this ending instead of that one, which .zst or .zstd may
	 * follow; or "/name" in the shard's directory or above. */
	const char *ending, *shard;
	const char *kind; /* "a Megatron index" */
	enum side_kind side;
	/* That reads it; flat: so do all that are not indexed. NULL: none does, and any shard with
	 * that ending will do. */
	const struct shard_format *format;
};

extern const struct shard_companion shard_companions[]; /* the last has a NULL ending */

/* Whether the file at @path is of this kind, by its name. */
bool side_is(const struct shard_companion *c, const char *path);
/* The first kind that it is of; NULL: none. */
const struct shard_companion *side_kind(const char *path);
/* Writes a name that the side file of the shard called @shard may have. Start with *@next =
 * strlen(shard) + 1, and call again for the next one. False: there are no more. */
bool side_name(const struct shard_companion *c, const char *shard, size_t *next, char to[PATH_MAX]);
/* bytes_id() of a side file of the shard at @shard, which is not opened; 0: there is none. */
uint64_t side_id(enum side_kind side, const struct shard_format *format,
	const struct shard_hint *hint, const char *shard);
/* Opens it; *@file is NULL if there is none. @path: its name, while it is open. False: @fault. */
bool side_open(enum side_kind side, const struct shard_format *format, const struct bytes *shard,
	const struct shard_hint *hint, char path[PATH_MAX], struct bytes **file,
	struct fault *fault);
/* Reads the list of a shard whose format has no index: bounds, if the hint asks for it;
 * sample_tokens and padding of rows; and its documents and gaps, if there is a map. */
bool bounds_scan(const struct shard_scan *s);
/* *@mask is NULL if there is none; with label_mask that is a fault. The caller closes it, also
 * after a fault. */
bool mask_open(const struct shard_format *format, const struct shard_scan *s, struct bytes **mask);

/* ---- Mosaic's index.json (mds.c) ---- */

/* Those of a dataset. Each is read once. NULL: out of memory. */
struct mds_indexes *mds_indexes_new(void);
void mds_indexes_free(struct mds_indexes *indexes); /* NULL: does nothing */

/*
 * Large shards are opened without reading the headers of their samples, which are arrays of one
 * dimension, so that the size of a sample tells which one it has. Writes that to @to, and returns
 * its length. It must be compared when tokens are read, otherwise bytes of another header would be
 * tokens. @before: what comes before its number of tokens: 2 bytes if it states their type,
 * otherwise 1; 0: the tokens have no header.
 */
enum { SHARD_HEADER_MOST = 6 };
unsigned mds_header(
	unsigned before, enum shard_type type, uint64_t tokens, uint8_t to[SHARD_HEADER_MOST]);

#endif
