/*
 * The interface of a shard format. A format recognises its shards, and reads from their headers and
 * indexes what they hold and where. No other code depends on a particular format, except for flat
 * files: they have no header, so sample.c guesses their dtype, and the catalog and tokctl know them
 * by name.
 *
 * Headers are untrusted. Compare every count and offset with the size of the file before using it,
 * and allocate memory in proportion to the file, never to a number read from it. Shards are read,
 * never mapped. All functions block.
 *
 * To add a format:
 *
 * 1. Write one file with recognise() and scan(). If the format keeps documents, or tokens are not
 *    contiguous, it is `indexed`, and scan() adds spans to a map.
 * 2. Declare it below and add a line to the table in formats.c, whose order is the one in which
 *    formats are tried.
 * 3. Name it in daemon/shard/README.md and config/tokend.yaml.
 * 4. Copy llmc's tests (`git grep llmc tests`).
 *
 * Compression, widths, the config, `inspect` and the input of `pack` then work. pack_format.c
 * lists the formats that `pack` writes.
 */
#ifndef TOKEND_SHARD_FORMAT_H
#define TOKEND_SHARD_FORMAT_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/tokens.h"

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
	/*
	 * Of an inspected object, from the manifest: type, tokens, sample_tokens (for the hint's
	 * window), data_at if it is plain, and frame_bytes (0: no shard is compressed). scan() need
	 * not read what gives them. NULL: not known.
	 */
	const struct shard_facts *listed;
	struct frames *frames;	     /* cache of decoded frames, or NULL */
	uint64_t budget_bytes;	     /* largest size of a decoded frame; 0: 256 MiB */
	struct mds_indexes *indexes; /* the dataset's; NULL: of this shard alone */
	bool documents; /* document starts are requested: look for lists of document bounds */
	bool loss_mask; /* loss masks are requested: look for them, and for lists of document bounds
			 */
	const char *label_mask; /* directory of masks, each with its shard's name; or NULL */
	size_t root_bytes;	/* with label_mask: length of the path before the shard's name */
};

struct shard_facts {
	enum shard_type type; /* as stored */
	uint32_t token_bytes; /* as served: 2 or 4; see shard_served() */
	uint64_t tokens;
	uint64_t documents;	/* SHARD_UNKNOWN: the format keeps no index */
	uint64_t sample_tokens; /* > 0: length of each sample; a window is a sample */
	uint64_t row_tokens; /* > 0: length of each row; rows are samples if a window is as long */
	uint64_t padding; /* of samples that `tokctl pack --fit` made: tokens outside documents */
	/*
	 * Token t is at byte data_at + t·token_bytes of the file, and its type is u16, u32 or i32
	 * (values are not checked). Known of indexed formats when they are opened. shard.c clears
	 * it for compressed files and for other types.
	 */
	bool plain;
	uint64_t data_at;     /* of plain shards */
	uint64_t frame_bytes; /* > 0: compressed; the most bytes to decode for one token */
	uint64_t index_bytes; /* memory of an open shard; set by shard_open() */
	/* bytes_id() of each side file, 0: none. */
	uint32_t index;	 /* the format's own */
	uint32_t bounds; /* the list of document bounds, if the hint asks for it */
	uint32_t mask;	 /* the loss mask, if the hint asks for it */
	char column[64]; /* that holds the tokens; "": the format has no columns */
	char note[160];	 /* "", or a remark for users ("multimodal modes are ignored") */
};

struct map;
struct mds_indexes;
struct mask;

/* The endings of a shard's name and of a side file's that its format reads. */
struct shard_side_name {
	const char *shard, *side;
};

/*
 * A kind of side file. A dataset's list skips it if its shard is in the dataset, and rejects it
 * otherwise.
 */
struct shard_companion {
	const char *ending; /* of its path; "/name": the whole name */
	/*
	 * Its shard. ".bin": the same path with this ending instead, optionally followed by .zst or
	 * .zstd. "*.mds": any file with this ending in or below its directory.
	 */
	const char *shard;
	const char *kind; /* "a Megatron index" */
	bool alone;	  /* a shard itself if its uncompressed shard is absent */
	bool unread;	  /* no format reads it; its shard may be anywhere in the dataset */
};

struct shard_format {
	const char *name; /* as in the config's `format:` */
	/*
	 * Whether the file is of this format, by its name, its first bytes or its side files.
	 * Cheap; scan() finds damage.
	 */
	bool (*recognise)(const struct bytes *b);
	bool raw; /* a shard has only tokens, so its content must be checked */
	/*
	 * Fills @facts. On entry documents is SHARD_UNKNOWN, plain is true, and the rest is 0;
	 * shard.c sets token_bytes and frame_bytes. Without @map it must take a few reads, whatever
	 * the size of the shard. With @map, of indexed formats only, it reads and checks all that
	 * tells where tokens are, and adds them as spans, one for a document. @index: the open side
	 * file, or NULL. On failure returns false; @fault gives field, value and limit, without the
	 * path. FAULT_DATA: the file is wrong; FAULT_IO, FAULT_MEMORY.
	 */
	bool (*scan)(const struct bytes *b, const struct bytes *index,
		const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
		struct fault *fault);
	/*
	 * Its shards say where tokens and documents are, and lists of document bounds are ignored.
	 * Of other formats tokens are contiguous from data_at on.
	 */
	bool indexed;
	/*
	 * Samples are windows only if all shards of a dataset have the length of a window;
	 * otherwise those of all shards are joined.
	 */
	bool mixes_rows;
	const struct shard_side_name *index, *mask; /* NULL: its writers write none */
	const struct shard_companion *companions;   /* terminated by a NULL ending; or NULL */
};

extern const struct shard_format shard_flat, shard_npy, shard_llmc, shard_megatron, shard_datatrove,
	shard_mds, shard_arrow;

/* ---- the table of formats (formats.c) ---- */

/* The format called @name, or NULL. "auto" is not a format. */
const struct shard_format *shard_format(const char *name);
/* Writes the names of all formats, "flat, npy, …", to @to and returns it. */
enum { SHARD_NAMES_BYTES = 128 };
const char *shard_format_names(char *to, size_t to_bytes);
/* The format of an open file. On failure returns NULL and @fault, without the path. */
const struct shard_format *shard_recognise(const struct bytes *b, struct fault *fault);
/* Whether a fault says that a file is not a shard. It names no remedy: the caller knows
 * whether the file was named alone (PHRASE_NOT_SHARD), or is one among shards. */
#define SHARD_FORMAT_FIELD "format"
bool shard_is_unknown(const struct fault *fault);
/* Of those, that its content is something else, so that `format: flat` does not help. */
bool shard_is_foreign(const struct fault *fault);
/*
 * The kind of side file that @path is, by its name; NULL: it is not one. A name may match several
 * kinds: start with *@next = 0 and call again for the next one.
 */
const struct shard_companion *shard_companion(const char *path, unsigned *next);

/* ---- files that are not shards (foreign.c) ---- */

/*
 * They are recognised by their first bytes, so that nobody trains on a header that is read as
 * tokens. No key of the config switches this off.
 */

/* "a Parquet file", or "an RAR archive; unpack it"; NULL: unknown content, perhaps tokens. */
const char *foreign_kind(const struct bytes *b);
/*
 * The same for a file that is to be read without a header of its own: also a shard of a format with
 * a header, under a name that does not say so. @type: of its tokens, as they would be read.
 */
const char *foreign_to_plain(const struct bytes *b, enum shard_type type);
/* Returns false, with a fault in this field. */
#define FOREIGN_FIELD "content"
bool foreign_refuse(const char *kind, struct fault *fault);

/* ---- loss masks (mask.c) ---- */

/*
 * A byte for each token of a shard, 1 if it may be a label, otherwise 0. The file has as many bytes
 * as the shard has tokens, or is a NumPy .npy of that many bools. If the hint has a label_mask
 * directory, it is the file there with the shard's name; otherwise the format's side file
 * (shard_format.mask), if there is one.
 */
struct mask {
	struct bytes *file;
	uint64_t data_at;
	char name[80]; /* of the file, or its first 60 bytes */
};

/* bytes_id() of the mask of the shard at path @shard, without opening it; 0: there is none. */
uint32_t mask_side_id(
	const struct shard_format *format, const struct shard_hint *hint, const char *shard);
/*
 * Opens the mask of the shard @b, which has @tokens tokens. *@mask is NULL if there is none;
 * with a label_mask directory that is a fault. False: @fault, as shard_open().
 */
bool mask_open(const struct shard_format *format, const struct bytes *b,
	const struct shard_hint *hint, uint64_t tokens, struct mask **mask, struct fault *fault);
void mask_close(struct mask *mask); /* NULL: does nothing */
/*
 * Reads the mask of tokens [token, token + n). Any thread. False: @fault, as shard_read();
 * FAULT_DATA: a value is neither 0 nor 1.
 */
bool mask_read(
	const struct mask *mask, uint64_t token, uint64_t n, uint8_t *to, struct fault *fault);

#endif
