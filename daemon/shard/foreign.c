#include "daemon/shard/foreign.h"

#include <string.h>

enum { TEXT_LEAST = 32 }; /* bytes; fewer may be tokens that happen to be printable */

/*
 * Magic numbers that a file of tokens is unlikely to begin with. `format: flat` skips this check.
 */
static const struct {
	const char *bytes;
	size_t n;
	const char *kind;
} magics[] = {
	{"MMIDIDX\0\0", 9, "a Megatron index"},
	{"PK\3\4", 4, "a zip archive (.npz, or torch.save)"},
	{"\xfd"
	 "7zXZ\0",
		6, "xz-compressed"},
	{"PAR1", 4,
		"a Parquet file (`python -m tokend.tokenize --column input_ids -o DIR FILE` makes "
		"shards of it)"},
	{"\x04\"M\x18", 4, "lz4-compressed"},
	{"\x28\xb5\x2f\xfd", 4, "zstd-compressed twice"},
	{"GGUF", 4, "a GGUF file"},
	{"SQLite format 3\0", 16, "an SQLite database"},
	{"version https://", 16, "a Git LFS pointer (`git lfs pull` fetches the file)"},
	{"\x89HDF\r\n\x1a\n", 8, "an HDF5 file"},
};

/* Protocols 4 and 5 begin with the length of a frame; 2 and 3 are recognised by how they end. */
static bool is_pickle(const struct bytes *b, const uint8_t *head, size_t n)
{
	struct fault fault;
	uint8_t last;

	if (n < 12 || head[0] != 0x80 || head[1] < 2 || head[1] > 5)
		return false;
	if (head[1] >= 4)
		return head[2] == 0x95 && bytes_u64(head + 3) <= b->size - 11;
	return bytes_read(b, b->size - 1, &last, 1, &fault) && last == '.' &&
	       strchr("}](cX)K", head[2]) && head[2];
}

/* Its magic has only three bytes, so check the header's other fields too: they have few values. */
static bool is_gzip(const uint8_t *head, size_t n)
{
	return n >= 10 && memcmp(head, "\x1f\x8b\x08", 3) == 0 && (head[3] & 0xe0) == 0 &&
	       (head[8] == 0 || head[8] == 2 || head[8] == 4) && (head[9] <= 13 || head[9] == 255);
}

/* Whether all bytes are printable. */
static bool is_text(const uint8_t *head, size_t n)
{
	size_t i = 0;

	while (i < n && ((head[i] >= ' ' && head[i] <= '~') || strchr("\t\r\n", head[i])) &&
		head[i])
		i++;
	return n >= TEXT_LEAST && i == n;
}

const char *foreign_kind(const struct bytes *b)
{
	uint8_t head[512];
	size_t n = bytes_head(b, head, sizeof(head));

	for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++)
		if (n >= magics[i].n && memcmp(head, magics[i].bytes, magics[i].n) == 0)
			return magics[i].kind;
	if (is_gzip(head, n))
		return "gzip-compressed";
	if (n >= 10 && memcmp(head, "BZh", 3) == 0 && memcmp(head + 4, "1AY&SY", 6) == 0)
		return "bzip2-compressed";
	if (n > 10 && head[8] == '{' && head[9] == '"' && bytes_u64(head) <= b->size - 8)
		return "a safetensors file";
	if (n > 262 && memcmp(head + 257, "ustar", 5) == 0)
		return "a tar archive";
	return is_pickle(b, head, n) ? "a Python pickle" : is_text(head, n) ? "text" : NULL;
}
