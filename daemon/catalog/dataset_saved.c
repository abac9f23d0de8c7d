#include "daemon/catalog/opening.h"

#include "daemon/shard/format.h"
#include "daemon/shard/mds_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool pass(FILE *file, bool save, void *bytes, size_t n)
{
	return (save ? fwrite(bytes, 1, n, file) : fread(bytes, 1, n, file)) == n;
}

/* @at: of a pointer to an array. It may be NULL. @n: bytes of the array, if it is saved. */
static bool pass_array(FILE *file, bool save, void *at, size_t n)
{
	void **array = at;

	n = save && *array ? n : 0;
	if (!pass(file, save, &n, sizeof(n)))
		return false;
	if (!save)
		*array = n > 0 ? malloc(n) : NULL;
	return n == 0 || (*array && pass(file, save, *array, n));
}

static bool pass_text(FILE *file, bool save, char **text)
{
	return pass_array(file, save, text, save && *text ? strlen(*text) + 1 : 0);
}

/* The paths are one after another, in any order. */
static size_t paths_bytes(const struct dataset *d)
{
	size_t most = 0;

	for (uint64_t s = 0; s < d->table.shards; s++) {
		size_t end = d->path_at[s] + strlen(dataset_shard_name(d, s)) + 1;

		most = end > most ? end : most;
	}
	return most;
}

/* All that dataset_close() frees. */
static bool pass_arrays(FILE *f, bool save, struct dataset *d)
{
	size_t n = d->table.shards;

	return pass_array(f, save, &d->table.tokens, n * sizeof(*d->table.tokens)) &&
	       pass_array(
		       f, save, &d->table.first_window, (n + 1) * sizeof(*d->table.first_window)) &&
	       pass_array(f, save, &d->entry, n * sizeof(*d->entry)) &&
	       pass_array(f, save, &d->paths, save ? paths_bytes(d) : 0) &&
	       pass_array(f, save, &d->path_at, n * sizeof(*d->path_at)) &&
	       pass_text(f, save, &d->refused) && pass_text(f, save, &d->label_mask) &&
	       pass_text(f, save, &d->root);
}

bool dataset_save(struct dataset *d, FILE *to)
{
	char format[16];

	assert(!d->objects);
	snprintf(format, sizeof(format), "%s", d->format->name);
	return pass(to, true, d, sizeof(*d)) && pass(to, true, format, sizeof(format)) &&
	       pass_arrays(to, true, d);
}

bool dataset_from_saved(const struct opening *o)
{
	struct dataset *d = o->dataset;
	char format[16];

	if (!pass(o->saved, false, d, sizeof(*d)) ||
		!pass(o->saved, false, format, sizeof(format)) ||
		!pass_arrays(o->saved, false, d)) {
		*d = (struct dataset){.config = o->source};
		return opening_refuse_memory(o);
	}
	d->config = o->source;
	d->format = shard_format(format);
	d->overlaps = NULL;
	d->samples = NULL;
	d->hint.column = o->source->column;
	d->hint.label_mask = d->label_mask;
	d->hint.indexes = mds_indexes_new(d->root);
	return d->hint.indexes || opening_refuse_memory(o);
}
