/*
 * The interface of a shard format. A format recognises its shards, and reads from their headers and
 * indexes what they hold and where. No other code depends on a particular format, except for flat
 * files: they have no header, so sample.c guesses their dtype, and the catalog and tokctl know them
 * by name.
 *
 * Headers are untrusted. Compare every count and offset with the size of the file before using it,
 * and allocate memory in proportion to the file, never to a number read from it. Shards are read,
 * never mapped. All functions block.
 */
#ifndef TOKEND_SHARD_FORMAT_H
#define TOKEND_SHARD_FORMAT_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/objects.h"
#include "daemon/shard/types.h"

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
	/* bytes_id() of each side file, 0: none. shard_open() fails if it finds another file. */
	uint32_t index;	 /* the format's own */
	uint32_t bounds; /* the list of document bounds, if the hint asks for it */
	uint32_t mask;	 /* the loss mask, if the hint asks for it */
	char column[64]; /* that holds the tokens; "": the format has no columns */
	char note[160];	 /* "", or a remark for users ("multimodal modes are ignored") */
};

struct map;
struct mds_indexes;
struct bounds;
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

#endif
