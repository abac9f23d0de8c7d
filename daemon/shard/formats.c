#include "daemon/shard/format.h"

#include <stdio.h>
#include <string.h>

/* Flat comes last: it accepts any content. */
const struct shard_format *const shard_formats[] = {
	&shard_megatron,
	&shard_npy,
	&shard_llmc,
	&shard_arrow,
	&shard_datatrove,
	&shard_mds,
	&shard_flat,
	NULL,
};

const struct shard_format *shard_format(const char *name)
{
	const struct shard_format *const *f = shard_formats;

	while (*f && strcmp((*f)->name, name) != 0)
		f++;
	return *f;
}

const char *shard_format_names(char *to, size_t to_bytes)
{
	size_t n = 0;

	for (int i = 0; shard_formats[i] && n < to_bytes; i++)
		n += (size_t)snprintf(
			to + n, to_bytes - n, "%s%s", i ? ", " : "", shard_formats[i]->name);
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

const struct shard_format *shard_recognise(const struct bytes *b, struct fault *fault)
{
	char names[SHARD_NAMES_BYTES];

	for (const struct shard_format *const *f = shard_formats; *f; f++)
		if (((*f)->recognise && (*f)->recognise(b)) ||
			((*f)->ending && bytes_ending(b->path, (*f)->ending)))
			return *f;
	const struct shard_companion *companion = side_kind(b->path);

	if (companion)
		fault_data(fault, "is %s, not a shard; give the shard that it belongs to (%s)",
			companion->kind, companion->shard);
	else
		fault_set(fault, FAULT_DATA, SHARD_FORMAT_FIELD,
			"has no known format (%s; a flat file's name ends in .bin or .npy)",
			shard_format_names(names, sizeof(names)));
	return NULL;
}
