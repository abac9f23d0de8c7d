#include "daemon/store/sums.h"

#define XXH_INLINE_ALL
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char magic[8] = "tkdsums1";

bool sums_path(const char *manifest, char *path, size_t path_bytes)
{
	static const char ending[] = ".jsonl";
	size_t n = strlen(manifest), cut = sizeof(ending) - 1;
	bool named = n > cut && strcmp(manifest + n - cut, ending) == 0;
	int length = snprintf(path, path_bytes, "%.*s.sums", (int)(named ? n - cut : n), manifest);

	return length >= 0 && (size_t)length < path_bytes;
}

uint64_t sums_piece(const void *bytes, size_t n)
{
	return XXH64(bytes, n, 0);
}

uint64_t sums_manifest(uint64_t digest, uint64_t size, const char *etag)
{
	size = htole64(size);
	digest = XXH64(&size, sizeof(size), digest);
	return XXH64(etag, strlen(etag), digest);
}

uint64_t sums_checksum(const uint64_t *sums, uint64_t pieces)
{
	return XXH64(sums, pieces * sizeof(*sums), 0);
}

static uint64_t *put(uint64_t *to, uint64_t value)
{
	*to = htole64(value);
	return to + 1;
}

void sums_head_put(const struct sums_head *head, uint8_t bytes[SUMS_HEAD_BYTES])
{
	uint64_t words[SUMS_HEAD_BYTES / 8], *to = words + 1;

	memcpy(words, magic, sizeof(magic));
	to = put(to, head->piece);
	to = put(to, head->shards);
	to = put(to, head->pieces);
	to = put(to, head->manifest);
	put(to, head->checksum);
	memcpy(bytes, words, SUMS_HEAD_BYTES);
}

bool sums_head_get(
	struct sums_head *head, const void *bytes, uint64_t file_bytes, struct fault *fault)
{
	uint64_t word[SUMS_HEAD_BYTES / 8];

	if (file_bytes < SUMS_HEAD_BYTES || memcmp(bytes, magic, sizeof(magic)) != 0)
		return fault_set(fault, FAULT_DATA, "",
			"is not a file of sums; must be one that `tokctl inspect --sums` wrote");
	memcpy(word, bytes, sizeof(word));
	for (unsigned i = 1; i < SUMS_HEAD_BYTES / 8; i++)
		word[i] = le64toh(word[i]);
	if (word[1] < SUMS_PIECE_LEAST || word[1] > SUMS_PIECE_MOST || (word[1] & (word[1] - 1)))
		return fault_set(fault, FAULT_DATA, "",
			"piece size is %" PRIu64 "; must be a power of two from 64 KiB to 64 MiB",
			word[1]);
	if ((file_bytes - SUMS_HEAD_BYTES) / 8 != word[3] || file_bytes % 8 != 0)
		return fault_set(fault, FAULT_DATA, "",
			"has %" PRIu64 " bytes; must have %d, and 8 for each of %" PRIu64
			" pieces; write it again with `tokctl inspect --sums`",
			file_bytes, SUMS_HEAD_BYTES, word[3]);
	*head = (struct sums_head){.piece = (uint32_t)word[1],
		.shards = word[2],
		.pieces = word[3],
		.manifest = word[4],
		.checksum = word[5]};
	return true;
}

static bool same_manifest(
	const struct sums_head *head, const struct sums_head *manifest, struct fault *fault)
{
	if (head->manifest != manifest->manifest || head->shards != manifest->shards ||
		(head->piece == manifest->piece && head->pieces != manifest->pieces))
		return fault_set(fault, FAULT_DATA, "",
			"are the sums of another manifest; write both again with `tokctl inspect "
			"--manifest … --sums`, or remove this file");
	return head->piece == manifest->piece ||
	       fault_set(fault, FAULT_DATA, "",
		       "has sums of pieces of %" PRIu32 " bytes, but piece: is %" PRIu32
		       "; write it again with --piece %" PRIu32 ", or change piece:",
		       head->piece, manifest->piece, manifest->piece);
}

uint64_t *sums_read(FILE *file, const struct sums_head *manifest, struct fault *fault)
{
	uint8_t bytes[SUMS_HEAD_BYTES];
	struct sums_head head;
	size_t n = fread(bytes, 1, sizeof(bytes), file);
	off_t end = fseeko(file, 0, SEEK_END) == 0 ? ftello(file) : -1;
	uint64_t *sums;

	if (end < 0 || ferror(file)) {
		fault_errno(fault, errno, "", "%s", strerror(errno));
		return NULL;
	}
	if (!sums_head_get(&head, bytes, n < sizeof(bytes) ? n : (uint64_t)end, fault) ||
		!same_manifest(&head, manifest, fault))
		return NULL;
	sums = calloc(head.pieces + 1, sizeof(*sums));
	if (!sums) {
		fault_memory(fault);
		return NULL;
	}
	if (fseeko(file, SUMS_HEAD_BYTES, SEEK_SET) == 0 &&
		fread(sums, sizeof(*sums), head.pieces, file) == head.pieces &&
		sums_checksum(sums, head.pieces) == head.checksum)
		return sums;
	fault_set(fault, FAULT_DATA, "",
		"is damaged: its own checksum differs; write it again with `tokctl inspect "
		"--sums`");
	free(sums);
	return NULL;
}
