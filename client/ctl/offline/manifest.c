/*
 * tokctl manifest: lists the shards of a dataset, as daemon/catalog/manifest.c says. inspect.c adds
 * the line of each shard that it has read; or with --from lines are copied, which is a join of the
 * lines of a manifest with the objects that were uploaded.
 */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/config/url_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Writes the line of shard @i of in->place, after adding the members that depend on where the shard
 * is. @line NULL: out of memory. False: @fault. */
static bool put_line(struct inspect *in, uint64_t i, const struct shard_format *format,
	json_t *line, struct fault *fault)
{
	json_t *sides = ctl_place_sides(&in->place, i, format);
	bool fine = line;

	if (in->place.remote)
		json_object_set_new(
			line, "etag", json_string(ctl_place_object(&in->place, i).etag));
	if (json_object_size(sides) > 0)
		json_object_set(line, "side", sides);
	fine = fine && json_dumpf(line, in->manifest, JSON_COMPACT | JSON_PRESERVE_ORDER) == 0;
	fputc('\n', in->manifest);
	json_decref(sides);
	return fine || ferror(in->manifest) || fault_memory(fault);
}

bool manifest_add(struct inspect *in, uint64_t i, const struct shard_format *format,
	const struct shard_facts *facts, uint64_t size, const uint64_t *digest, struct fault *fault)
{
	const struct {
		const char *key;
		uint64_t value;
		bool present;
	} numbers[] = {
		{"sample_tokens", facts->sample_tokens,
			facts->sample_tokens > 0 && facts->row_tokens == 0},
		{"row_tokens", facts->row_tokens, facts->row_tokens > 0},
		{"frame_bytes", facts->frame_bytes, facts->frame_bytes > 0},
		{"data_at", facts->data_at, facts->plain},
	};
	json_t *name, *line;
	char hex[24];

	if (in->place.remote && !ctl_place_etag_ok(ctl_place_object(&in->place, i).etag, fault))
		return false;
	name = json_string(ctl_place_name(&in->place, i));
	if (!name)
		return fault_set(fault, FAULT_ARGUMENT, "path",
			"its name is not UTF-8, so a manifest cannot list it; rename it");
	line = json_pack("{so,ss,ss,sI,sI}", "path", name, "format", format->name, "dtype",
		shard_type_name(facts->type), "tokens", (json_int_t)facts->tokens, "size",
		(json_int_t)size);
	if (digest) {
		snprintf(hex, sizeof(hex), "%016" PRIx64, *digest);
		json_object_set_new(line, "digest", json_string(hex));
	}
	for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++)
		if (numbers[n].present)
			json_object_set_new(
				line, numbers[n].key, json_integer((json_int_t)numbers[n].value));
	bool fine = put_line(in, i, format, line, fault);

	json_decref(line);
	return fine;
}

/* ---- --from ---- */

struct join {
	struct inspect *in;
	const char *path, *url; /* of the manifest that is read, of the objects */
	struct dataset from;
	struct shard_list names; /* of shards and side files that should be there */
};

/* Reports what is wrong with the object called @name. */
__attribute__((format(printf, 3, 4))) static void report(
	const struct join *j, const char *name, const char *format, ...)
{
	char path[2 * PATH_MAX], text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	snprintf(path, sizeof(path), "%s/%s", j->in->place.list.root, name);
	inspect_unread(j->in, path, text);
}

/* Takes the names of a line's shard and side files. */
static bool take_names(void *context, const struct dataset *m, json_t *line, struct fault *fault)
{
	struct shard_list *names = &((struct join *)context)->names;
	const char *name;
	json_t *value;

	if (!shard_list_add(names, shard_list_name(&m->list, m->list.count - 1), fault))
		return false;
	json_object_foreach(json_object_get(line, "side"), name, value)
	{
		if (!shard_list_add(names, name, fault))
			return false;
	}
	return true;
}

/* Finds the object of a line, and copies the line for it. */
static bool join_line(void *context, const struct dataset *m, json_t *line, struct fault *fault)
{
	struct join *j = context;
	uint64_t i = m->list.count - 1;
	const char *name = shard_list_name(&m->list, i);
	int64_t found = shard_list_find(&j->in->place.list, name);
	struct fault odd;

	if (found < 0) {
		report(j, name, "is in %.300s:%" PRIu64 ", but not in the store; upload it",
			j->path, i + 1);
		return true;
	}
	struct object object = ctl_place_object(&j->in->place, (uint64_t)found);

	if (object.size != m->entry[i].file.bytes)
		report(j, name,
			"has %" PRIu64 " bytes, but %" PRIu64 " in %.300s:%" PRIu64
			"; upload it again, or write that manifest anew",
			object.size, m->entry[i].file.bytes, j->path, i + 1);
	else if (!ctl_place_etag_ok(object.etag, &odd))
		report(j, name, "%s", odd.text);
	if (j->in->faults || j->in->deep)
		return true;
	json_object_del(line, "etag");
	json_object_del(line, "side");
	return put_line(j->in, (uint64_t)found, m->format, line, fault);
}

/* Reads the manifest. */
static bool read_lines(struct join *j, manifest_visit *visit)
{
	const struct listed *listed = inspect_listed(j->in, j->url, &(int64_t){0});
	struct shard_hint hint = {.type = SHARD_U16};
	struct fault fault;

	/* Rows of a file are compared as the config reads them. */
	if (j->in->deep && listed)
		hint.window_tokens = listed->stream->seq_len + listed->stream->extra;
	if (manifest_read(&j->from, j->path, "/", NULL, NULL, &hint, visit, j, &fault))
		return true;
	inspect_unread(j->in, j->path, fault.text);
	return false;
}

/* Reports shards that the manifest has not. */
static void report_others(const struct join *j)
{
	const struct ctl_place *p = &j->in->place;

	for (uint64_t i = 0; i < p->shards; i++)
		if (shard_list_find(&j->from.list, ctl_place_name(p, i)) < 0)
			report(j, ctl_place_name(p, i),
				"is in the store, but not in %.300s; delete it, or write that "
				"manifest anew with it",
				j->path);
}

/* Reads the objects, and makes their lines anew. */
static void read_objects(struct join *j)
{
	char text[256];

	for (uint64_t i = 0; i < j->from.list.count; i++)
		if (j->from.table.tokens[i] && !j->from.entry[i].digest) {
			snprintf(text, sizeof(text),
				"line %" PRIu64 " has no digest to compare with; write it anew "
				"with --deep",
				i + 1);
			inspect_unread(j->in, j->path, text);
			return;
		}
	j->in->from = &j->from;
	inspect_place(j->in);
	j->in->from = NULL;
}

static void join(struct inspect *in, const char *path, const char *url)
{
	struct join j = {.in = in, .path = path, .url = url};
	bool ask = ctl_place_unlisted(url), known = !ask || read_lines(&j, take_names);

	dataset_close(&j.from);
	shard_list_sort(&j.names);
	if (known && inspect_open(in, url, ask ? &j.names : NULL)) {
		if (read_lines(&j, join_line))
			report_others(&j);
		if (in->deep && !in->faults)
			read_objects(&j);
		dataset_close(&j.from);
		inspect_close(in);
	}
	shard_list_free(&j.names);
}

/* ---- the command line ---- */

enum { FROM = INSPECT_OPTIONS };

static const struct ctl_option options[] = {
	[INSPECT_CONFIG] = {INSPECT_CONFIG_OPTION},
	[INSPECT_FORMAT] = {CTL_INPUT_FORMAT_OPTION},
	[INSPECT_DTYPE] = {CTL_INPUT_DTYPE_OPTION},
	[INSPECT_COLUMN] = {CTL_INPUT_COLUMN_OPTION},
	[INSPECT_DEEP] = {OPTION_FLAG("deep",
		"read all tokens of shards in a store, for their digests; those of files are "
		"always read")},
	[INSPECT_JSON] = {CTL_JSON_OPTION},
	[FROM] = {OPTION_TEXT("from", "FILE",
		"read no shard: take all but sizes and ETags from this manifest, made before the "
		"shards were uploaded; with --deep, read all, and compare their digests with it")},
};

static int check_arguments(const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	const char *path = a->argument[0], *to = a->argument[1];
	bool from = ctl_given(a, FROM), prefix = url_text_is(path) && bytes_ends_in(path, "/");

	if (url_text_is(to))
		return ctl_usage(c,
			"FILE %s: is a URL, but only files are written; write it to a file, and "
			"copy that with `aws s3 cp` or s5cmd",
			to);
	if (from && !prefix)
		return ctl_usage(c, "--from needs a URL that ends in '/'");
	if (!from && ctl_place_unlisted(path))
		return ctl_usage(c,
			"%s: an HTTPS server has no listing; give --from FILE, a manifest of the "
			"same shards on a disk",
			path);
	return CTL_OK;
}

static int write_manifest(struct inspect *in, const struct ctl_arguments *a)
{
	const char *path = a->argument[0], *to = a->argument[1];
	struct ctl_file file;
	int status;

	if (!ctl_file_begin(&file, to))
		return CTL_FAILED;
	in->manifest = file.to;
	status = inspect_begin(in, a);
	in->deep |= !url_text_is(path); /* for the digests: files have no ETag */
	if (status != CTL_OK) {
		in->faults = true; /* was printed */
	} else if (ctl_given(a, FROM)) {
		join(in, ctl_text(a, FROM), path);
	} else if (inspect_open(in, path, NULL)) {
		inspect_place(in);
		inspect_close(in);
	}
	if (status == CTL_OK && in->faults)
		ctl_fail("%s: not written because of the problems above", to);
	in->faults |= !ctl_file_end(&file, !in->faults);
	return status;
}

static int manifest(const struct ctl_arguments *a)
{
	struct inspect in = {.deep = false};
	int status = check_arguments(a);

	return status == CTL_OK ? inspect_end(&in, write_manifest(&in, a)) : status;
}

const struct ctl_command ctl_manifest = {
	.name = "manifest",
	.arguments = "PATH FILE",
	.help = "write a manifest, with which a daemon opens no shard at its start",
	.run = manifest,
	OPTIONS_ARE(options),
};
