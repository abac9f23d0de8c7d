/*
 * The table of formats, and what to say of a file that is none of them. Formats that users have and this
 * version cannot read are known by their marks, so that nobody trains on a header read as tokens.
 */
#include "shard.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct shard_format *const formats[] = {&shard_flat};

enum { FORMATS = sizeof(formats) / sizeof(formats[0]) };

const struct shard_format *shard_format(const char *name)
{
	for (int i = 0; i < FORMATS; i++)
		if (strcmp(formats[i]->name, name) == 0)
			return formats[i];
	return NULL;
}

const char *shard_format_names(void)
{
	return "flat";
}

/* ---- formats of others ---- */

struct mark {
	const char *bytes;
	size_t n;
	const char *kind;
};

#define MARK(text, kind)                                                                                     \
	{                                                                                                    \
		text, sizeof(text) - 1, kind                                                                 \
	}

static const struct mark marks[] = {
	MARK("\x93NUMPY", "a NumPy .npy file with a header"),
	MARK("\x88\xd8\x34\x01", "an llm.c (GPT-2) file"),    /* 20240520, little-endian */
	MARK("\xa1\xd9\x34\x01", "an llm.c (Llama-3) file"),  /* 20240801 */
	MARK("\x8a\xd8\x34\x01", "an llm.c evaluation file"), /* 20240522 */
	MARK("\x28\xb5\x2f\xfd", "a zstd-compressed file"),
	MARK("MMIDIDX\0\0", "a Megatron .idx file"),
	MARK("ARROW1", "an Arrow file"),
};

static const struct mark endings[] = {
	MARK(".mds", "an MDS shard"),
	MARK(".mds.zstd", "an MDS shard"),
	MARK(".ds", "a datatrove shard"),
	MARK(".ds.index", "a datatrove index"),
	MARK(".idx", "a Megatron .idx file"),
};

static bool ends_with(const char *path, const char *ending)
{
	size_t n = strlen(path), m = strlen(ending);

	return n >= m && strcmp(path + n - m, ending) == 0;
}

/* Megatron's .bin has no mark of its own: what tells is the index beside it. */
static bool has_index_beside(const char *path)
{
	char index[4096];
	size_t n = strlen(path);

	if (!ends_with(path, ".bin") || n >= sizeof(index))
		return false;
	memcpy(index, path, n + 1);
	memcpy(index + n - 3, "idx", 3);
	return access(index, F_OK) == 0;
}

const char *shard_foreign(const char *path, int fd, const struct stat *st)
{
	char head[16];
	ssize_t n = S_ISREG(st->st_mode) ? pread(fd, head, sizeof(head), 0) : 0;

	for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
		if (n >= (ssize_t)marks[i].n && memcmp(head, marks[i].bytes, marks[i].n) == 0)
			return marks[i].kind;
	for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
		if (ends_with(path, endings[i].bytes))
			return endings[i].kind;
	return has_index_beside(path) ? "the .bin of a Megatron pair (there is an .idx beside it)" : NULL;
}

/* ---- which, and what is in it ---- */

const struct shard_format *shard_recognise(const char *path, int fd, const struct stat *st)
{
	if (shard_foreign(path, fd, st))
		return NULL;
	for (int i = 0; i < FORMATS; i++)
		if (formats[i]->recognise(path, fd, st))
			return formats[i];
	return NULL;
}

const struct shard_format *shard_describe(const struct shard_format *format, const char *path, int fd,
	const struct stat *st, const struct shard_hint *hint, struct shard *shard, char *why,
	size_t why_bytes)
{
	if (!S_ISREG(st->st_mode)) {
		snprintf(why, why_bytes, "is no regular file; a shard must be one");
		return NULL;
	}
	if (!format)
		format = shard_recognise(path, fd, st);
	if (!format) {
		const char *kind = shard_foreign(path, fd, st);

		if (kind)
			snprintf(why, why_bytes,
				"seems to be %s, which this version does not read; convert it to flat "
				"tokens, or say "
				"`format: flat` if it has no header",
				kind);
		else
			snprintf(why, why_bytes,
				"is of no known format (%s: a name that ends in .bin or .npy); move it away, "
				"or say "
				"`format: flat` if it is plain tokens",
				shard_format_names());
		return NULL;
	}
	return format->describe(path, fd, st, hint, shard, why, why_bytes) ? format : NULL;
}
