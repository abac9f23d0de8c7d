#include "daemon/catalog/opening.h"

#include "daemon/shard/list.h"

#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void field_of(const struct opening *o, const char *key, char *field, size_t field_bytes)
{
	snprintf(field, field_bytes, "streams.%s.datasets[%d].%s", o->stream->name,
		(int)(o->source - o->stream->dataset), key);
}

bool opening_refuse(const struct opening *o, int line, const char *key, const char *text, ...)
{
	char field[sizeof(o->fault->field)], what[sizeof(o->fault->text)];
	va_list args;

	field_of(o, key, field, sizeof(field));
	va_start(args, text);
	vsnprintf(what, sizeof(what), text, args);
	va_end(args);
	return config_refuse(o->fault, o->config->path, line, field, "%s", what);
}

bool opening_refuse_memory(const struct opening *o)
{
	char field[sizeof(o->fault->field)];

	field_of(o, "path", field, sizeof(field));
	return config_refuse_memory(o->fault, o->config->path, o->source->line, field);
}

bool opening_refuse_shard(const struct opening *o, const char *path, const struct fault *cause)
{
	opening_refuse(o, o->source->path_line, "path", "%s: %s", path, cause->text);
	if (cause->error) {
		o->fault->code = cause->code;
		o->fault->error = cause->error;
	}
	return false;
}

/* A mask among the shards would be served as tokens. */
static bool check_label_mask(const struct opening *o)
{
	const struct dataset *d = o->dataset;
	char path[PATH_MAX + 1];
	size_t n = strlen(d->label_mask);

	for (uint64_t s = 0; s < d->table.shards; s++) {
		dataset_shard_path(d, s, path, sizeof(path));
		if (strncmp(path, d->label_mask, n) == 0 && path[n] == '/')
			return opening_refuse(o, o->source->label_mask_line, "label_mask",
				"%s is in it and also in path; must be a directory outside path",
				path);
	}
	return true;
}

/* Prepares for the annotations that the stream requests. */
static bool prepare_annotations(const struct opening *o)
{
	struct dataset *d = o->dataset;
	const char *mask = o->source->label_mask;
	size_t root = strlen(d->root);

	d->has_eos = o->stream->has_eos;
	d->has_vocab = o->stream->has_vocab;
	d->eos = (uint32_t)o->stream->eos;
	d->unindexed = d->table.shards;
	d->hint.documents = o->stream->documents;
	d->hint.loss_mask = o->stream->loss_mask;
	if (!mask)
		return true;
	if (store_is_url(mask) != store_is_url(o->source->path))
		return opening_refuse(o, o->source->label_mask_line, "label_mask",
			"%.80s: must be %s, as path is", mask,
			store_is_url(mask) ? "a local directory" : "a URL");
	bool below = mask[0] != '/' && !store_is_url(mask);

	if (asprintf(&d->label_mask, "%s%s%s", below ? o->config->directory : "", below ? "/" : "",
		    mask) < 0) {
		d->label_mask = NULL;
		return opening_refuse_memory(o);
	}
	for (size_t n = strlen(d->label_mask); n > 1 && d->label_mask[n - 1] == '/'; n--)
		d->label_mask[n - 1] = 0;
	d->hint.label_mask = d->label_mask;
	d->hint.root_bytes = root + (root > 0 && d->root[root - 1] != '/');
	return check_label_mask(o);
}

struct shard_hint opening_hint(const struct opening *o)
{
	return (struct shard_hint){
		.type = o->source->token_bytes == 4 ? SHARD_U32 : SHARD_U16,
		.has_type = o->source->has_dtype,
		.column = o->source->column,
		.window_tokens = o->stream->seq_len + o->stream->extra,
		.budget_bytes = dataset_frames_budget(o->config),
	};
}

bool opening_allocate(const struct opening *o, struct shard_list *list)
{
	struct dataset *d = o->dataset;
	uint64_t count = list->count;

	assert(count > 0);
	d->root = list->root;
	d->paths = list->paths;
	d->path_at = list->at;
	*list = (struct shard_list){0};
	d->hint = opening_hint(o);
	d->table.shards = count;
	d->table.window_tokens = d->hint.window_tokens;
	d->table.stride = o->stream->stride;
	d->table.first_window = calloc(count + 1, sizeof(*d->table.first_window));
	if (!d->entry)
		d->entry = calloc(count, sizeof(*d->entry));
	return ((d->table.first_window && d->entry) || opening_refuse_memory(o)) &&
	       prepare_annotations(o);
}

bool opening_format(const struct opening *o, const struct shard_format **format)
{
	char names[SHARD_NAMES_BYTES];

	*format = shard_format(o->source->format);
	return *format || strcmp(o->source->format, "auto") == 0 ||
	       opening_refuse(o, o->source->format_line, "format",
		       "'%.40s' is unknown; must be auto or one of: %s", o->source->format,
		       shard_format_names(names, sizeof(names)));
}
