/*
 * Megatron's X.bin and X.idx. The .bin is tokens without a header. The .idx has their type, and the
 * length and byte offset of each sequence. Megatron trains on each sequence as a document, so a
 * sequence is a document here. The documents in the index are runs of sequences; they are checked
 * and otherwise ignored.
 *
 * Sequences usually follow one another in the .bin. Otherwise the tokens are those of the
 * sequences, in the order of the index. Bytes outside sequences are not served.
 *
 * The .idx has a header, with the numbers of sequences (N) and document boundaries (D). Three
 * arrays follow without gaps: lengths i32[N], pointers i64[N], documents i64[D]. Multimodal files
 * also have modes i8[N].
 */
#include "daemon/shard/format.h"
#include "daemon/shard/map.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
	VERSION_AT = 9,
	TYPE_AT = 17,
	SEQUENCES_AT = 18,
	DOCUMENTS_AT = 26,
	HEADER_BYTES = 34,
};

/* An .idx whose header has been read and compared with its size. */
struct idx {
	const struct bytes *file;
	enum shard_type type;
	uint32_t width;
	uint64_t sequences, documents; /* lengths of the arrays */
	bool modes;
};

static const char magic[9] = "MMIDIDX\0"; /* and the 0 that ends the string */

static const struct {
	const char *name;
	enum shard_type type;
	bool integer;
} types[] = {
	[1] = {"u8", SHARD_U8, true},
	[2] = {"i8", SHARD_I8, true},
	[3] = {"i16", SHARD_I16, true},
	[4] = {"i32", SHARD_I32, true},
	[5] = {"i64", SHARD_I64, true},
	[6] = {"f64", 0, false},
	[7] = {"f32", 0, false},
	[8] = {"u16", SHARD_U16, true},
};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

#define refuse(...) fault_set(fault, FAULT_DATA, "", ".idx: " __VA_ARGS__)

/* ---- the header ---- */

/* The arrays must fill the file exactly, otherwise neither length can be trusted. */
static bool check_counts(struct idx *idx, struct fault *fault)
{
	uint64_t rest = idx->file->size - HEADER_BYTES;

	if (idx->documents == 0)
		return refuse("document count is 0; must be at least 1 (the boundary before the "
			      "first)");
	if (idx->sequences > rest / 12)
		return refuse("sequence count is %" PRIu64 "; its %" PRIu64
			      " bytes after the header hold at most %" PRIu64,
			idx->sequences, rest, rest / 12);
	rest -= 12 * idx->sequences;
	if (idx->documents > rest / 8)
		return refuse("document count is %" PRIu64 "; its %" PRIu64
			      " bytes after the %" PRIu64 " sequences hold at most %" PRIu64,
			idx->documents, rest, idx->sequences, rest / 8);
	rest -= 8 * idx->documents;
	idx->modes = rest > 0;
	return rest == 0 || rest == idx->sequences ||
	       refuse("has %" PRIu64 " bytes after its %" PRIu64 " sequences and %" PRIu64
		      " document boundaries; must have 0, or %" PRIu64 " (modes): a count is wrong",
		       rest, idx->sequences, idx->documents, idx->sequences);
}

static bool read_header(struct idx *idx, struct fault *fault)
{
	uint64_t size = idx->file->size;
	size_t n = size < HEADER_BYTES ? (size_t)size : HEADER_BYTES;
	uint8_t head[HEADER_BYTES] = {0};
	char text[sizeof(magic) + 1];

	if (!bytes_read(idx->file, 0, head, n, fault))
		return false;
	if (memcmp(head, magic, n < sizeof(magic) ? n : sizeof(magic)) != 0)
		return refuse("magic is '%s'; must be MMIDIDX: it is not a Megatron index, or is "
			      "damaged; if the .bin holds plain tokens, set `format: flat` and "
			      "move the .idx away",
			bytes_shown(head, n, text, sizeof(text)));
	if (n < HEADER_BYTES)
		return refuse("its size is %" PRIu64 " bytes; the header alone has %d: it is "
			      "truncated, or its writer was not closed",
			size, HEADER_BYTES);
	uint64_t version = bytes_u64(head + VERSION_AT);
	unsigned type = head[TYPE_AT];

	if (version != 1)
		return refuse("version is %" PRIu64 "; must be 1", version);
	if (type >= TYPES || !types[type].integer)
		return refuse("dtype is %u (%s), which is not an integer type; must be u8, i8, "
			      "i16, i32, i64 or u16",
			type, type < TYPES && types[type].name ? types[type].name : "unknown");
	idx->type = types[type].type;
	idx->width = shard_type_bytes(idx->type);
	idx->sequences = bytes_u64(head + SEQUENCES_AT);
	idx->documents = bytes_u64(head + DOCUMENTS_AT);
	return check_counts(idx, fault);
}

/* ---- sequences and documents ---- */

struct walk {
	const struct idx *idx;
	uint64_t bin_bytes, tokens; /* tokens: of the sequences so far */
	uint64_t begin, end;	    /* byte range of the last sequence that is not empty */
	uint64_t data_at;	    /* offset of the first sequence */
	uint32_t widths; /* in bytes, ORed: with tokens of that width they would be contiguous */
	struct map *map;
};

/* Adds a sequence that begins at byte @pointer, as the index says. */
static bool add_sequence(
	struct walk *w, uint64_t i, int32_t length, uint64_t pointer, struct fault *fault)
{
	uint64_t width = w->idx->width, bytes = (uint64_t)length * width;

	if (pointer > w->bin_bytes || bytes > w->bin_bytes - pointer)
		return refuse("sequence %" PRIu64 " begins at byte %" PRId64 " and has %" PRId32
			      " tokens of %s; the .bin has %" PRIu64 " bytes",
			i, (int64_t)pointer, length, shard_type_name(w->idx->type), w->bin_bytes);
	if (pointer % width != 0)
		return refuse("sequence %" PRIu64 " begins at byte %" PRIu64
			      "; must be a multiple of %" PRIu64 ", the token size",
			i, pointer, width);
	if (bytes > 0 && pointer > w->begin && pointer < w->end)
		return refuse("sequence %" PRIu64 " begins at byte %" PRIu64
			      ", within the previous one, bytes %" PRIu64 " to %" PRIu64
			      ": its pointer or the previous length is wrong",
			i, pointer, w->begin, w->end);
	if (bytes > 0) {
		w->begin = pointer;
		w->end = pointer + bytes;
	}
	if (i == 0)
		w->data_at = pointer;
	for (uint32_t other = 1; other <= 8; other *= 2)
		if (pointer != w->data_at + w->tokens * other)
			w->widths &= ~other;
	return map_add(w->map, pointer, (uint64_t)length, false) || fault_memory(fault);
}

/*
 * Counts the tokens of all sequences, and adds these to w->map unless it is NULL. Checking only the
 * first and the last sequence would miss gaps between them. Sequences may leave bytes out, but not
 * have more tokens than the .bin: the index would be that of another .bin.
 */
static bool walk_sequences(struct walk *w, struct fault *fault)
{
	const struct idx *idx = w->idx;
	uint64_t at = HEADER_BYTES, n = idx->sequences, most = w->bin_bytes / idx->width;
	struct bytes_array lengths = {.b = idx->file, .at = at, .count = n, .width = 4};
	struct bytes_array pointers = {.b = idx->file, .at = at + 4 * n, .count = n, .width = 8};

	for (uint64_t i = 0; i < n && w->tokens <= most; i++) {
		const uint8_t *item = bytes_item(&lengths, i, fault);

		if (!item)
			return false;
		int32_t length = (int32_t)bytes_u32(item);

		if (length < 0)
			return refuse("length of sequence %" PRIu64 " is %" PRId32
				      "; must be 0 to %d",
				i, length, INT32_MAX);
		if (w->map && (!(item = bytes_item(&pointers, i, fault)) ||
				      !add_sequence(w, i, length, bytes_u64(item), fault)))
			return false;
		w->tokens += (uint64_t)length;
	}
	return w->tokens <= most ||
	       refuse("its %" PRIu64 " sequences have over %" PRIu64
		      " tokens of %s in total, which the .bin's %" PRIu64
		      " bytes hold at most: it is truncated, or sequences overlap",
		       n, most, shard_type_name(idx->type), w->bin_bytes);
}

/*
 * Sequences need not be contiguous. But if they would be, and would fill the .bin, with tokens of
 * another width, the dtype is wrong and the tokens would be garbage.
 */
static bool check_width(const struct walk *w, struct fault *fault)
{
	uint32_t width = w->idx->width;

	for (uint32_t other = 1; other <= 8 && !(w->widths & width); other *= 2)
		if (w->widths & other && w->data_at + w->tokens * other == w->bin_bytes)
			return refuse("dtype is %s, of %" PRIu32
				      " bytes; its pointers and the .bin's %" PRIu64
				      " bytes match tokens of %" PRIu32 " bytes",
				shard_type_name(w->idx->type), width, w->bin_bytes, other);
	return true;
}

/* The boundaries ascend from the first sequence to the last. */
static bool check_documents(const struct idx *idx, struct fault *fault)
{
	struct bytes_array boundaries = {.b = idx->file,
		.at = HEADER_BYTES + 12 * idx->sequences,
		.count = idx->documents,
		.width = 8};
	uint64_t last = 0;

	for (uint64_t i = 0; i < idx->documents; i++) {
		const uint8_t *item = bytes_item(&boundaries, i, fault);
		uint64_t most = i == 0 ? 0 : idx->sequences;

		if (!item)
			return false;
		if (bytes_u64(item) < last || bytes_u64(item) > most)
			return refuse("document boundary %" PRIu64 " is sequence %" PRId64
				      "; must be %" PRIu64 " to %" PRIu64,
				i, (int64_t)bytes_u64(item), last, most);
		last = bytes_u64(item);
	}
	return last == idx->sequences ||
	       refuse("the last document boundary is sequence %" PRIu64 "; must be %" PRIu64
		      ", the number of sequences: its writer did not end the last document",
		       last, idx->sequences);
}

/* ---- the shard ---- */

static const struct shard_side_name index_name = {".bin", ".idx"};

/*
 * Recognises a .bin by its .idx, even a damaged one: otherwise the .bin would be served as a flat
 * file.
 */
static bool megatron_recognise(const struct bytes *b)
{
	char path[PATH_MAX];
	struct fault fault;
	struct bytes *file;

	if (!bytes_side_path(b->path, index_name.shard, index_name.side, path, sizeof(path)))
		return false;
	bool opened = bytes_open_side(b, path, &file, &fault), there = !opened || file;

	bytes_close(file);
	return there;
}

static bool megatron_scan(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
	struct fault *fault)
{
	struct idx idx = {.file = index};

	(void)hint;
	if (!index && !bytes_ending(b->path, index_name.shard))
		return fault_set(fault, FAULT_DATA, "",
			"its name does not end in .bin; a Megatron shard is X.bin with X.idx next "
			"to it: give the .bin");
	if (!index)
		return fault_set(fault, FAULT_DATA, "",
			"has no .idx next to it, which a Megatron shard needs; add it, or set "
			"`format: flat` if the .bin holds plain tokens");
	if (!read_header(&idx, fault))
		return false;
	struct walk w = {.idx = &idx, .bin_bytes = b->size, .widths = ~0u, .map = map};

	if (map)
		map->width = idx.width;
	if (!walk_sequences(&w, fault) ||
		(map && !(check_documents(&idx, fault) && check_width(&w, fault))))
		return false;
	facts->type = idx.type;
	facts->tokens = w.tokens;
	facts->documents = idx.sequences;
	facts->plain = false;
	uint64_t spare = b->size - facts->tokens * idx.width;

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

static const struct shard_companion companions[] = {
	{.ending = ".idx", .shard = ".bin", .kind = "a Megatron index"},
	{0},
};

const struct shard_format shard_megatron = {
	.name = "megatron",
	.recognise = megatron_recognise,
	.scan = megatron_scan,
	.indexed = true,
	.index = &index_name,
	.companions = companions,
};
