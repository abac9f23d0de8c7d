#include "daemon/shard/format.h"

#include <string.h>

enum {
	HEAD_BYTES = 512,
	TEXT_LEAST = 32, /* bytes; fewer may be tokens that happen to be printable */
	TEXT_WHOLE = 12, /* the same if the file has no more */
	COUNTED_LEAST = 64,
	MOST_IDS = 1 << 18, /* of a tokenizer */
};

#define M(bytes)                                                                                   \
	{                                                                                          \
		bytes, sizeof(bytes) - 1                                                           \
	}

/* Magic numbers that a file of tokens is unlikely to have there. */
static const struct {
	const char *kind;
	size_t at;
	struct {
		const char *bytes;
		size_t n;
	} magic[9];
} kinds[] = {
	{"a Megatron index; give the .bin", 0, {M("MMIDIDX\0\0")}},
	{"an index of fairseq or early Megatron", 0, {M("TNTIDX\0\0")}},
	{"a PackedDataset chunk of lit-gpt; write its tokens without its 24 bytes of header", 0,
		{M("LITPKDS")}},
	{"a Parquet file; use `python -m tokend tokenize --column input_ids -o DIR FILE`", 0,
		{M("PAR1"), M("PARE")}},
	{"a Feather file of version 1; write it with pyarrow.ipc.new_file", 0, {M("FEA1")}},
	{"a list of splits by Hugging Face; set path: to the directory of one", 0,
		{M("{\"splits\": [")}},
	{"a Git LFS pointer (`git lfs pull` fetches the file)", 0, {M("version https://")}},
	{"a zip archive (.npz, or torch.save)", 0, {M("PK\3\4")}},
	{"zstd-compressed twice", 0, {M("\x28\xb5\x2f\xfd")}},
	{"compressed (by xz, lz4, snappy, lzip or lzma); decompress it", 0,
		{M("\3757zXZ\0"), M("\x04\"M\x18"), M("\xff\x06\0\0sNaPpY"), M("LZIP\1"),
			M("]\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff")}},
	{"bzip2-compressed; decompress it", 4, {M("1AY&SY")}},
	{"an archive", 0, {M("7z\xbc\xaf\x27\x1c"), M("Rar!\x1a\7"), M("!<arch>\n"), M("070701")}},
	{"a tar archive", 257, {M("ustar")}},
	{"a file of torch.save", 0, {M("\200\2\212\nl\374\234F\371 j\250P\031.")}},
	{"a model (GGUF, GGML, fastText, KenLM or llama2.c)", 0,
		{M("GGUF"), M("lmgg"), M("tjgg"), M("\xba\x16\x4f\x2f"), M("mmap lm http"),
			M("24ka")}},
	{"a model, state, tokenizer or evaluation file of llm.c", 0,
		{M("\xc6\xd7\x34\x01"), M("\xc7\xd7\x34\x01"), M("\xc8\xd7\x34\x01"),
			M("\x8f\xd8\x34\x01"), M("\x8a\xd8\x34\x01"), M("\x01\x34\xd8\x8a")}},
	{"a file of HDF5, NetCDF, Avro, ORC, Hadoop, RecordIO or SQLite", 0,
		{M("\x89HDF\r\n\x1a\n"), M("CDF\1"), M("CDF\2"), M("Obj\1"), M("ORC"), M("SEQ\6"),
			M("\x0a\x23\xd7\xce"), M("SQLite format 3\0")}},
	{"an LMDB database", 16, {M("\xde\xc0\xef\xbe")}},
	{"an image", 0,
		{M("\x89PNG\r\n\x1a\n"), M("GIF8"), M("\xff\xd8\xff\xe0"), M("\xff\xd8\xff\xe1"),
			M("\xff\xd8\xff\xdb"), M("II*\0"), M("MM\0*")}},
	{"a document, sound or video", 0,
		{M("%PDF-"), M("RIFF"), M("OggS"), M("fLaC"), M("ID3\2"), M("ID3\3"), M("ID3\4"),
			M("\x1a\x45\xdf\xa3")}},
	{"a video (MP4) or a TensorFlow Lite model", 4, {M("ftyp"), M("TFL3")}},
	{"a program, a library or a file of Git", 0,
		{M("\177ELF"), M("\xcf\xfa\xed\xfe"), M("\xca\xfe\xba\xbe"), M("\0asm\1\0\0\0"),
			M("PACK\0\0\0\2"), M("DIRC\0\0\0")}},
	{"UTF-32 text", 0, {M("\xff\xfe\0\0")}},
};

/* Protocols 4 and 5 begin with the length of a frame; 2 and 3 are recognised by how they end. */
static bool is_pickle(const struct bytes *b)
{
	const uint8_t *head = b->head;
	struct fault fault;
	uint8_t last;

	if (b->size < 12 || head[0] != 0x80 || head[1] < 2 || head[1] > 5)
		return false;
	if (head[1] >= 4)
		return head[2] == 0x95 && bytes_u64(head + 3) <= b->size - 11;
	return bytes_read(b, b->size - 1, &last, 1, &fault) && last == '.' &&
	       strchr("}](cX)K", head[2]) && head[2];
}

/* The length of the UTF-8 character at @p; 0: none, or a control character. */
static size_t character(const uint8_t *p)
{
	size_t n = *p < 0x80		     ? 1
		   : *p >= 0xc2 && *p < 0xe0 ? 2
		   : *p >= 0xe0 && *p < 0xf0 ? 3
		   : *p >= 0xf0 && *p < 0xf5 ? 4
					     : 0;

	if (n == 1)
		return (*p >= ' ' && *p != 0x7f) || (*p && strchr("\t\r\n\f\033", *p));
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

static bool is_text(const struct bytes *b, size_t n)
{
	size_t c = 1;

	for (size_t i = 0; i < n && c > 0; i += c)
		c = character(b->head + i);
	return c > 0 && n >= (b->size == n ? TEXT_WHOLE : TEXT_LEAST);
}

/* UTF-16 with a byte order mark: half of the bytes of most languages repeat. */
static bool is_utf16(const uint8_t *head, size_t n)
{
	size_t same = 0, high = head[0] == 0xff;

	if (n < TEXT_LEAST ||
		(memcmp(head, "\xff\xfe", 2) != 0 && memcmp(head, "\xfe\xff", 2) != 0))
		return false;
	for (size_t i = 2 + high; i + 2 < n; i += 2)
		same += head[i] == head[i + 2] || (head[i] >= 0x4e && head[i] <= 0x9f);
	return same > n / 4;
}

static bool is_gzip(const uint8_t *head, size_t n)
{
	return n >= 10 && memcmp(head, "\x1f\x8b\x08", 3) == 0 && (head[3] & 0xe0) == 0 &&
	       (head[8] == 0 || head[8] == 2 || head[8] == 4) && (head[9] <= 13 || head[9] == 255);
}

const char *foreign_kind(const struct bytes *b)
{
	size_t n = b->size < HEAD_BYTES ? (size_t)b->size : HEAD_BYTES;
	char first[20] = "", *after = first;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		for (size_t k = 0; kinds[i].magic[k].n > 0; k++)
			if (n >= kinds[i].at + kinds[i].magic[k].n &&
				memcmp(b->head + kinds[i].at, kinds[i].magic[k].bytes,
					kinds[i].magic[k].n) == 0)
				return kinds[i].kind;
	if (n > 10 && b->head[8] == '{' && (b->head[9] == '"' || b->head[9] == '}') &&
		bytes_u64(b->head) <= b->size - 8)
		return "a safetensors file";
	/* "10000\r\n" or "10000;chunk-signature=…" */
	memcpy(first, b->head, sizeof(first) - 1);
	after += strspn(first, "0123456789ABCDEFabcdef");
	if (after - first >= 4 &&
		(strncmp(after, "\r\n", 2) == 0 || strncmp(after, ";chunk-", 7) == 0))
		return "stored with the chunks of its upload; upload it with another program";
	return is_gzip(b->head, n)    ? "gzip-compressed; decompress it"
	       : is_pickle(b)	      ? "a Python pickle"
	       : is_text(b, n)	      ? "text"
	       : is_utf16(b->head, n) ? "UTF-16 text"
				      : NULL;
}

/*
 * The number of tokens, in @n bytes, and then only tokens. A small number may be a token that
 * happens to be equal: then their width must be right, too.
 */
static bool is_counted(const struct bytes *b, uint64_t count, size_t n, uint32_t width)
{
	uint64_t rest = b->size - n;

	return count > 0 && rest % count == 0 &&
	       (rest / count == width || (count > MOST_IDS && rest / count <= 8 &&
						 __builtin_popcountll(rest / count) == 1));
}

/* A number of samples, and their offsets in the file; in MDS then a description. */
static const char *samples_kind(const struct bytes *b)
{
	uint64_t n = bytes_u32(b->head), end = 4 + 4 * (n + 1), begin = bytes_u32(b->head + 4);
	uint8_t last[5]; /* the last offset, and what follows */
	struct fault fault;

	if (n == 0 || begin < end || !bytes_read(b, end - 4, last, sizeof(last), &fault) ||
		bytes_u32(last) != b->size)
		return NULL;
	return last[4] == '{' ? "an MDS shard; name it .mds, and keep its index.json"
	       : begin == end ? "a litData chunk"
			      : NULL;
}

const char *foreign_to_plain(const struct bytes *b, enum shard_type type)
{
	const uint8_t *head = b->head;
	uint32_t width = shard_type_bytes(type), schema = bytes_u32(head + 4);

	if (b->size < COUNTED_LEAST)
		return NULL;
	if (shard_llmc.recognise(b))
		return "an llm.c file; set `format: llmc`";
	if (shard_npy.recognise(b))
		return "a NumPy file; set `format: npy`";
	if (memcmp(head, "ARROW1", 6) == 0 ||
		(bytes_u32(head) == UINT32_MAX && schema % 8 == 0 && schema > 0 &&
			schema < b->size && bytes_u32(head + 8) < schema))
		return "an Arrow file or an Arrow stream; name it .arrow, or set `format: arrow`";
	if (is_counted(b, bytes_u64(head), 8, width) ||
		(b->size >= HEAD_BYTES && is_counted(b, bytes_u32(head), 4, width)))
		return "tokens after a header, their number; write the tokens alone";
	return samples_kind(b);
}
