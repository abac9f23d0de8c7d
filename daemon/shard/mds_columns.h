/*
 * The part that an MDS shard's config and an index.json have in common: the version, and a sample's
 * columns with their encodings and sizes, if fixed. One column holds the tokens.
 */
#ifndef TOKEND_SHARD_MDS_COLUMNS_H
#define TOKEND_SHARD_MDS_COLUMNS_H

#include "daemon/shard/format.h"
#include "daemon/shard/json.h"

enum { MDS_COLUMNS_MOST = 256, MDS_SHOWN = 48 };

/* Where the tokens are in a sample. */
struct mds_layout {
	unsigned columns;
	unsigned column;		 /* index of the one with the tokens */
	uint32_t size[MDS_COLUMNS_MOST]; /* of each column; 0: variable, stored in each sample */
	unsigned variable;		 /* number of variable columns */
	uint64_t fixed;			 /* total bytes of the other columns */
	char name[MDS_SHOWN];		 /* of the column, printable */

	enum shard_type type;
	bool has_type;	/* otherwise the value begins with its type */
	bool has_shape; /* otherwise the shape comes next; set for raw values too */
	uint64_t count; /* with has_shape: number of tokens; 0: as many as fit the bytes */
};

/* In all functions @where is a prefix for messages, "config: ". False: @fault. */
bool mds_check_two(const json_t *object, const char *where, struct fault *fault);
bool mds_check_version(const json_t *config, const char *where, struct fault *fault);
/*
 * Checks the three arrays: equal lengths, the right types, and names in ascending order, as the
 * writer sorts them.
 */
bool mds_check_columns(const json_t *config, const char *where, struct fault *fault);
/*
 * The columns as text, to compare a shard with an index: "ids: ndarray:int32, text: str (12
 * bytes)". The caller frees it. NULL: out of memory.
 */
char *mds_columns_text(const json_t *config);
/* Chooses the column with the tokens and fills @l. Call mds_check_columns() first. */
bool mds_lay_out(const json_t *config, const struct shard_hint *hint, struct mds_layout *l,
	struct fault *fault);
/* The type with @code in a value of encoding `ndarray`. False: it is not an integer type. */
bool mds_type_of(uint8_t code, enum shard_type *type);

#endif
