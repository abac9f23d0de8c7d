/*
 * What a shard format is: one file that recognises its shards, describes them from their own
 * headers, and says where a token lies and where documents begin. No other file knows anything of a
 * format.
 *
 * Whatever a header claims is compared with the size of the file before it is believed, and costs
 * memory in proportion to the file, never to the claim. Shards are read, never mapped. Everything
 * here blocks.
 */
#ifndef TOKEND_SHARD_FORMAT_H
#define TOKEND_SHARD_FORMAT_H

#include "daemon/shard/bytes.h"
#include "daemon/shard/types.h"

#define SHARD_UNKNOWN UINT64_MAX

enum { SHARD_LEAD_MOST = 64 };

struct shard_hint {	      /* what the config says of files that do not say themselves */
	enum shard_type type; /* SHARD_U16 or SHARD_U32: of flat files */
	bool has_type; /* the config said so: also the width that 8-byte tokens are served in */
	const char *column; /* of MDS and Arrow; NULL: "tokens", else "input_ids", else the only one
			       that fits */
	uint32_t token_bytes; /* tokens are served at least this wide: 2 or 4; 0: in their own width
			       */
	uint64_t window_tokens; /* seq_len + extra, or 0 where nobody asks for windows (inspect) */
	struct frames *frames;	/* may be NULL */
	uint64_t budget_bytes;	/* what a frame may decode to; 0: 256 MiB */
	struct cache *cache; /* of the dataset whose shards are described; NULL: it is a file of its
				own */
	bool documents; /* somebody asks where documents begin: bounds beside a shard are looked for
			 */
	bool loss_mask; /* and which tokens may be labels: masks are, too */
	const char *label_mask; /* directory of masks under the shards' names, or NULL */
	size_t root_bytes;	/* label_mask: of a shard's path, what is not part of its name */
};

struct shard_facts {
	enum shard_type type; /* as stored */
	uint32_t token_bytes; /* as served: 2 or 4; see shard_served() */
	uint64_t tokens;
	uint64_t documents;	/* SHARD_UNKNOWN where the format keeps no index */
	uint64_t sample_tokens; /* > 0: every sample has so many tokens, and a window is a sample;
				   else 0 */
	uint64_t row_tokens; /* > 0: rows of so many, which are samples where a window is as long;
				else 0 */
	/*
	 * Token t lies at data_at + t·token_bytes of the file itself; type is u16, u32 or i32
	 * (nobody has looked whether one is negative). describe() finds it set in formats without
	 * extent(); others may set it there or in open(). shard.c unsets it for what is compressed
	 * or of another type.
	 */
	bool plain;
	uint64_t data_at;    /* where the format has no extent() */
	uint32_t lead_bytes; /* what check() sees, at most SHARD_LEAD_MOST; set by open(), else 0 */
	bool looks;	     /* extent() may have to read the file; set by open() */
	uint64_t frame_bytes; /* > 0: compressed; what reading a single token may decode */
	uint64_t index_bytes; /* what an open one keeps in memory; set by open() */
	bool has_hash; /* an index says what XXH64 makes of the file as it lies: for open() to look
			*/
	uint64_t hash;
	/*
	 * bytes_id() of the files beside it, 0 where there is none. What is opened later is refused
	 * if it is another.
	 */
	uint32_t index;	 /* of the format's own, which open() reads */
	uint32_t bounds; /* a list of document bounds, where the hint asks for it */
	uint32_t mask;	 /* a loss mask, likewise */
	char note[160]; /* "", or something users should know (multimodal modes are ignored, …) */
};

struct shard_index; /* a format's own */
struct bounds;
struct mask;

/* A loss mask beside a shard, by the endings of both: as mask.h says. */
struct shard_mask {
	const char *shard, *mask;
};

/* A file beside shards that is none: passed over where its shard is among the files, an error where
 * it is not. */
struct shard_companion {
	const char *ending; /* of its path; it may begin with a slash, to be a whole name */
	const char *holds;  /* what else its path must have in it, or NULL */
	/*
	 * Its shard's path: ".bin": the same with this ending (or this and .zst, .zstd). "*.mds":
	 * any that ends so in or below its directory. "../" before it: in or below the directory
	 * above.
	 */
	const char *shard;
	const char *kind; /* "a Megatron index" */
	bool alone;	  /* where its shard (with no .zst) is not there it is a shard itself */
};

struct shard_format {
	const char *name; /* as in the config's `format:` */
	/* Is this one of ours, by name, by first bytes, by what lies beside it? Cheap. Needs not be
	 * sound: describe() checks. */
	bool (*recognise)(const struct bytes *b);
	/*
	 * Fills the facts: @facts comes with plain set where there is no extent(), documents
	 * unknown, the rest 0; token_bytes may be left to shard_served(), frame_bytes to shard.c.
	 * Costs a few reads whatever the shard's size: what takes a walk through an index is
	 * checked by open(). False: one line in @fault: field, value, limit; without the path.
	 */
	bool (*describe)(const struct bytes *b, const struct shard_hint *hint,
		struct shard_facts *facts, struct fault *fault);

	/* The rest is NULL in formats whose tokens lie in a row and that keep no documents. */
	const struct shard_companion *companions; /* up to one without an ending */

	/*
	 * What extent() and document() need, checked whole: every length, offset and order. @facts
	 * are what describe() said, and may be set right (plain, documents, note; never tokens).
	 * NULL: @fault. Is NULL where neither is there.
	 */
	struct shard_index *(*open)(const struct bytes *b, const struct shard_hint *hint,
		struct shard_facts *facts, struct fault *fault);
	void (*close)(struct shard_index *index);
	/*
	 * How many tokens from @token (< facts.tokens) on lie in a row, ≥ 1, and the byte in the
	 * source where they begin. 0 with @fault: damaged. NULL: they lie in a row from data_at.
	 */
	uint64_t (*extent)(const struct shard_index *index, uint64_t token, uint64_t *byte,
		struct fault *fault);
	/*
	 * Where facts.lead_bytes are right before a sample's first token, and a row begins with
	 * that: they are read with it in one go, and looked at before any token of it is served.
	 * extent() need not read, then. False: @fault.
	 */
	bool (*check)(const struct shard_index *index, uint64_t token, const uint8_t *lead,
		struct fault *fault);
	/*
	 * The least document boundary > @token (< facts.tokens), at most facts.tokens, which is
	 * one; or 0 with @fault. NULL: documents are not known. Not called where facts.documents is
	 * SHARD_UNKNOWN.
	 */
	uint64_t (*document)(const struct shard_index *index, uint64_t token, struct fault *fault);
	const struct shard_mask *mask; /* NULL: its writers keep none */
	/* The index file that an open shard goes on reading, or NULL. NULL: it never does. */
	const struct bytes *(*side)(const struct shard_index *index);
};

extern const struct shard_format shard_flat, shard_npy, shard_llmc, shard_megatron, shard_datatrove,
	shard_mds, shard_arrow;

#endif
