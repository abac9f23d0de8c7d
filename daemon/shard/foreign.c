#include "daemon/shard/format.h"

#include <string.h>

enum {
	HEAD_BYTES = 512,
	TEXT_LEAST = 32, /* bytes; fewer may be tokens that happen to be printable */
	TEXT_WHOLE = 12, /* the same if the file has no more */
	COUNTED_LEAST = 64,
	MOST_IDS = 1 << 18, /* of a tokenizer */
};

#define AT(at, bytes) at, bytes, sizeof(bytes) - 1

/* Magic numbers that a file of tokens is unlikely to have there. */
static const struct {
	const char *kind;
	size_t at;
	const char *bytes;
	size_t n;
} magics[] = {
	{"a Megatron index; give the .bin", AT(0, "MMIDIDX\0\0")},
	{"an index of fairseq or early Megatron", AT(0, "TNTIDX\0\0")},
	{"a PackedDataset chunk of lit-gpt; write its tokens without its 24 bytes of header",
		AT(0, "LITPKDS")},
	{"a zip archive (.npz, or torch.save)", AT(0, "PK\3\4")},
	{"xz-compressed; decompress it", AT(0, "\3757zXZ\0")},
	{"a Parquet file; use `python -m tokend tokenize --column input_ids -o DIR FILE`",
		AT(0, "PAR1")},
	{"an encrypted Parquet file", AT(0, "PARE")},
	{"a Feather file of version 1; write it with pyarrow.ipc.new_file", AT(0, "FEA1")},
	{"lz4-compressed; decompress it", AT(0, "\x04\"M\x18")},
	{"zstd-compressed twice", AT(0, "\x28\xb5\x2f\xfd")},
	{"snappy-compressed; decompress it", AT(0, "\xff\x06\0\0sNaPpY")},
	{"lzip-compressed; decompress it", AT(0, "LZIP\1")},
	{"lzma-compressed; decompress it", AT(0, "]\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff")},
	{"a 7-Zip archive", AT(0, "7z\xbc\xaf\x27\x1c")},
	{"a RAR archive", AT(0, "Rar!\x1a\7")},
	{"an ar archive", AT(0, "!<arch>\n")},
	{"a cpio archive", AT(0, "070701")},
	{"a tar archive", AT(257, "ustar")},
	{"a GGUF file", AT(0, "GGUF")},
	{"a GGML model", AT(0, "lmgg")},
	{"a GGML model", AT(0, "tjgg")},
	{"a TensorFlow Lite model", AT(4, "TFL3")},
	{"an SQLite database", AT(0, "SQLite format 3\0")},
	{"an LMDB database", AT(16, "\xde\xc0\xef\xbe")},
	{"a Git LFS pointer (`git lfs pull` fetches the file)", AT(0, "version https://")},
	{"an HDF5 file", AT(0, "\x89HDF\r\n\x1a\n")},
	{"a NetCDF file", AT(0, "CDF\1")},
	{"a NetCDF file", AT(0, "CDF\2")},
	{"an Avro file", AT(0, "Obj\1")},
	{"an ORC file", AT(0, "ORC")},
	{"a Hadoop sequence file", AT(0, "SEQ\6")},
	{"a RecordIO file", AT(0, "\x0a\x23\xd7\xce")},
	{"a PNG image", AT(0, "\x89PNG\r\n\x1a\n")},
	{"a GIF image", AT(0, "GIF8")},
	{"a JPEG image", AT(0, "\xff\xd8\xff\xe0")},
	{"a JPEG image", AT(0, "\xff\xd8\xff\xe1")},
	{"a JPEG image", AT(0, "\xff\xd8\xff\xdb")},
	{"a TIFF image", AT(0, "II*\0")},
	{"a TIFF image", AT(0, "MM\0*")},
	{"a RIFF file (sound, video or an image)", AT(0, "RIFF")},
	{"an Ogg file", AT(0, "OggS")},
	{"a FLAC file", AT(0, "fLaC")},
	{"an MP3 file", AT(0, "ID3\2")},
	{"an MP3 file", AT(0, "ID3\3")},
	{"an MP3 file", AT(0, "ID3\4")},
	{"an MP4 file", AT(4, "ftyp")},
	{"a Matroska file", AT(0, "\x1a\x45\xdf\xa3")},
	{"a PDF document", AT(0, "%PDF-")},
	{"an ELF program or library", AT(0, "\177ELF")},
	{"a Mach-O program or library", AT(0, "\xcf\xfa\xed\xfe")},
	{"a Java class or Mach-O program", AT(0, "\xca\xfe\xba\xbe")},
	{"a WebAssembly module", AT(0, "\0asm\1\0\0\0")},
	{"a Git pack", AT(0, "PACK\0\0\0\2")},
	{"a Git index", AT(0, "DIRC\0\0\0")},
	{"a fastText model", AT(0, "\xba\x16\x4f\x2f")},
	{"a KenLM model", AT(0, "mmap lm http")},
	{"a llama2.c model", AT(0, "24ka")},
	{"a file of torch.save", AT(0, "\200\2\212\nl\374\234F\371 j\250P\031.")},
	{"an llm.c model", AT(0, "\xc6\xd7\x34\x01")},
	{"a debug state of llm.c", AT(0, "\xc7\xd7\x34\x01")},
	{"an llm.c tokenizer", AT(0, "\xc8\xd7\x34\x01")},
	{"an optimizer state of llm.c", AT(0, "\x8f\xd8\x34\x01")},
	{"UTF-32 text", AT(0, "\xff\xfe\0\0")},
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

/* llm.c's files of tokens begin with one of these numbers, which are dates. */
static bool is_llmc(const uint8_t *head, size_t n)
{
	uint32_t date = n >= 4 ? bytes_u32(head) : 0;

	return date == 20240520 || date == 20240522 || date == 20240801;
}

/* The length of the UTF-8 character at @p; 0: none, or a control character. */
static size_t character(const uint8_t *p, size_t left)
{
	size_t n = *p < 0x80		     ? 1
		   : *p >= 0xc2 && *p < 0xe0 ? 2
		   : *p >= 0xe0 && *p < 0xf0 ? 3
		   : *p >= 0xf0 && *p < 0xf5 ? 4
					     : 0;

	if (n == 1)
		return (*p >= ' ' && *p != 0x7f) || (*p && strchr("\t\r\n\f\033", *p));
	for (size_t i = 1; i < n && i < left; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

/* Whether all bytes are UTF-8. The last character may be cut. */
static bool is_text(const struct bytes *b, const uint8_t *head, size_t n)
{
	size_t i = 0, c = 1;

	while (i < n && c > 0) {
		c = character(head + i, n - i);
		i += c;
	}
	return c > 0 && n >= (b->size == n ? TEXT_WHOLE : TEXT_LEAST);
}

/* UTF-16 with a byte order mark: half of the bytes of most languages repeat. */
static bool is_utf16(const uint8_t *head, size_t n)
{
	size_t same = 0, high = n > 1 && head[0] == 0xff ? 1 : 0;

	if (n < TEXT_LEAST ||
		(memcmp(head, "\xff\xfe", 2) != 0 && memcmp(head, "\xfe\xff", 2) != 0))
		return false;
	for (size_t i = 2 + high; i + 2 < n; i += 2)
		same += head[i] == head[i + 2] || (head[i] >= 0x4e && head[i] <= 0x9f);
	return same > n / 4;
}

const char *foreign_kind(const struct bytes *b)
{
	uint8_t head[HEAD_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));

	for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++)
		if (n >= magics[i].at + magics[i].n &&
			memcmp(head + magics[i].at, magics[i].bytes, magics[i].n) == 0)
			return magics[i].kind;
	if (is_gzip(head, n))
		return "gzip-compressed; decompress it";
	if (n >= 10 && memcmp(head, "BZh", 3) == 0 && memcmp(head + 4, "1AY&SY", 6) == 0)
		return "bzip2-compressed; decompress it";
	if (n > 10 && head[8] == '{' && (head[9] == '"' || head[9] == '}') &&
		bytes_u64(head) <= b->size - 8)
		return "a safetensors file";
	return is_pickle(b, head, n) ? "a Python pickle"
	       : is_text(b, head, n) ? "text"
	       : is_utf16(head, n)   ? "UTF-16 text"
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
static const char *samples_kind(const struct bytes *b, const uint8_t *head)
{
	uint64_t n = bytes_u32(head), end = 4 + 4 * (n + 1), begin = bytes_u32(head + 4);
	uint8_t at[4], byte;
	struct fault fault;

	if (n == 0 || end >= b->size || begin < end || !bytes_read(b, end - 4, at, 4, &fault) ||
		bytes_u32(at) != b->size || !bytes_read(b, end, &byte, 1, &fault))
		return NULL;
	return byte == '{'    ? "an MDS shard; name it .mds, and keep its index.json"
	       : begin == end ? "a litData chunk"
			      : NULL;
}

const char *foreign_to_plain(const struct bytes *b, enum shard_type type)
{
	uint8_t head[HEAD_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));
	uint32_t width = shard_type_bytes(type);

	if (n < COUNTED_LEAST)
		return NULL;
	if (is_llmc(head, n))
		return "an llm.c file; set `format: llmc`";
	if (memcmp(head, "ARROW1", 6) == 0)
		return "an Arrow file; name it .arrow, or set `format: arrow`";
	if (memcmp(head, "\xff\xff\xff\xff", 4) == 0 && bytes_u32(head + 4) % 8 == 0 &&
		bytes_u32(head + 4) > 0 && bytes_u32(head + 4) < b->size &&
		bytes_u32(head + 8) < bytes_u32(head + 4))
		return "an Arrow stream; name it .arrow, or set `format: arrow`";
	if (memcmp(head, "\x93NUMPY", 6) == 0)
		return "a NumPy file; set `format: npy`";
	if (is_counted(b, bytes_u64(head), 8, width))
		return "tokens after their number, a header of 8 bytes; write the tokens alone";
	if (b->size >= HEAD_BYTES && is_counted(b, bytes_u32(head), 4, width))
		return "tokens after their number, a header of 4 bytes; write the tokens alone";
	return samples_kind(b, head);
}

bool foreign_refuse(const char *kind, struct fault *fault)
{
	size_t n = strcspn(kind, ";");

	return fault_set(fault, FAULT_DATA, FOREIGN_FIELD, "is %.*s, not a shard of tokens%s",
		(int)n, kind, kind + n);
}
