/*
 * The interface of a shard format. A format recognises its shards, describes them from their
 * headers, and locates tokens and documents in them. No other code depends on a particular format,
 * except for flat files: they have no header, so sample.c guesses their dtype, and the catalog and
 * tokctl know them by name.
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

enum { SHARD_LEAD_MOST = 64 };

/* What the caller wants, and what the config says about files without a header. */
struct shard_hint {
	enum shard_type type; /* of flat files: SHARD_U16 or SHARD_U32 */
	bool has_type;	    /* the config sets dtype; 8-byte tokens are then served in its width */
	const char *column; /* of MDS and Arrow; NULL: "tokens", "input_ids" or the only one */
	uint32_t token_bytes;	/* least width of served tokens: 2 or 4; 0: their own width */
	uint64_t window_tokens; /* seq_len + extra; 0: no windows are read (inspect) */
	const struct objects *objects; /* shards are objects in a store; NULL: files */
	/*
	 * Of an inspected object, from the manifest: type, tokens, sample_tokens (for the hint's
	 * window), data_at if it is plain, and frame_bytes (0: no shard is compressed). describe()
	 * need not read what gives them. NULL: not known.
	 */
	const struct shard_facts *listed;
	struct frames *frames; /* cache of decoded frames, or NULL */
	uint64_t budget_bytes; /* largest size of a decoded frame; 0: 256 MiB */
	struct cache *cache;   /* the dataset's; NULL: a single file */
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
	 * (values are not checked). Formats without extent() find it set; others may set it in
	 * describe() or open(). shard.c clears it for compressed files and for other types.
	 */
	bool plain;
	uint64_t data_at;    /* of plain shards */
	uint32_t lead_bytes; /* length of check()'s @lead, at most SHARD_LEAD_MOST; set by open() */
	bool looks;	     /* extent() may read the file; set by open() */
	uint64_t frame_bytes; /* > 0: compressed; the most bytes to decode for one token */
	uint64_t index_bytes; /* memory of an open shard; set by open() */
	bool has_hash;	      /* an index has the XXH64 of the file, for open() to check */
	uint64_t hash;
	/* bytes_id() of each side file, 0: none. open() fails if it finds another file. */
	uint32_t index;	 /* the format's own */
	uint32_t bounds; /* the list of document bounds, if the hint asks for it */
	uint32_t mask;	 /* the loss mask, if the hint asks for it */
	char column[64]; /* that holds the tokens; "": the format has no columns */
	char note[160];	 /* "", or a remark for users ("multimodal modes are ignored") */
};

struct shard_index; /* each format's own */
struct bounds;
struct mask;

/* The endings of a shard's name and of its loss mask's; see mask.h. */
struct shard_mask {
	const char *shard, *mask;
};

/*
 * A kind of side file. A dataset's list skips it if its shard is in the dataset, and rejects it
 * otherwise.
 */
struct shard_companion {
	const char *ending; /* of its path; "/name": the whole name */
	const char *holds;  /* its path must also contain this; or NULL */
	/*
	 * Where its shard is. ".bin": the same path with this ending instead, optionally followed
	 * by .zst or .zstd. "*.mds": any file with this ending in or below its directory. With
	 * "../" first: likewise in or below the parent directory.
	 */
	const char *shard;
	const char *kind; /* "a Megatron index" */
	bool alone;	  /* a shard itself if its uncompressed shard is absent */
	bool unread;	  /* no format reads it */
};

struct shard_format {
	const char *name; /* as in the config's `format:` */
	/*
	 * Whether the file is of this format, by its name, its first bytes or its side files.
	 * Cheap; describe() finds damage.
	 */
	bool (*recognise)(const struct bytes *b);
	bool raw; /* a shard has only tokens, so its content must be checked */
	/*
	 * Fills @facts. On entry documents is SHARD_UNKNOWN, plain is set if there is no extent(),
	 * and the rest is 0. shard.c sets token_bytes and frame_bytes. Must take a few reads,
	 * whatever the size of the shard: leave checks that walk an index to open(). On failure
	 * returns false; @fault gives field, value and limit, without the path. FAULT_DATA: the
	 * file is wrong; FAULT_IO, FAULT_MEMORY.
	 */
	bool (*describe)(const struct bytes *b, const struct shard_hint *hint,
		struct shard_facts *facts, struct fault *fault);

	/* The rest may be NULL if tokens are contiguous and the format keeps no documents. */
	const struct shard_companion *companions; /* terminated by a NULL ending */

	/*
	 * Reads and checks everything that extent() and document() use: every length, offset and
	 * order. @facts are describe()'s; open() may correct plain, documents and note, never
	 * tokens. Returns NULL and @fault on failure, as describe().
	 */
	struct shard_index *(*open)(const struct bytes *b, const struct shard_hint *hint,
		struct shard_facts *facts, struct fault *fault);
	void (*close)(struct shard_index *index);
	/*
	 * Returns how many tokens (≥ 1) are contiguous from @token (< facts.tokens) on, and sets
	 * *@byte to their offset. 0: @fault. If the member is NULL, all tokens are contiguous from
	 * data_at.
	 */
	uint64_t (*extent)(const struct shard_index *index, uint64_t token, uint64_t *byte,
		struct fault *fault);
	/*
	 * Checks the facts.lead_bytes right before a sample's first token. They are read together
	 * with the sample, so that extent() need not read. Called before any token of the sample is
	 * served. False: @fault.
	 */
	bool (*check)(const struct shard_index *index, uint64_t token, const uint8_t *lead,
		struct fault *fault);
	/*
	 * Returns the next document boundary after @token (< facts.tokens), at most facts.tokens.
	 * 0: @fault. Not called if facts.documents is SHARD_UNKNOWN; the member may then be NULL.
	 */
	uint64_t (*document)(const struct shard_index *index, uint64_t token, struct fault *fault);
	const struct shard_mask *mask; /* NULL: its writers write no masks */
	/* The side file that an open shard keeps open and reads from, or NULL. */
	const struct bytes *(*side)(const struct shard_index *index);
};

extern const struct shard_format shard_flat, shard_npy, shard_llmc, shard_megatron, shard_datatrove,
	shard_mds, shard_arrow;

#endif
