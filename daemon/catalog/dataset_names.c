#include "daemon/catalog/dataset_names.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a word in a shard's name, or an ending of it, means. */
static const struct {
	const char *words[8];
	const char *what;
} kinds[] = {
	{{"val", "valid", "validation", "test", "eval", "dev"}, "validation data"},
	{{"partial", "tmp", "temp", "incomplete", "download"}, "a file that is being written"},
	{{"copy", "bak", "backup", "old", "orig"}, "a copy"},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static bool is_word(const char *word, const char *at, size_t n)
{
	return word && strlen(word) == n && strncasecmp(word, at, n) == 0;
}

/* "x (1).bin", "x.part.bin": "part" alone is a word in many names of shards. */
static int kind_of_marks(const char *name)
{
	const char *base = strrchr(name, '/'), *open;

	base = base ? base + 1 : name;
	open = strstr(base, " (");
	if (strstr(base, ".part."))
		return 1;
	return open && isdigit((unsigned char)open[2]) && strchr(open, ')') ? 2 : -1;
}

/* Index of the kind, or -1. */
static int kind_of(const char *name)
{
	for (const char *at = name; *at;) {
		size_t n = 0;

		while (isalpha((unsigned char)at[n]))
			n++;
		for (int k = 0; n > 0 && k < KINDS; k++)
			for (int w = 0; w < 8; w++)
				if (is_word(kinds[k].words[w], at, n))
					return k;
		at += n > 0 ? n : 1;
	}
	return kind_of_marks(name);
}

void dataset_doubt_names(struct dataset *d)
{
	uint64_t shards = d->table.shards, of[KINDS] = {0}, first[KINDS];

	for (uint64_t s = 0; s < shards; s++) {
		int k = kind_of(dataset_shard_name(d, s));

		if (k >= 0 && of[k]++ == 0)
			first[k] = s;
	}
	for (int k = 0; k < KINDS; k++)
		if (of[k] > 0 && of[k] < shards) {
			snprintf(d->names, sizeof(d->names),
				"%.180s is %s by its name (%" PRIu64 " of %" PRIu64
				" shards); if it does not belong there, move it away",
				dataset_shard_name(d, first[k]), kinds[k].what, of[k], shards);
			return;
		}
}
