/*
 * Arrow IPC files as IBM's fms-fsdp writes them: a column of integers, with one document per record
 * batch. A footer (a flatbuffer) at the end has the schema and the offset of each batch. Each batch
 * begins with its own metadata (another flatbuffer): its number of rows, and where in its body each
 * column's buffers are. The number of tokens is known after a small read per batch.
 */
#include "daemon/shard/arrow_batch.h"
#include "daemon/shard/pieces.h"
#include "proto/phrases.h"

#include <errno.h>
#include <stdlib.h>

static const char magic[] = "ARROW1";

enum {
	MAGIC_BYTES = sizeof(magic) - 1,
	BEGIN_BYTES = 8, /* the magic, padded */
	END_BYTES = 4 + MAGIC_BYTES,
	BATCH_LEAST = 96, /* less than any batch's metadata */
};

/* Numbers of the footer's fields that are read. */
enum { FOOTER_VERSION, FOOTER_DICTIONARIES = 2, FOOTER_BATCHES };

struct shard_index {
	struct pieces pieces;
	uint32_t width;
};

static bool arrow_recognise(const struct bytes *b)
{
	uint8_t head[MAGIC_BYTES];

	return (bytes_head(b, head, sizeof(head)) == sizeof(head) &&
		       memcmp(head, magic, sizeof(head)) == 0) ||
	       bytes_ending(b->path, ".arrow") || bytes_ending(b->path, ".feather");
}

/* For a message: the kind of file that begins with @head. */
static const char *other_kind(const uint8_t *head, size_t n)
{
	if (n >= 4 && bytes_u32(head) == UINT32_MAX)
		return "an Arrow IPC stream (as Hugging Face's datasets keep), not a file; write "
		       "it with pyarrow.ipc.new_file";
	if (n >= 4 && memcmp(head, "FEA1", 4) == 0)
		return "a Feather file of version 1; write it with pyarrow.ipc.new_file";
	return "not an Arrow IPC file, or damaged";
}

static bool find_footer(struct arrow *a)
{
	const struct bytes *b = a->b;
	uint8_t head[BEGIN_BYTES], end[END_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));
	char text[BEGIN_BYTES + 1];

	if (n < MAGIC_BYTES || memcmp(head, magic, MAGIC_BYTES) != 0)
		return arrow_refuse(a, "begins with '%s' instead of ARROW1: it is %s",
			bytes_shown(head, n, text, sizeof(text)), other_kind(head, n));
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
	fb_init(&a->footer, b, a->end, (uint64_t)length, "Arrow footer", a->fault);
	return true;
}

static bool arrow_begin(
	struct arrow *a, const struct bytes *b, const struct shard_hint *hint, struct fault *fault)
{
	struct fb_table root;
	int64_t version;

	a->b = b;
	a->fault = fault;
	a->at = BEGIN_BYTES;
	a->before = a->all = (struct arrow_layout){0};
	if (!find_footer(a) || !fb_root(&a->footer, 0, &root) ||
		!fb_integer(&a->footer, &root, FOOTER_VERSION, 2, "version", &version))
		return false;
	if (!arrow_check_version(a, "Arrow footer", version))
		return false;
	struct fb_vector dictionaries;

	if (!fb_vector(&a->footer, &root, FOOTER_DICTIONARIES, ARROW_BLOCK_BYTES, "dictionaries",
		    &dictionaries))
		return false;
	a->dictionaries = dictionaries.count > 0;
	return arrow_read_schema(a, &root, hint) &&
	       fb_vector(&a->footer, &root, FOOTER_BATCHES, ARROW_BLOCK_BYTES, "recordBatches",
		       &a->batches);
}

static bool arrow_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct arrow a;
	uint64_t rows, at, pieces = 0;

	if (!arrow_begin(&a, b, hint, fault))
		return false;
	for (uint32_t i = 0; i < a.batches.count; i++) {
		if (!arrow_next(&a, i, &rows, &at))
			return false;
		if (rows == 0)
			continue;
		facts->plain = ++pieces == 1; /* contiguous if there is only one batch */
		facts->data_at = facts->plain ? at : 0;
		facts->tokens += rows;
	}
	/*
	 * Between the last batch and the footer there is only an end marker. More bytes are a batch
	 * that the footer does not list.
	 */
	if (a.batches.count > 0 && !a.dictionaries && a.end - a.at >= BATCH_LEAST)
		return arrow_refuse(&a,
			"Arrow footer: recordBatches has %" PRIu32
			" items, which end at byte %" PRIu64
			", but the footer begins at byte %" PRIu64
			": the bytes between them belong to no batch",
			a.batches.count, a.at, a.end);
	facts->type = a.type;
	facts->documents = a.batches.count;
	return true;
}

/* ---- open ---- */

static void arrow_close(struct shard_index *index)
{
	pieces_free(&index->pieces);
	free(index);
}

static bool load(struct shard_index *index, struct arrow *a, struct shard_facts *facts)
{
	uint64_t rows, at;

	index->width = shard_type_bytes(a->type);
	if (!pieces_new(&index->pieces, a->batches.count))
		return fault_memory(a->fault);
	for (uint32_t i = 0; i < a->batches.count; i++) {
		if (!arrow_next(a, i, &rows, &at))
			return false;
		if (!pieces_add(&index->pieces, rows, at))
			return arrow_refuse(a, "Arrow footer: " PHRASE_CHANGED);
	}
	if (!pieces_done(&index->pieces))
		return fault_memory(a->fault);
	uint64_t tokens = pieces_tokens(&index->pieces);

	facts->index_bytes = sizeof(*index) + pieces_bytes(&index->pieces);
	return (tokens == facts->tokens && a->type == facts->type) ||
	       arrow_refuse(a,
		       "Arrow footer: " PHRASE_CHANGED_OPENING ": its batches have "
		       "%" PRIu64 " tokens of %s; they had %" PRIu64 " of %s",
		       tokens, shard_type_name(a->type), facts->tokens,
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
	return pieces_extent(&index->pieces, index->width, token, byte);
}

static uint64_t arrow_document(const struct shard_index *index, uint64_t token, struct fault *fault)
{
	(void)fault;
	return pieces_document(&index->pieces, token);
}

/* IBM's tools keep the counts of all files in meta/, next to the directories of the files. */
static const struct shard_companion arrow_companions[] = {
	{.ending = ".csv", .holds = "counts", .shard = "../*.arrow", .kind = "a table of counts"},
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
