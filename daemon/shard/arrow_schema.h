/*
 * An Arrow IPC file that is being read, and its schema: which column holds the tokens, and how many
 * buffers the columns before it have in a batch.
 */
#ifndef TOKEND_SHARD_ARROW_SCHEMA_H
#define TOKEND_SHARD_ARROW_SCHEMA_H

#include "daemon/shard/flatbuffer.h"
#include "daemon/shard/format.h"

enum {
	ARROW_VERSION_4 = 3, /* of the format; that of Arrow 0.8 to 0.17 */
	ARROW_VERSION_5 = 4,
};

/* Of the schema's columns, flattened as batches have them: how many of each there are. */
struct arrow_layout {
	uint32_t fields; /* nodes, that is */
	uint32_t buffers;
	uint32_t views; /* columns that have a variadic number of buffers */
	uint32_t bare;	/* unions and run-end encoded ones: version 4 has validity for them too */
};

/* An open file: its footer, and the column that holds the tokens. */
struct arrow {
	const struct bytes *b;
	struct fb footer, message;
	uint64_t end; /* of the batches: where the footer begins */
	struct fb_vector batches;
	struct arrow_layout before,
		all; /* before: of the columns ahead of the one with the tokens */
	enum shard_type type;
	char name[64]; /* of the column, as far as it can be shown */
	struct fault *fault;
	uint64_t at;	   /* how far the batches have been walked through */
	bool dictionaries; /* of other columns: they may follow the batches */
	bool version_4;	   /* the batch walked to */
	char batch[40];	   /* "Arrow batch 17" */
};

#define arrow_refuse(a, ...) fault_set((a)->fault, FAULT_DATA, "", __VA_ARGS__)

/* @root: the footer. Sets a->before, all, type and name. */
bool arrow_read_schema(struct arrow *a, const struct fb_table *root, const struct shard_hint *hint);

#endif
