/*
 * Megatron's X.bin and X.idx. The .bin is tokens without a header. The .idx has their type, and the
 * length and byte offset of each sequence. Megatron trains on each sequence as a document, so a
 * sequence is a document here. The documents in the index are runs of sequences; they are checked
 * and otherwise ignored.
 *
 * Sequences usually follow one another in the .bin, which makes it plain. Otherwise the tokens are
 * those of the sequences, in the order of the index. Bytes outside sequences are not served.
 */
#include "daemon/shard/megatron_idx.h"
#include "daemon/shard/pieces.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	AT_ONCE = 2048, /* items of an array that are read at a time */
	STRIDE = 256,	/* every STRIDE-th pointer is kept, to find a boundary with one read */
	LASTS = 4,	/* cached blocks of pointers, for concurrent threads; a power of two */
};

/* A block of pointers that was read recently: boundaries are requested in order. */
struct last {
	uint64_t first; /* sequence */
	uint8_t pointers[8 * STRIDE];
};

struct shard_index {
	uint64_t tokens;
	uint32_t width;
	bool row;	  /* sequences are contiguous from data_at on; otherwise see `pieces` */
	uint64_t data_at; /* row */
	struct megatron_idx idx;      /* row: kept open, to read boundaries from */
	uint64_t *pointers;	      /* row: every STRIDE-th pointer, from the first */
	_Atomic(struct last *) *last; /* row: [LASTS]; a thread takes a block out to use it */
	struct pieces pieces;
};

/*
 * Recognises a .bin by its .idx, even a damaged one: otherwise the .bin would be served as a flat
 * file.
 */
static bool megatron_recognise(const struct bytes *b)
{
	char path[PATH_MAX];
	struct fault fault;

	if (!megatron_idx_path(b, path, sizeof(path)))
		return false;
	struct bytes *file;
	bool opened = bytes_open_side(b, path, &file, &fault), there = !opened || file;

	bytes_close(file);
	return there;
}

static bool megatron_check_length(uint64_t i, int32_t length, struct fault *fault)
{
	return length >= 0 ||
	       fault_set(fault, FAULT_DATA, "",
		       ".idx: length of sequence %" PRIu64 " is %" PRId32 "; must be 0 to %d", i,
		       length, INT32_MAX);
}

/*
 * Counts the tokens: the sum of all lengths, a read of 4 bytes per sequence. Checking only the
 * first and the last sequence would miss gaps between them.
 */
static bool sum_lengths(const struct megatron_idx *idx, uint64_t *tokens, struct fault *fault)
{
	uint8_t lengths[4 * AT_ONCE];
	uint64_t n;

	*tokens = 0;
	for (uint64_t i = 0; i < idx->sequences; i += n) {
		n = idx->sequences - i < AT_ONCE ? idx->sequences - i : AT_ONCE;
		if (!bytes_read(idx->file, megatron_lengths_at(idx, i), lengths, 4 * n, fault))
			return false;
		for (uint64_t j = 0; j < n; j++) {
			int32_t length = (int32_t)bytes_u32(lengths + 4 * j);

			if (!megatron_check_length(i + j, length, fault))
				return false;
			*tokens += (uint64_t)length;
		}
		if (*tokens >
			INT64_MAX) /* more than any file has; the next block cannot overflow */
			break;
	}
	return true;
}

/*
 * Sequences may leave bytes out, but not have more tokens than the .bin: the index would be that of
 * another .bin.
 */
static bool check_total(
	const struct bytes *b, const struct megatron_idx *idx, uint64_t tokens, struct fault *fault)
{
	return tokens <= b->size / idx->width ||
	       fault_set(fault, FAULT_DATA, "",
		       ".idx: its %" PRIu64 " sequences have %" PRIu64
		       " tokens of %s in total; the .bin has %" PRIu64 " bytes, which is %" PRIu64
		       ": it is truncated, or sequences overlap",
		       idx->sequences, tokens, shard_type_name(idx->type), b->size,
		       b->size / idx->width);
}

static bool megatron_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct megatron_idx idx;
	bool fine = megatron_open_idx(&idx, b, fault);

	facts->tokens = hint->listed ? hint->listed->tokens : 0; /* open() counts them */
	fine = fine && (hint->listed || sum_lengths(&idx, &facts->tokens, fault)) &&
	       check_total(b, &idx, facts->tokens, fault);
	facts->index = idx.file ? idx.file->id : 0;
	bytes_close(idx.file);
	if (!fine)
		return false;
	uint64_t spare = b->size - facts->tokens * idx.width;

	facts->type = idx.type;
	facts->documents = idx.sequences;
	if (idx.modes)
		snprintf(facts->note, sizeof(facts->note),
			"is multimodal: its modes are ignored, and all sequences are served as "
			"tokens");
	else if (spare > 0)
		snprintf(facts->note, sizeof(facts->note),
			"%" PRIu64 " of the .bin's %" PRIu64
			" bytes are in no sequence of the .idx and are not served",
			spare, b->size);
	return true;
}

struct walk {
	const struct megatron_idx *idx;
	uint64_t bin_bytes, tokens; /* tokens: of the sequences so far */
	bool row;		    /* the sequences so far are contiguous */
	uint64_t begin, end;	    /* byte range of the last sequence that is not empty */
	uint32_t rows;		    /* bit w: they would be contiguous with tokens of w bytes */
	uint64_t data_at;	    /* offset of the first sequence */
	uint64_t *pointers;	    /* NULL, or where to store every STRIDE-th pointer */
	struct pieces *pieces;	    /* NULL, or where to add all sequences */
};

static bool take_sequence(
	struct walk *w, uint64_t i, int32_t length, uint64_t pointer, struct fault *fault)
{
	uint32_t width = w->idx->width;

	if (!megatron_check_length(i, length, fault))
		return false;
	uint64_t bytes = (uint64_t)length * width;

	if (pointer > w->bin_bytes || bytes > w->bin_bytes - pointer)
		return fault_set(fault, FAULT_DATA, "",
			".idx: sequence %" PRIu64 " begins at byte %" PRId64 " and has %" PRId32
			" tokens of %s; the .bin has %" PRIu64 " bytes",
			i, (int64_t)pointer, length, shard_type_name(w->idx->type), w->bin_bytes);
	if (pointer % width != 0)
		return fault_set(fault, FAULT_DATA, "",
			".idx: sequence %" PRIu64 " begins at byte %" PRIu64
			"; must be a multiple of %" PRIu32 ", the token size",
			i, pointer, width);
	if (bytes > 0 && pointer > w->begin && pointer < w->end)
		return fault_set(fault, FAULT_DATA, "",
			".idx: sequence %" PRIu64 " begins at byte %" PRIu64
			", within the previous one, bytes %" PRIu64 " to %" PRIu64
			": its pointer or the previous length is wrong",
			i, pointer, w->begin, w->end);
	if (bytes > 0) {
		w->begin = pointer;
		w->end = pointer + bytes;
	}
	if (i == 0)
		w->data_at = pointer;
	if (pointer != w->data_at + w->tokens * width)
		w->row = false;
	for (uint32_t other = 1; other <= 8; other *= 2)
		if (pointer != w->data_at + w->tokens * other)
			w->rows &= ~(1u << other);
	if (w->pointers && i % STRIDE == 0)
		w->pointers[i / STRIDE] = pointer;
	w->tokens += (uint64_t)length;
	return !w->pieces || pieces_add(w->pieces, (uint64_t)length, pointer) ||
	       fault_set(fault, FAULT_DATA, "", ".idx: " PHRASE_CHANGED);
}

static bool walk_sequences(struct walk *w, struct fault *fault)
{
	uint8_t lengths[4 * AT_ONCE], pointers[8 * AT_ONCE];
	const struct megatron_idx *idx = w->idx;
	uint64_t n;

	for (uint64_t i = 0; i < idx->sequences; i += n) {
		n = idx->sequences - i < AT_ONCE ? idx->sequences - i : AT_ONCE;
		if (!bytes_read(idx->file, megatron_lengths_at(idx, i), lengths, 4 * n, fault) ||
			!bytes_read(
				idx->file, megatron_pointers_at(idx, i), pointers, 8 * n, fault))
			return false;
		for (uint64_t j = 0; j < n; j++)
			if (!take_sequence(w, i + j, (int32_t)bytes_u32(lengths + 4 * j),
				    bytes_u64(pointers + 8 * j), fault))
				return false;
	}
	return true;
}

/*
 * Sequences need not be contiguous. But if they would be, and would fill the .bin, with tokens of
 * another width, the dtype is wrong and the tokens would be garbage.
 */
static bool check_width(const struct walk *w, struct fault *fault)
{
	for (uint32_t other = 1; other <= 8 && !w->row; other *= 2)
		if (w->rows >> other & 1 && w->data_at + w->tokens * other == w->bin_bytes)
			return fault_set(fault, FAULT_DATA, "",
				".idx: dtype is %s, of %" PRIu32
				" bytes; its pointers and the .bin's %" PRIu64
				" bytes match tokens of %" PRIu32 " bytes",
				shard_type_name(w->idx->type), w->idx->width, w->bin_bytes, other);
	return true;
}

static bool check_documents(const struct megatron_idx *idx, struct fault *fault)
{
	uint8_t documents[8 * AT_ONCE];
	uint64_t last = 0, n;

	for (uint64_t i = 0; i < idx->documents; i += n) {
		n = idx->documents - i < AT_ONCE ? idx->documents - i : AT_ONCE;
		if (!bytes_read(idx->file, megatron_documents_at(idx, i), documents, 8 * n, fault))
			return false;
		for (uint64_t j = 0; j < n; j++) {
			uint64_t boundary = bytes_u64(documents + 8 * j);
			bool first = i + j == 0;

			if (boundary < last || boundary > idx->sequences ||
				(first && boundary != 0))
				return fault_set(fault, FAULT_DATA, "",
					".idx: document boundary %" PRIu64 " is sequence %" PRId64
					"; must be %" PRIu64 " to %" PRIu64,
					i + j, (int64_t)boundary, last, first ? 0 : idx->sequences);
			last = boundary;
		}
	}
	return last == idx->sequences ||
	       fault_set(fault, FAULT_DATA, "",
		       ".idx: the last document boundary is sequence %" PRIu64 "; must be %" PRIu64
		       ", the number of sequences: its writer did not end the last document",
		       last, idx->sequences);
}

static void megatron_close(struct shard_index *index)
{
	for (int i = 0; index->last && i < LASTS; i++)
		free(atomic_load(&index->last[i]));
	free(index->last);
	bytes_close(index->idx.file);
	free(index->pointers);
	pieces_free(&index->pieces);
	free(index);
}

/* For sequences that are not contiguous: keeps them all in memory, and closes the .idx. */
static bool load_pieces(struct shard_index *index, struct walk *w, struct fault *fault)
{
	struct walk again = {.idx = w->idx, .bin_bytes = w->bin_bytes, .pieces = &index->pieces};

	if (!pieces_new(&index->pieces, w->idx->sequences))
		return fault_memory(fault);
	if (!walk_sequences(&again, fault))
		return false;
	if (again.tokens != w->tokens)
		return fault_set(fault, FAULT_DATA, "", ".idx: " PHRASE_CHANGED);
	if (!pieces_done(&index->pieces))
		return fault_memory(fault);
	if (!bytes_settled(index->idx.file, fault))
		return false;
	bytes_close(index->idx.file);
	index->idx.file = NULL;
	free(index->pointers);
	index->pointers = NULL;
	free(index->last);
	index->last = NULL;
	return true;
}

static bool load(struct shard_index *index, const struct bytes *b, const struct shard_facts *facts,
	struct fault *fault)
{
	struct megatron_idx *idx = &index->idx;

	if (!megatron_open_idx(idx, b, fault))
		return false;
	index->width = idx->width;
	index->pointers = calloc(idx->sequences / STRIDE + 1, sizeof(*index->pointers));
	index->last = calloc(LASTS, sizeof(*index->last));
	if (!index->pointers || !index->last)
		return fault_memory(fault);
	struct walk w = {.idx = idx,
		.bin_bytes = b->size,
		.row = true,
		.rows = ~0u,
		.pointers = index->pointers};

	if (!walk_sequences(&w, fault) || !check_documents(idx, fault) || !check_width(&w, fault))
		return false;
	if (idx->file->id != facts->index || w.tokens != facts->tokens || idx->type != facts->type)
		return fault_set(fault, FAULT_DATA, "", ".idx: " PHRASE_CHANGED_OPENING);
	index->tokens = w.tokens;
	index->row = w.row;
	index->data_at = w.data_at;
	return w.row || load_pieces(index, &w, fault);
}

static struct shard_index *megatron_open(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct shard_index *index = calloc(1, sizeof(*index));

	(void)hint;
	if (!index) {
		fault_memory(fault);
		return NULL;
	}
	if (!load(index, b, facts, fault)) {
		megatron_close(index);
		return NULL;
	}
	facts->plain = index->row;
	facts->data_at = index->row ? index->data_at : 0;
	facts->documents = index->idx.sequences;
	facts->index_bytes = sizeof(*index);
	facts->index_bytes += index->row
				      ? (facts->documents / STRIDE + 1) * sizeof(*index->pointers) +
						LASTS * (sizeof(struct last) + sizeof(*index->last))
				      : pieces_bytes(&index->pieces);
	return index;
}

/* ---- locating tokens and documents ---- */

static uint64_t megatron_extent(
	const struct shard_index *index, uint64_t token, uint64_t *byte, struct fault *fault)
{
	(void)fault;
	if (!index->row)
		return pieces_extent(&index->pieces, index->width, token, byte);
	*byte = index->data_at + token * index->width;
	return index->tokens - token;
}

/* The first of @n ascending pointers that is > @byte, or @n. */
static uint64_t above(const uint8_t *pointers, uint64_t n, uint64_t byte)
{
	uint64_t lo = 0, hi = n;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (bytes_u64(pointers + 8 * mid) > byte)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

/* A thread's entry: each thread usually finds the block that it put back. */
static _Atomic(struct last *) *last_of(const struct shard_index *index)
{
	uint64_t hash = (uint64_t)pthread_self() * UINT64_C(0x9e3779b97f4a7c15);

	return &index->last[hash >> 32 & (LASTS - 1)];
}

/*
 * Takes a block with the pointers of @n sequences from @first on; return it with put_pointers().
 * NULL: @fault.
 */
static struct last *take_pointers(
	const struct shard_index *index, uint64_t first, uint64_t n, struct fault *fault)
{
	struct last *last = atomic_exchange(last_of(index), NULL);

	if (last && last->first == first)
		return last;
	if (!last && !(last = malloc(sizeof(*last)))) {
		fault_memory(fault);
		return NULL;
	}
	last->first = first;
	if (bytes_read(index->idx.file, megatron_pointers_at(&index->idx, first), last->pointers,
		    8 * n, fault))
		return last;
	free(last);
	return NULL;
}

static void put_pointers(const struct shard_index *index, struct last *last)
{
	free(atomic_exchange(last_of(index), last));
}

static uint64_t megatron_document(
	const struct shard_index *index, uint64_t token, struct fault *fault)
{
	const struct megatron_idx *idx = &index->idx;

	if (!index->row)
		return pieces_document(&index->pieces, token);
	uint64_t byte = index->data_at + token * index->width, lo = 0,
		 hi = (idx->sequences - 1) / STRIDE + 1;

	while (hi - lo > 1) { /* the last kept pointer at or below the byte */
		uint64_t mid = lo + (hi - lo) / 2;

		if (index->pointers[mid] > byte)
			hi = mid;
		else
			lo = mid;
	}
	uint64_t first = lo * STRIDE + 1, left = idx->sequences - first,
		 n = left < STRIDE ? left : STRIDE;

	struct last *last = take_pointers(index, first, n, fault);

	if (!last)
		return 0;
	uint64_t i = above(last->pointers, n, byte),
		 pointer = i < n ? bytes_u64(last->pointers + 8 * i) : index->data_at;

	put_pointers(index, last);
	if (i == n && n == left)
		return index->tokens;
	uint64_t boundary = (pointer - index->data_at) / index->width;

	if (boundary <= token || boundary > index->tokens) {
		fault_set(fault, FAULT_DATA, "",
			".idx: pointer of sequence %" PRIu64 " changed after the shard was opened",
			first + i);
		return 0;
	}
	return boundary;
}

static const struct bytes *megatron_side(const struct shard_index *index)
{
	return index->idx.file;
}

static const struct shard_companion megatron_companions[] = {
	{.ending = ".idx", .shard = ".bin", .kind = "a Megatron index"},
	{0},
};

const struct shard_format shard_megatron = {
	.name = "megatron",
	.recognise = megatron_recognise,
	.describe = megatron_describe,
	.companions = megatron_companions,
	.open = megatron_open,
	.close = megatron_close,
	.extent = megatron_extent,
	.document = megatron_document,
	.side = megatron_side,
};
