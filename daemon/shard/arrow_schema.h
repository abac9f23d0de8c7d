/*
 * An Arrow IPC file that is being read, and its schema: the column that holds the tokens, and the
 * number of buffers of the columns before it in a batch.
 */
#ifndef TOKEND_SHARD_ARROW_SCHEMA_H
#define TOKEND_SHARD_ARROW_SCHEMA_H

#include "daemon/shard/flatbuffer.h"
#include "daemon/shard/format.h"

enum {
	ARROW_VERSION_4 = 3, /* the format of Arrow 0.8 to 0.17 */
	ARROW_VERSION_5 = 4,
};

/* Counts over the schema's columns, flattened as in a batch. */
struct arrow_layout {
	uint32_t fields; /* a batch's nodes */
	uint32_t buffers;
	uint32_t views; /* columns with a variadic number of buffers */
	uint32_t bare; /* unions and run-end encoded columns: in version 4 they have validity too */
};

/* An open file: its footer, and the column that holds the tokens. */
struct arrow {
	const struct bytes *b;
	struct fb footer, message;
	uint64_t end; /* end of the batches: the offset of the footer */
	struct fb_vector batches;
	struct arrow_layout before, all; /* before: of the columns before the one with the tokens */
	enum shard_type type;
	char name[64]; /* of the column, printable */
	struct fault *fault;
	uint64_t at;	   /* end of the batches that were read so far */
	bool dictionaries; /* other columns have dictionaries, which may follow the batches */
	bool version_4;	   /* of the current batch */
	char batch[40];	   /* "Arrow batch 17" */
};

#define arrow_refuse(a, ...) fault_set((a)->fault, FAULT_DATA, "", __VA_ARGS__)

/*
 * Reads the schema of the footer @root and chooses the column. Sets a->before, all, type and name.
 * False: a->fault.
 */
bool arrow_read_schema(struct arrow *a, const struct fb_table *root, const struct shard_hint *hint);

#endif
