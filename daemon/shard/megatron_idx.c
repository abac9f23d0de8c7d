#include "daemon/shard/megatron_idx.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

enum {
	VERSION_AT = 9,
	TYPE_AT = 17,
	SEQUENCES_AT = 18,
	DOCUMENTS_AT = 26,
	HEADER_BYTES = 34,
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

bool megatron_idx_path(const struct bytes *b, char *path, size_t path_bytes)
{
	return bytes_side_path(b->path, ".bin", ".idx", path, path_bytes);
}

uint64_t megatron_lengths_at(const struct megatron_idx *idx, uint64_t i)
{
	(void)idx;
	return HEADER_BYTES + 4 * i;
}

uint64_t megatron_pointers_at(const struct megatron_idx *idx, uint64_t i)
{
	return HEADER_BYTES + 4 * idx->sequences + 8 * i;
}

uint64_t megatron_documents_at(const struct megatron_idx *idx, uint64_t i)
{
	return HEADER_BYTES + 12 * idx->sequences + 8 * i;
}

static bool check_magic(const uint8_t *head, uint64_t size, struct fault *fault)
{
	uint64_t n = size < sizeof(magic) ? size : sizeof(magic);
	char text[sizeof(magic) + 1];

	if (size == 0)
		return fault_set(fault, FAULT_DATA, "",
			".idx: its size is 0 bytes; the header alone has %d: its writer was not "
			"closed",
			HEADER_BYTES);

	if (size >= 8 && memcmp(head, "TNTIDX\0\0", 8) == 0)
		return fault_set(fault, FAULT_DATA, "",
			".idx: magic is TNTIDX, as in indexes of fairseq and early Megatron; must "
			"be MMIDIDX: write it again with a Megatron of 2020 or later");
	if (memcmp(head, magic, n) != 0)
		return fault_set(fault, FAULT_DATA, "",
			".idx: magic is '%s'; must be MMIDIDX: it is not a Megatron index, or is "
			"damaged; if the .bin holds plain tokens, set `format: flat` and move the "
			".idx away",
			bytes_shown(head, n, text, sizeof(text)));
	if (size < HEADER_BYTES)
		return fault_set(fault, FAULT_DATA, "",
			".idx: its size is %" PRIu64
			" bytes; the header alone has %d: it is truncated",
			size, HEADER_BYTES);
	return true;
}

/* The arrays must fill the file exactly, otherwise neither length can be trusted. */
static bool check_counts(struct megatron_idx *idx, struct fault *fault)
{
	uint64_t rest = idx->file->size - HEADER_BYTES;

	if (idx->sequences > 0 && (rest + 8) / 12 == idx->sequences && (rest + 8) % 12 == 0)
		return fault_set(fault, FAULT_DATA, "",
			".idx: has no document boundaries, as fairseq writes it; a Megatron index "
			"has "
			"them: write the data again with Megatron's writer");
	if (idx->documents == 0)
		return fault_set(fault, FAULT_DATA, "",
			".idx: document count is 0; must be at least 1 (the boundary before the "
			"first)");
	if (idx->sequences > rest / 12)
		return fault_set(fault, FAULT_DATA, "",
			".idx: sequence count is %" PRIu64 "; its %" PRIu64
			" bytes after the header hold at most %" PRIu64,
			idx->sequences, rest, rest / 12);
	rest -= 12 * idx->sequences;
	if (idx->documents > rest / 8)
		return fault_set(fault, FAULT_DATA, "",
			".idx: document count is %" PRIu64 "; its %" PRIu64
			" bytes after the %" PRIu64 " sequences hold at most %" PRIu64,
			idx->documents, rest, idx->sequences, rest / 8);
	rest -= 8 * idx->documents;
	if (idx->sequences == 0 && rest > 0)
		return fault_set(fault, FAULT_DATA, "",
			".idx: sequence count is 0, and there are %" PRIu64
			" bytes after the %" PRIu64 " document boundaries; must be none",
			rest, idx->documents);
	idx->modes = rest > 0;
	return rest == 0 || rest == idx->sequences ||
	       fault_set(fault, FAULT_DATA, "",
		       ".idx: has %" PRIu64 " bytes after its %" PRIu64 " sequences and %" PRIu64
		       " document boundaries; must have 0, or %" PRIu64 " (modes)",
		       rest, idx->sequences, idx->documents, idx->sequences);
}

static bool read_header(struct megatron_idx *idx, struct fault *fault)
{
	uint8_t head[HEADER_BYTES] = {0};

	size_t n = idx->file->size < sizeof(head) ? (size_t)idx->file->size : sizeof(head);

	if (!bytes_read(idx->file, 0, head, n, fault) || !check_magic(head, idx->file->size, fault))
		return false;
	uint64_t version = bytes_u64(head + VERSION_AT);
	unsigned type = head[TYPE_AT];

	if (version != 1)
		return fault_set(
			fault, FAULT_DATA, "", ".idx: version is %" PRIu64 "; must be 1", version);
	if (type >= TYPES || !types[type].name)
		return fault_set(
			fault, FAULT_DATA, "", ".idx: dtype is %u; must be 1 to 5 or 8", type);
	if (!types[type].integer)
		return fault_set(fault, FAULT_DATA, "",
			".idx: dtype is %u (%s), which is not an integer type; must be u8, i8, "
			"i16, i32, i64 or u16",
			type, types[type].name);
	idx->type = types[type].type;
	idx->width = shard_type_bytes(idx->type);
	idx->sequences = bytes_u64(head + SEQUENCES_AT);
	idx->documents = bytes_u64(head + DOCUMENTS_AT);
	return check_counts(idx, fault);
}

bool megatron_open_idx(struct megatron_idx *idx, const struct bytes *b, struct fault *fault)
{
	char path[PATH_MAX];

	*idx = (struct megatron_idx){0};
	if (!megatron_idx_path(b, path, sizeof(path)))
		return fault_set(fault, FAULT_DATA, "",
			"its name does not end in .bin; a Megatron shard is X.bin with X.idx next "
			"to it: give the .bin");
	if (!bytes_open_side(b, path, &idx->file, fault))
		return false;
	if (!idx->file)
		return fault_set(fault, FAULT_DATA, "",
			"has no .idx next to it, which a Megatron shard needs; add it, or set "
			"`format: flat` if the .bin holds plain tokens");
	idx->file->path = NULL; /* it points to our stack */
	return read_header(idx, fault);
}
