/*
 * tokctl inspect: what shards say of themselves. What a file does not say comes from the options, else from
 * the dataset of the config that lists it, else it is the config's default.
 */
#include "../../daemon/shard/list.h"
#include "ctl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files of one dataset of the config, and how it reads them. */
struct listed {
	const struct config_dataset *dataset;
	struct shard_list list;
	char *root; /* without links, to compare paths by */
};

struct inspect {
	struct ctl_out out;
	const struct shard_format *format; /* NULL: whatever recognises the file */
	struct shard_hint hint;		   /* of the options */
	bool json, faults;
	struct config *config;
	struct listed *listed;
	unsigned lists;
};

static void print(struct inspect *in, const char *path, const struct shard_format *format,
	const struct shard_facts *shard, const char *problem)
{
	struct ctl_out *out = &in->out;
	const char *dtype = format ? shard_type_name(shard->type) : "";
	const char *note = format ? shard->note : "";
	bool counted = format && shard->documents != SHARD_UNKNOWN;

	if (in->json) {
		ctl_put(out, "{\"path\":");
		ctl_put_string(out, path);
		ctl_put(out, ",\"format\":");
		format ? ctl_put_string(out, format->name) : ctl_put(out, "null");
		ctl_put(out, ",\"dtype\":");
		format ? ctl_put_string(out, dtype) : ctl_put(out, "null");
		ctl_put(out, ",\"tokens\":");
		format ? ctl_put_number(out, shard->tokens) : ctl_put(out, "null");
		ctl_put(out, ",\"documents\":");
		counted ? ctl_put_number(out, shard->documents) : ctl_put(out, "null");
		ctl_put(out, ",\"notes\":[");
		if (note[0])
			ctl_put_string(out, note);
		ctl_put(out, "],\"problems\":[");
		if (problem)
			ctl_put_string(out, problem);
		ctl_put(out, "]}\n");
		return;
	}
	ctl_put_left(out, format ? format->name : "?", 10);
	ctl_put_left(out, format ? dtype : "?", 4);
	if (format)
		ctl_put_right(out, shard->tokens, 16);
	else
		ctl_put_left(out, "               ?", 16);
	ctl_put(out, " tokens  ");
	if (counted) {
		ctl_put_right(out, shard->documents, 10);
		ctl_put(out, " documents  ");
	}
	ctl_put_left(out, path, 0);
	if (problem) {
		ctl_put(out, ": ");
		ctl_put_left(out, problem, 0);
	}
	if (note[0]) {
		ctl_put(out, " (");
		ctl_put_left(out, note, 0);
		ctl_put(out, ")");
	}
	ctl_put(out, "\n");
}

/* The dataset of the config that lists the file, or NULL. */
static const struct config_dataset *dataset_of(const struct inspect *in, const char *path)
{
	for (unsigned i = 0; i < in->lists; i++) {
		const struct listed *l = &in->listed[i];

		assert(l->root);
		size_t n = strlen(l->root);

		n -= l->root[n - 1] == '/';
		if (strncmp(path, l->root, n) == 0 && path[n] == '/' &&
			shard_list_find(&l->list, path + n + 1) >= 0)
			return l->dataset;
	}
	return NULL;
}

/* Describes the file and looks through its index, too: what open() finds may set the facts right. */
static const struct shard_format *look(const struct shard_format *format, const char *path,
	const struct shard_hint *hint, struct shard_facts *facts, char *why, size_t why_bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct shard *shard = NULL;

	if (fd < 0) {
		snprintf(why, why_bytes, "%s", strerror(errno));
		return NULL;
	}
	format = shard_describe(format, path, fd, hint, facts, why, why_bytes);
	if (format)
		shard = shard_open(format, path, fd, hint, facts, why, why_bytes);
	if (shard)
		*facts = shard->facts;
	else
		format = NULL;
	shard_close(shard);
	close(fd);
	return format;
}

/* @absolute: the same file by the name to look it up by. */
static void inspect_file(struct inspect *in, const char *path, const char *absolute)
{
	const struct shard_format *format = in->format;
	struct shard_hint hint = in->hint;
	const struct config_dataset *dataset = dataset_of(in, absolute);
	struct shard_facts shard;
	char why[512];

	if (!format && dataset)
		format = shard_format(dataset->format);
	if (!hint.has_type)
		hint.type = dataset && dataset->token_bytes == 4 ? SHARD_U32 : SHARD_U16;
	hint.has_type |= dataset && dataset->has_dtype;
	if (!hint.column && dataset)
		hint.column = dataset->column;
	if (in->config && !dataset)
		fprintf(stderr, "tokctl: %s: no dataset of %s lists it; read as u%u\n", path,
			in->config->path, 8 * shard_type_bytes(hint.type));
	format = look(format, path, &hint, &shard, why, sizeof(why));
	print(in, path, format, &shard, format ? NULL : why);
	in->faults |= !format;
}

/* @path with its directory's links resolved. NULL if it cannot be. */
static char *resolve(const char *path, const struct shard_list *list)
{
	char *root = realpath(list->root, NULL), whole[PATH_MAX];
	int n = root ? snprintf(whole, sizeof(whole), "%s/%s", strcmp(root, "/") == 0 ? "" : root, path) : -1;

	free(root);
	return n < 0 || (size_t)n >= sizeof(whole) ? NULL : strdup(whole);
}

/* A file, or all files below a directory. */
static void inspect_path(struct inspect *in, const char *path)
{
	char absolute[PATH_MAX], why[PATH_MAX + 256];
	struct shard_list list;
	struct stat st;
	char *directory = path[0] == '/' ? NULL : getcwd(NULL, 0);
	int n = snprintf(
		absolute, sizeof(absolute), "%s%s%s", directory ? directory : "", directory ? "/" : "", path);

	free(directory);
	if (n < 0 || (size_t)n >= sizeof(absolute) || stat(path, &st) != 0) {
		print(in, path, NULL, NULL, strerror(n >= PATH_MAX ? ENAMETOOLONG : errno));
		in->faults = true;
		return;
	}
	if (!shard_list_read(&list, absolute, why, sizeof(why))) {
		print(in, path, NULL, NULL, why);
		in->faults = true;
		return;
	}
	if (S_ISDIR(st.st_mode) && list.count == 0) {
		print(in, path, NULL, NULL, "has no files");
		in->faults = true;
	}
	for (uint64_t i = 0; i < list.count && !in->out.failed; i++) {
		char file[PATH_MAX + 1];
		const char *name = shard_list_name(&list, i);
		char *resolved = resolve(name, &list);
		bool slash = path[strlen(path) - 1] == '/';

		snprintf(file, sizeof(file), "%s%s%s", path, slash ? "" : "/", name);
		inspect_file(in, S_ISDIR(st.st_mode) ? file : path, resolved ? resolved : absolute);
		free(resolved);
	}
	shard_list_free(&list);
}

/* ---- the config's datasets ---- */

static bool list_dataset(struct inspect *in, const struct config_dataset *dataset)
{
	struct listed *l = &in->listed[in->lists];
	char path[PATH_MAX], why[PATH_MAX + 256];
	bool below = dataset->path[0] != '/';
	int n = snprintf(path, sizeof(path), "%s%s%s", below ? in->config->directory : "", below ? "/" : "",
		dataset->path);

	l->dataset = dataset;
	if (n < 0 || (size_t)n >= sizeof(path)) {
		ctl_fail("%s:%d: path: %s", in->config->path, dataset->path_line, strerror(ENAMETOOLONG));
		return false;
	}
	if (!shard_list_read(&l->list, path, why, sizeof(why))) {
		ctl_fail("%s:%d: path: %s", in->config->path, dataset->path_line, why);
		return false;
	}
	l->root = realpath(l->list.root, NULL);
	if (!l->root) {
		ctl_fail("%s: %s", l->list.root, strerror(errno));
		shard_list_free(&l->list);
		return false;
	}
	in->lists++;
	return true;
}

static bool list_datasets(struct inspect *in, const char *path)
{
	char why[4096];
	size_t datasets = 0;

	in->config = config_load(path, why, sizeof(why));
	if (!in->config) {
		ctl_fail("%s", why);
		return false;
	}
	for (uint32_t i = 0; i < in->config->streams; i++)
		datasets += in->config->stream[i].datasets;
	in->listed = calloc(datasets + 1, sizeof(*in->listed));
	if (!in->listed) {
		ctl_fail("out of memory");
		return false;
	}
	for (uint32_t i = 0; i < in->config->streams; i++)
		for (uint32_t d = 0; d < in->config->stream[i].datasets; d++)
			if (!list_dataset(in, &in->config->stream[i].dataset[d]))
				return false;
	return true;
}

static void release(struct inspect *in)
{
	for (unsigned i = 0; i < in->lists; i++) {
		shard_list_free(&in->listed[i].list);
		free(in->listed[i].root);
	}
	free(in->listed);
	config_free(in->config);
}

int ctl_inspect(int argc, char **argv)
{
	const char *config = NULL, *format = NULL, *dtype = NULL;
	struct inspect in = {0};
	const struct ctl_option options[] = {
		{.name = "config", .letter = 'c', .value = &config},
		{.name = "input-format", .value = &format},
		{.name = "input-dtype", .value = &dtype},
		{.name = "input-column", .value = &in.hint.column},
		{.name = "json", .flag = &in.json},
	};
	int n = ctl_options(argc, argv, options, sizeof(options) / sizeof(options[0])), status = CTL_FAILED;

	if (n < 0)
		return CTL_USAGE;
	if (n < 1)
		return ctl_usage(argv[0], "needs at least one PATH");
	if (dtype && strcmp(dtype, "u16") != 0 && strcmp(dtype, "u32") != 0)
		return ctl_usage(argv[0], "--input-dtype %s is unknown; must be u16 or u32", dtype);
	if (dtype)
		in.hint.type = strcmp(dtype, "u16") == 0 ? SHARD_U16 : SHARD_U32, in.hint.has_type = true;
	in.format = format ? shard_format(format) : NULL;
	if (format && strcmp(format, "auto") != 0 && !in.format)
		return ctl_usage(argv[0], "--input-format %s is unknown; must be auto or one of: %s", format,
			shard_format_names());
	if (!config || list_datasets(&in, config)) {
		if (in.config)
			in.hint.budget_bytes = dataset_frames_budget(in.config);
		for (int i = 1; i <= n; i++)
			inspect_path(&in, argv[i]);
		status = ctl_finish(&in.out, in.faults ? CTL_FAILED : CTL_OK);
	}
	release(&in);
	return status;
}
