/*
 * The interface of a shard format. A format recognises its shards, describes them from their
 * headers, and finds tokens and documents in them. Only flat files, which have no header, are known
 * by name elsewhere: by the samples that guess their dtype, by the catalog and by tokctl.
 *
 * A header is input: each of its claims is compared with the size of the file before it is used,
 * and memory is taken in proportion to the file, never to a claim. Shards are read, never mapped.
 * All functions block.
 */
#ifndef TOKEND_SHARD_FORMAT_H
#define TOKEND_SHARD_FORMAT_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/types.h"

#define SHARD_UNKNOWN UINT64_MAX

enum { SHARD_LEAD_MOST = 64 };

/* What the config says about files that do not say it themselves. */
struct shard_hint {
	enum shard_type type; /* SHARD_U16 or SHARD_U32: of flat files */
	bool has_type;	      /* the config sets it; then 8-byte tokens are served in its width */
	const char *column; /* MDS, Arrow; NULL: "tokens", "input_ids" or the only one that fits */
	uint32_t token_bytes; /* tokens are served at least this wide: 2 or 4; 0: in their own width
			       */
	uint64_t window_tokens; /* seq_len + extra; 0: no windows are read (inspect) */
	struct frames *frames;	/* may be NULL */
	uint64_t budget_bytes;	/* largest size of a decoded frame; 0: 256 MiB */
	struct cache *cache;	/* of the dataset; NULL: a single file */
	bool documents;		/* document starts are wanted: look for lists of bounds */
	bool loss_mask;		/* loss masks are wanted: look for them, and for lists of bounds */
	const char *label_mask; /* directory of masks under the shards' names, or NULL */
	size_t root_bytes; /* label_mask: length of the part of a path before the shard's name */
};

struct shard_facts {
	enum shard_type type; /* as stored */
	uint32_t token_bytes; /* as served: 2 or 4; see shard_served() */
	uint64_t tokens;
	uint64_t documents;	/* SHARD_UNKNOWN: the format keeps no index */
	uint64_t sample_tokens; /* > 0: length of each sample; a window is a sample */
	uint64_t row_tokens; /* > 0: length of each row; rows are samples if a window is as long */
	/*
	 * Token t is at byte data_at + t·token_bytes of the file, and its type is u16, u32 or i32
	 * (values are not checked). Set before describe() in formats without extent(); others may
	 * set it in describe() or open(). shard.c clears it for compressed files and for other
	 * types.
	 */
	bool plain;
	uint64_t data_at;     /* of plain shards */
	uint32_t lead_bytes;  /* bytes that check() sees, up to SHARD_LEAD_MOST; set by open() */
	bool looks;	      /* extent() may read the file; set by open() */
	uint64_t frame_bytes; /* > 0: compressed; bytes that one token may cost to decode */
	uint64_t index_bytes; /* memory of an open shard; set by open() */
	bool has_hash;	      /* an index has the XXH64 of the file, for open() to check */
	uint64_t hash;
	/* bytes_id() of the side files, 0: none. An open() that finds another file fails. */
	uint32_t index;	 /* the format's own */
	uint32_t bounds; /* the list of document bounds, if the hint asks for it */
	uint32_t mask;	 /* the loss mask, if the hint asks for it */
	char note[160];	 /* "", or what users should know (multimodal modes are ignored, …) */
};

struct shard_index; /* each format's own */
struct bounds;
struct mask;

/* The endings of a shard and of its loss mask; see mask.h. */
struct shard_mask {
	const char *shard, *mask;
};

/*
 * A side file that a dataset's directory may hold. It is skipped if its shard is in the dataset,
 * and an error if it is not.
 */
struct shard_companion {
	const char *ending; /* of its path; with a slash first it is a whole name */
	const char *holds;  /* its path contains this, too; or NULL */
	/*
	 * Its shard's path. ".bin": the same with this ending, or with this and .zst or .zstd.
	 * "*.mds": any file in or below its directory that ends so. "../": likewise in or below
	 * the parent directory.
	 */
	const char *shard;
	const char *kind; /* "a Megatron index" */
	bool alone;	  /* without its (uncompressed) shard it is a shard itself */
};

struct shard_format {
	const char *name; /* as in the config's `format:` */
	/* Is the file of this format, by its name, its first bytes or its side files? Cheap; it may
	 * be damaged, describe() checks. */
	bool (*recognise)(const struct bytes *b);
	/*
	 * Fills @facts. They come with plain set if there is no extent(), documents unknown, and 0
	 * otherwise. shard.c sets token_bytes and frame_bytes. Takes a few reads whatever the size
	 * of the shard; open() checks what takes a walk through an index. False: @fault gives
	 * field, value and limit, without the path. FAULT_DATA: the file; FAULT_IO, FAULT_MEMORY.
	 */
	bool (*describe)(const struct bytes *b, const struct shard_hint *hint,
		struct shard_facts *facts, struct fault *fault);

	/* The rest may be NULL, if tokens lie in a row and the format keeps no documents. */
	const struct shard_companion *companions; /* ends with one without an ending */

	/*
	 * Reads what extent() and document() need, and checks all of it: every length, offset and
	 * order. @facts are those of describe(); it may correct plain, documents and note, never
	 * tokens. NULL: @fault, as describe().
	 */
	struct shard_index *(*open)(const struct bytes *b, const struct shard_hint *hint,
		struct shard_facts *facts, struct fault *fault);
	void (*close)(struct shard_index *index);
	/*
	 * Number of tokens, ≥ 1, that lie in a row from @token (< facts.tokens) on, and the byte
	 * where they begin. 0: @fault. NULL: all lie in a row from data_at.
	 */
	uint64_t (*extent)(const struct shard_index *index, uint64_t token, uint64_t *byte,
		struct fault *fault);
	/*
	 * Checks the facts.lead_bytes right before a sample's first token. They are read together
	 * with it, so that extent() need not read; no token of the sample is served before.
	 * False: @fault.
	 */
	bool (*check)(const struct shard_index *index, uint64_t token, const uint8_t *lead,
		struct fault *fault);
	/*
	 * The least document boundary > @token (< facts.tokens); facts.tokens is one. 0: @fault.
	 * NULL: documents are unknown. Not called if facts.documents is SHARD_UNKNOWN.
	 */
	uint64_t (*document)(const struct shard_index *index, uint64_t token, struct fault *fault);
	const struct shard_mask *mask; /* NULL: its writers write none */
	/* The side file that an open shard continues to read, or NULL. */
	const struct bytes *(*side)(const struct shard_index *index);
};

extern const struct shard_format shard_flat, shard_npy, shard_llmc, shard_megatron, shard_datatrove,
	shard_mds, shard_arrow;

#endif
