/*
 * An Arrow IPC file or stream that is being read, and its schema: the column that holds the tokens,
 * and the number of buffers of the columns before it in a batch.
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

/* How a column holds its tokens. A list is a document. */
enum arrow_list {
	ARROW_FLAT,	  /* a row is a token */
	ARROW_LIST,	  /* with offsets of 4 bytes */
	ARROW_LARGE_LIST, /* with offsets of 8 bytes */
	ARROW_FIXED_LIST, /* all lists have list_size tokens */
};

struct arrow_column {
	enum arrow_list list;
	uint64_t list_size;
	enum shard_type type; /* of the tokens */
};

/* An open file or stream, and the column that holds the tokens. */
struct arrow {
	const struct bytes *b;
	bool stream;
	struct fb head; /* has the schema: the footer of a file, or the first message of a stream */
	struct fb message;
	uint64_t end; /* end of the batches: the offset of the footer, or the size of the stream */
	struct fb_vector batches;	 /* of a file */
	uint32_t next;			 /* number of the next batch */
	struct arrow_layout before, all; /* before: of the columns before the one with the tokens */
	struct arrow_column column;
	char name[64]; /* of the column, printable */
	struct fault *fault;
	uint64_t at;	   /* end of the batches that were read so far */
	bool dictionaries; /* other columns have dictionaries, which may follow the batches */
	bool version_4;	   /* of the current batch */
	bool closed;	   /* the end marker of a stream was found */
	char batch[40];	   /* "Arrow batch 17" */
};

#define arrow_refuse(a, ...) fault_set((a)->fault, FAULT_DATA, "", __VA_ARGS__)

/*
 * Reads the schema, a table of a->head, and chooses the column. Sets a->before, all, column and
 * name. False: a->fault.
 */
bool arrow_read_schema(
	struct arrow *a, const struct fb_table *schema, const struct shard_hint *hint);

#endif
