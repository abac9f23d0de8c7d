#include "daemon/shard/format.h"

#include <stdio.h>
#include <string.h>

/* In the order in which they are tried. Flat comes last: it accepts any content. */
static const struct shard_format *const formats[] = {
	&shard_megatron,
	&shard_npy,
	&shard_llmc,
	&shard_arrow,
	&shard_datatrove,
	&shard_mds,
	&shard_flat,
};

enum { FORMATS = sizeof(formats) / sizeof(formats[0]) };

const struct shard_format *shard_format(const char *name)
{
	for (int i = 0; i < FORMATS; i++)
		if (strcmp(formats[i]->name, name) == 0)
			return formats[i];
	return NULL;
}

const char *shard_format_names(char *to, size_t to_bytes)
{
	size_t n = 0;

	for (int i = 0; i < FORMATS && n < to_bytes; i++)
		n += (size_t)snprintf(
			to + n, to_bytes - n, "%s%s", i ? ", " : "", formats[i]->name);
	return to;
}

bool shard_is_unknown(const struct fault *fault)
{
	return fault->code == FAULT_DATA &&
	       (strcmp(fault->field, SHARD_FORMAT_FIELD) == 0 || shard_is_foreign(fault));
}

bool shard_is_foreign(const struct fault *fault)
{
	return fault->code == FAULT_DATA && strcmp(fault->field, FOREIGN_FIELD) == 0;
}

const struct shard_companion *shard_companion(const char *path, unsigned *next)
{
	unsigned at = 0;

	for (int i = 0; i < FORMATS; i++)
		for (const struct shard_companion *c = formats[i]->companions; c && c->ending;
			c++) {
			size_t n = strlen(path), m = strlen(c->ending);

			if (at++ < *next)
				continue;
			*next = at;
			/* "/index.json" is also the whole of a relative path. */
			bool whole = c->ending[0] == '/' && strcmp(path, c->ending + 1) == 0;

			if (whole || (n > m && strcmp(path + n - m, c->ending) == 0))
				return c;
		}
	return NULL;
}

const struct shard_format *shard_recognise(const struct bytes *b, struct fault *fault)
{
	unsigned next = 0;
	char names[SHARD_NAMES_BYTES];

	for (int i = 0; i < FORMATS; i++)
		if (formats[i]->recognise(b))
			return formats[i];
	const struct shard_companion *companion = shard_companion(b->path, &next);

	if (companion)
		fault_data(fault, "is %s, not a shard; give the shard that it belongs to (%s)",
			companion->kind, companion->shard);
	else
		fault_set(fault, FAULT_DATA, SHARD_FORMAT_FIELD,
			"has no known format (%s; a flat file's name ends in .bin or .npy)",
			shard_format_names(names, sizeof(names)));
	return NULL;
}
