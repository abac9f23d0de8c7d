/*
 * What an MDS shard's own config and an index.json say in the same words: the version, and the
 * columns of a sample, how each is encoded and how long it is where that is always the same. One
 * column holds the tokens.
 */
#ifndef TOKEND_SHARD_MDS_COLUMNS_H
#define TOKEND_SHARD_MDS_COLUMNS_H

#include "daemon/shard/format.h"
#include "daemon/shard/json.h"

enum { MDS_COLUMNS_MOST = 256, MDS_SHOWN = 48 };

/* Where the tokens are in a sample. */
struct mds_layout {
	unsigned columns;
	unsigned column;		 /* the one with the tokens */
	uint32_t size[MDS_COLUMNS_MOST]; /* of each column; 0: each sample says it */
	unsigned variable;		 /* how many do */
	uint64_t fixed;			 /* bytes of those that do not */
	char name[MDS_SHOWN];		 /* of the column, to be shown */

	enum shard_type type;
	bool has_type;	/* else the first byte of the value is the type */
	bool has_shape; /* else the value begins with its shape; raw values have one, too: */
	uint64_t count; /* the tokens that the shape makes; 0: as many as there are bytes for */
};

/* @where begins the name of a member in an error text: "config: ". */
bool mds_check_two(const json_t *object, const char *where, struct fault *fault);
bool mds_check_version(const json_t *config, const char *where, struct fault *fault);
/* The three arrays: of one length and of the right types, names ascending, as the writer sorts
 * them. */
bool mds_check_columns(const json_t *config, const char *where, struct fault *fault);
/* "ids: ndarray:int32, text: str (12 bytes)": what a shard and an index must agree on. To be freed.
 * NULL: out of memory. */
char *mds_columns_text(const json_t *config);
/* Chooses the column with the tokens. The columns have been checked. */
bool mds_lay_out(const json_t *config, const struct shard_hint *hint, struct mds_layout *l,
	struct fault *fault);
/* The type that a value of encoding `ndarray` names by @code. False: none that is served. */
bool mds_type_of(uint8_t code, enum shard_type *type);

#endif
