/*
 * Arrow IPC files and streams. IBM's fms-fsdp writes files with a flat column of integers, and a
 * document per record batch. Hugging Face's datasets writes streams with a column of lists, and a
 * document per list. Either way the tokens of a batch are contiguous.
 *
 * A file has a footer (a flatbuffer) with the schema and the offset of each batch. A stream begins
 * with its schema, and its batches follow one another. Each batch begins with its own metadata
 * (another flatbuffer): its number of rows, and where in its body each column's buffers are. The
 * number of tokens is known after a few small reads per batch.
 */
#include "daemon/shard/arrow_lists.h"
#include "daemon/shard/pieces.h"
#include "proto/phrases.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char magic[] = "ARROW1";

enum {
	MAGIC_BYTES = sizeof(magic) - 1,
	BEGIN_BYTES = 8, /* the magic, padded */
	END_BYTES = 4 + MAGIC_BYTES,
	BATCH_LEAST = 96, /* less than any batch's metadata */
};

/* Numbers of the footer's fields that are read. */
enum { FOOTER_VERSION, FOOTER_SCHEMA, FOOTER_DICTIONARIES, FOOTER_BATCHES };

/* Hugging Face's list of a dataset's splits, which are directories next to it. */
static const char SPLITS[] = "/dataset_dict.json";

struct shard_index {
	struct pieces pieces; /* the batches */
	struct spans lists;   /* of ARROW_LIST and ARROW_LARGE_LIST */
	struct arrow_column column;
};

static bool arrow_recognise(const struct bytes *b)
{
	uint8_t head[MAGIC_BYTES];

	return (bytes_head(b, head, sizeof(head)) == sizeof(head) &&
		       memcmp(head, magic, sizeof(head)) == 0) ||
	       bytes_ending(b->path, ".arrow") || bytes_ending(b->path, ".feather") ||
	       bytes_ends_in(b->path, SPLITS);
}

static bool find_footer(struct arrow *a)
{
	const struct bytes *b = a->b;
	uint8_t head[BEGIN_BYTES], end[END_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));
	char text[BEGIN_BYTES + 1];

	if (n < MAGIC_BYTES || memcmp(head, magic, MAGIC_BYTES) != 0)
		return arrow_refuse(a,
			"begins with '%s' instead of ARROW1: it is not an Arrow IPC file, or "
			"damaged",
			bytes_shown(head, n, text, sizeof(text)));
	if (b->size < BEGIN_BYTES + END_BYTES)
		return arrow_refuse(a,
			"its size is %" PRIu64
			" bytes; an Arrow IPC file has at least %d: the file is truncated",
			b->size, BEGIN_BYTES + END_BYTES);
	if (!bytes_read(b, b->size - END_BYTES, end, END_BYTES, a->fault))
		return false;
	if (memcmp(end + 4, magic, MAGIC_BYTES) != 0)
		return arrow_refuse(a,
			"ends with '%s' instead of ARROW1: it is truncated, or its writer was not "
			"closed",
			bytes_shown(end + 4, MAGIC_BYTES, text, sizeof(text)));
	int32_t length = (int32_t)bytes_u32(end);
	uint64_t most = b->size - BEGIN_BYTES - END_BYTES;

	if (length <= 0 || (uint64_t)length > most)
		return arrow_refuse(a, "Arrow footer length is %" PRId32 "; must be 1 to %" PRIu64,
			length, most);
	a->end = b->size - END_BYTES - (uint64_t)length;
	fb_init(&a->head, b, a->end, (uint64_t)length, "Arrow footer", a->fault);
	return true;
}

static bool read_footer(struct arrow *a, struct fb_table *schema)
{
	struct fb_table root;
	struct fb_vector dictionaries;
	int64_t version;

	if (!find_footer(a) || !fb_root(&a->head, 0, &root) ||
		!fb_integer(&a->head, &root, FOOTER_VERSION, 2, "version", &version))
		return false;
	if (!arrow_check_version(a, "Arrow footer", version))
		return false;
	if (!fb_vector(&a->head, &root, FOOTER_DICTIONARIES, ARROW_BLOCK_BYTES, "dictionaries",
		    &dictionaries))
		return false;
	a->dictionaries = dictionaries.count > 0;
	return fb_vector(&a->head, &root, FOOTER_BATCHES, ARROW_BLOCK_BYTES, "recordBatches",
		       &a->batches) &&
	       fb_table(&a->head, &root, FOOTER_SCHEMA, "schema", schema);
}

/*
 * Hugging Face's datasets writes the result of map() next to the data that it was called on. If
 * both were served, the data would be served twice.
 */
static bool check_not_cache(struct arrow *a)
{
	const char *slash = strrchr(a->b->path, '/'), *name = slash ? slash + 1 : a->b->path;
	int directory = (int)(name - a->b->path);
	char state[PATH_MAX];
	struct object object;
	bool there;

	if (strncmp(name, "cache-", 6) != 0)
		return true;
	snprintf(state, sizeof(state), "%.*sstate.json", directory, a->b->path);
	if (a->b->objects)
		there = a->b->objects->find(a->b->objects->context, state, &object);
	else
		there = access(state, F_OK) == 0;
	return !there ||
	       arrow_refuse(a,
		       "is a cached result of Hugging Face's datasets, not part of the saved "
		       "dataset; remove it, or set path: %.*sdata-*.arrow",
		       directory, a->b->path);
}

static bool arrow_begin(
	struct arrow *a, const struct bytes *b, const struct shard_hint *hint, struct fault *fault)
{
	struct fb_table schema;
	uint8_t head[4];

	a->b = b;
	a->fault = fault;
	a->at = BEGIN_BYTES;
	a->next = 0;
	a->closed = a->dictionaries = false;
	a->before = a->all = (struct arrow_layout){0};
	a->stream =
		bytes_head(b, head, sizeof(head)) == sizeof(head) && bytes_u32(head) == UINT32_MAX;
	if (a->stream) {
		a->at = 0;
		a->end = b->size;
	}
	if (a->stream ? !check_not_cache(a) || !arrow_stream_schema(a, &schema)
		      : !read_footer(a, &schema))
		return false;
	if (!schema.at)
		return arrow_refuse(a, "%s: schema is absent; must be present", a->head.what);
	return arrow_read_schema(a, &schema, hint);
}

/* What describe() adds up. */
static bool count_batches(struct arrow *a, struct shard_facts *facts)
{
	bool lists = a->column.list != ARROW_FLAT, end;
	struct spans spans = {0};
	struct arrow_batch batch;
	uint64_t pieces = 0;

	facts->documents = 0;
	while (arrow_next(a, &batch, &end)) {
		if (end)
			return true;
		/* All other lists are checked by open(). */
		if (batch.nulls) {
			bool fine = arrow_add_lists(a, &batch, &spans);

			spans_free(&spans);
			spans = (struct spans){0};
			if (!fine)
				return false;
		}
		facts->documents += lists ? batch.rows : 1;
		if (batch.tokens == 0)
			continue;
		facts->plain = ++pieces == 1; /* contiguous if there is only one batch */
		facts->data_at = facts->plain ? batch.at : 0;
		facts->tokens += batch.tokens;
	}
	return false;
}

static bool arrow_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct arrow a;

	if (bytes_ends_in(b->path, SPLITS))
		return fault_set(fault, FAULT_DATA, "",
			"is a list of splits (train, test), which would all be served; set path: "
			"%.*s/SPLIT, with the name of one",
			(int)(strlen(b->path) + 1 - sizeof(SPLITS)), b->path);
	if (hint->listed && !hint->listed->plain) {
		facts->type = hint->listed->type;
		facts->tokens = hint->listed->tokens;
		facts->sample_tokens = hint->listed->sample_tokens;
		facts->documents = 0; /* open() counts them */
		return true;
	}
	if (!arrow_begin(&a, b, hint, fault) || !count_batches(&a, facts))
		return false;
	if (a.stream && !a.closed)
		snprintf(facts->note, sizeof(facts->note),
			"has no end marker: it may be truncated, or its writer was not closed");
	/*
	 * Between the last batch and the footer there is only an end marker. More bytes are a batch
	 * that the footer does not list.
	 */
	if (!a.stream && a.batches.count > 0 && !a.dictionaries && a.end - a.at >= BATCH_LEAST)
		return arrow_refuse(&a,
			"Arrow footer: recordBatches has %" PRIu32
			" items, which end at byte %" PRIu64
			", but the footer begins at byte %" PRIu64
			": the bytes between them belong to no batch",
			a.batches.count, a.at, a.end);
	facts->type = a.column.type;
	snprintf(facts->column, sizeof(facts->column), "%s", a.name);
	if (a.column.list == ARROW_FIXED_LIST)
		facts->row_tokens = a.column.list_size;
	return true;
}

/* ---- open ---- */

static void arrow_close(struct shard_index *index)
{
	pieces_free(&index->pieces);
	spans_free(&index->lists);
	free(index);
}

/* Adds the batches, and their lists, to the index. */
static bool add_batches(struct shard_index *index, struct arrow *a)
{
	bool lists = a->column.list == ARROW_LIST || a->column.list == ARROW_LARGE_LIST, end;
	struct arrow_batch batch;

	while (arrow_next(a, &batch, &end)) {
		if (end)
			return true;
		if (!pieces_add(&index->pieces, batch.tokens, batch.at))
			return arrow_refuse(a, "%s: " PHRASE_CHANGED, a->head.what);
		if (lists && !arrow_add_lists(a, &batch, &index->lists))
			return false;
	}
	return false;
}

static bool load(struct shard_index *index, struct arrow *a, struct shard_facts *facts)
{
	index->column = a->column;
	if (!pieces_new(&index->pieces, a->stream ? 0 : a->batches.count))
		return fault_memory(a->fault);
	if (!add_batches(index, a))
		return false;
	if (!pieces_done(&index->pieces))
		return fault_memory(a->fault);
	spans_trim(&index->lists);
	uint64_t tokens = pieces_tokens(&index->pieces);

	if (index->lists.count > 0)
		facts->documents = index->lists.count;
	facts->index_bytes =
		sizeof(*index) + pieces_bytes(&index->pieces) + spans_bytes(&index->lists);
	return (tokens == facts->tokens && a->column.type == facts->type) ||
	       arrow_refuse(a,
		       "%s: " PHRASE_CHANGED_OPENING ": its batches have "
		       "%" PRIu64 " tokens of %s; they had %" PRIu64 " of %s",
		       a->head.what, tokens, shard_type_name(a->column.type), facts->tokens,
		       shard_type_name(facts->type));
}

static struct shard_index *arrow_open(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct shard_index *index = calloc(1, sizeof(*index));
	struct arrow a;

	if (!index)
		fault_memory(fault);
	else if (!arrow_begin(&a, b, hint, fault) || !load(index, &a, facts)) {
		arrow_close(index);
		index = NULL;
	}
	return index;
}

static uint64_t arrow_extent(
	const struct shard_index *index, uint64_t token, uint64_t *byte, struct fault *fault)
{
	(void)fault;
	return pieces_extent(&index->pieces, shard_type_bytes(index->column.type), token, byte);
}

static uint64_t arrow_document(const struct shard_index *index, uint64_t token, struct fault *fault)
{
	const struct arrow_column *column = &index->column;

	(void)fault;
	if (column->list == ARROW_FLAT)
		return pieces_document(&index->pieces, token);
	if (column->list == ARROW_FIXED_LIST)
		return (token / column->list_size + 1) * column->list_size;
	return spans_find(&index->lists, token).end;
}

/*
 * IBM's tools keep the counts of all files in meta/, next to the directories of the files. Hugging
 * Face's datasets describes the files of a directory in two of JSON.
 */
static const struct shard_companion arrow_companions[] = {
	{.ending = "/dataset_info.json",
		.shard = "*.arrow",
		.kind = "Hugging Face's description",
		.unread = true},
	{.ending = "/state.json",
		.shard = "*.arrow",
		.kind = "Hugging Face's list of files",
		.unread = true},
	{.ending = ".csv",
		.holds = "counts",
		.shard = "../*.arrow",
		.kind = "a table of counts",
		.unread = true},
	{0},
};

const struct shard_format shard_arrow = {
	.name = "arrow",
	.recognise = arrow_recognise,
	.describe = arrow_describe,
	.companions = arrow_companions,
	.open = arrow_open,
	.close = arrow_close,
	.extent = arrow_extent,
	.document = arrow_document,
};
