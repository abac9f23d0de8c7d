/* Shards named on the command line. */
#include "client/ctl/common/error.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/cache.h"
#include "daemon/shard/formats.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char wild[] = "*?["; /* make a path that does not exist a pattern */

/* ---- stores ---- */

enum { PATIENCE_MS = 60 * 1000 };

/* A store that does not answer is waited for: the user sees why nothing happens. */
static void note(void *none, const char *line)
{
	(void)none;
	ctl_note("%s", line);
}

struct stores *ctl_stores_open(const struct config *config, struct fault *fault)
{
	const struct store_options options = {.config = config,
		.memory_bytes = (uint64_t)CTL_GETS * 2 * CTL_DIGEST_TOKENS * sizeof(uint32_t),
		.patience_ms = PATIENCE_MS,
		.log = note};

	return store_open(&options, fault);
}

static bool is_url(const char *text)
{
	return text && url_text_is(text);
}

bool ctl_stores_needed(const struct config *config, const char *stream)
{
	for (uint32_t i = 0; i < config->streams; i++) {
		const struct config_stream *s = &config->stream[i];

		if (stream && strcmp(s->name, stream) != 0)
			continue;
		for (uint32_t d = 0; d < s->datasets; d++)
			if (is_url(s->dataset[d].path) || is_url(s->dataset[d].manifest) ||
				is_url(s->dataset[d].label_mask))
				return true;
	}
	return false;
}

/* ---- options ---- */

bool ctl_input_options(struct ctl_input *input, const struct ctl_arguments *a, unsigned format,
	unsigned dtype, unsigned column)
{
	const char *name = ctl_text(a, format), *type = ctl_text(a, dtype);
	char names[SHARD_NAMES_BYTES];

	*input = (struct ctl_input){
		.hint = {.type = SHARD_U16, .has_type = type, .column = ctl_text(a, column)}};
	if (name && strcmp(name, "auto") != 0) {
		input->format = shard_format(name);
		if (!input->format) {
			ctl_usage(a->command,
				"--input-format %s: unknown format; must be auto or one of: %s",
				name, shard_format_names(names, sizeof(names)));
			return false;
		}
	}
	if (type && !shard_type(type, &input->hint.type)) {
		ctl_usage(a->command,
			"--input-dtype %s: unknown type; must be u8, i8, u16, i16, u32, i32, u64 "
			"or i64",
			type);
		return false;
	}
	return true;
}

/* ---- places ---- */

/* Length of @path's first @n bytes up to and including the last slash. */
static size_t parent_bytes(const char *path, size_t n)
{
	while (n > 0 && path[n - 1] != '/')
		n--;
	return n;
}

/* Lists the shards of @path: a file, a directory or a pattern. Their names continue the first
 * *@prefix bytes of @path. False: *@list is empty. */
static bool list_files(
	struct shard_list *list, const char *path, size_t *prefix, struct fault *fault)
{
	char absolute[PATH_MAX];
	struct stat st;
	char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);
	int n = snprintf(
		absolute, sizeof(absolute), "%s%s%s", here ? here : "", here ? "/" : "", path);

	free(here);
	*list = (struct shard_list){0};
	if (n < 0 || (size_t)n >= sizeof(absolute))
		return fault_errno(fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
	bool there = stat(path, &st) == 0;

	if (!there && (errno != ENOENT || !strpbrk(path, wild)))
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	*prefix = there && S_ISDIR(st.st_mode)
			  ? strlen(path)
			  : parent_bytes(path, there ? strlen(path) : strcspn(path, wild));
	if (!shard_list_read(list, absolute, fault))
		return false;
	if (list->count > 0)
		return true;
	shard_list_free(list);
	return fault_set(
		fault, FAULT_ARGUMENT, "", there ? "contains no files" : "matches no file");
}

char *ctl_input_real(const char *path)
{
	char *real = realpath(path, NULL);

	if (real || !strpbrk(path, wild))
		return real;
	size_t n = parent_bytes(path, strcspn(path, wild));
	char *before = n > 0 ? strndup(path, n) : strdup(".");

	real = before ? realpath(before, NULL) : NULL;
	free(before);
	return real;
}

/* Writes the path of a listed file as the user would write it: @path, or a path below it. */
static void name_file(const struct shard_list *list, uint64_t i, const char *path, size_t prefix,
	char file[PATH_MAX + 1])
{
	bool slash = prefix > 0 && path[prefix - 1] != '/';

	snprintf(file, PATH_MAX + 1, "%.*s%s%s", (int)prefix, path, slash ? "/" : "",
		shard_list_name(list, i));
}

bool ctl_place_open(struct ctl_place *p, struct stores *stores, const char *path,
	const struct shard_list *names, const struct ctl_listing *masks, struct fault *fault)
{
	struct cache *cache = p->cache;
	const struct shard_list *list;

	*p = (struct ctl_place){.path = path, .remote = url_text_is(path), .cache = cache};
	if (!(names		? ctl_listing_ask(&p->listing, stores, path, names, fault)
		    : p->remote ? ctl_listing_open(&p->listing, stores, path, masks, fault)
				: list_files(&p->list, path, &p->prefix, fault)))
		return false;
	p->shards = p->remote ? p->listing.files : p->list.count;
	list = p->remote ? &p->listing.list : &p->list;
	/* Files named one by one share an index. */
	if (!cache || strcmp(cache_root(cache), list->root) != 0) {
		cache_free(cache);
		p->cache = cache_new(list->root);
	}
	if (p->cache)
		return true;
	ctl_place_close(p);
	return fault_memory(fault);
}

void ctl_place_close(struct ctl_place *p)
{
	ctl_listing_close(&p->listing);
	shard_list_free(&p->list);
}

const char *ctl_place_name(const struct ctl_place *p, uint64_t i)
{
	return p->remote ? shard_list_name(&p->listing.list, p->listing.file + i)
			 : shard_list_name(&p->list, i);
}

void ctl_place_path(const struct ctl_place *p, uint64_t i, char path[PATH_MAX + 1])
{
	if (p->remote)
		shard_list_path(&p->listing.list, p->listing.file + i, path, PATH_MAX + 1);
	else
		name_file(&p->list, i, p->path, p->prefix, path);
}

unsigned ctl_place_threads(const struct ctl_place *p)
{
	return p->remote ? CTL_GETS : parallel_processors();
}

struct ctl_input ctl_place_input(const struct ctl_place *p, const struct ctl_input *input)
{
	struct ctl_input own = *input;

	own.hint.cache = p->cache;
	own.hint.objects = p->remote ? &p->listing.objects : NULL;
	return own;
}

/* ---- side files on the command line ---- */

static bool is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Adds a path, or all files below it. Other faults than a lack of memory are reported later, when
 * the files are opened. */
static bool add_all(struct shard_list *all, const char *path)
{
	char name[PATH_MAX + 1];
	struct shard_list below;
	struct fault fault;
	size_t prefix;
	bool fine = true;

	if (!is_directory(path))
		return shard_list_add(all, path, &fault);
	if (!list_files(&below, path, &prefix, &fault))
		return true;
	for (uint64_t i = 0; fine && i < below.count; i++) {
		name_file(&below, i, path, prefix, name);
		fine = shard_list_add(all, name, &fault);
	}
	shard_list_free(&below);
	return fine;
}

int ctl_input_paths(char **path, int n)
{
	struct shard_list all = {0};
	bool any = false, fine = true;
	int kept = 0;

	for (int i = 0; i < n; i++)
		any |= shard_companion(path[i], &(unsigned){0}) && !is_directory(path[i]);
	if (!any)
		return n;
	for (int i = 0; fine && i < n; i++)
		fine = add_all(&all, path[i]);
	shard_list_sort(&all);
	for (int i = 0; fine && i < n; i++)
		if (is_directory(path[i]) || !shard_list_accompanies(&all, path[i]))
			path[kept++] = path[i];
	shard_list_free(&all);
	return fine ? kept : -1;
}

/* Removes empty and "." parts. */
static void squeeze(char *path)
{
	char *to = path;

	for (const char *part = path; *part;) {
		size_t n = strcspn(part, "/");

		if (n > 0 && !(n == 1 && *part == '.')) {
			*to++ = '/';
			memmove(to, part, n);
			to += n;
		}
		part += n + (part[n] == '/');
	}
	*to = 0;
}

/*
 * The absolute name of the file. As in the daemon, a shard's directory is the one in its name, so
 * links are kept; only links before a ".." are resolved.
 */
static char *whole_name(const char *path)
{
	char *here = path[0] == '/' ? strdup("") : get_current_dir_name(), *whole = NULL,
	     *real = NULL;
	size_t up = 0;

	if (!here || asprintf(&whole, "%s/%s", here, path) < 0)
		return free(here), NULL;
	free(here);
	for (size_t at = 0, n; whole[at]; at += n + (whole[at + n] == '/')) {
		n = strcspn(whole + at, "/");
		up = n == 2 && strncmp(whole + at, "..", 2) == 0 ? at + n : up;
	}
	if (up > 0) {
		char *before = strndup(whole, up),
		     *resolved = before ? realpath(before, NULL) : NULL;

		if (!resolved || asprintf(&real, "%s%s", resolved, whole + up) < 0)
			real = NULL;
		free(before);
		free(resolved);
		free(whole);
		whole = real;
	}
	if (whole)
		squeeze(whole);
	return whole;
}

static struct shard *open_whole(
	const struct ctl_input *input, const char *path, int fd, struct fault *fault)
{
	struct bytes *bytes = shard_source(path, fd, &input->hint, fault);
	const struct shard_format *format;
	struct shard_facts facts;

	if (!bytes)
		return NULL;
	format = shard_describe_bytes(input->format, bytes, &input->hint, &facts, fault);
	if (format)
		return shard_open_bytes(format, bytes, &input->hint, &facts, fault);
	bytes_close(bytes);
	if (shard_is_unknown(fault) && !shard_is_foreign(fault))
		strncat(fault->text, "; " PHRASE_NOT_SHARD,
			sizeof(fault->text) - strlen(fault->text) - 1);
	return NULL;
}

struct shard *ctl_input_open(
	const struct ctl_input *input, const char *path, int *fd, struct fault *fault)
{
	struct ctl_input by_name = *input;
	char *whole = input->hint.objects ? strdup(path) : whole_name(path);
	struct shard *shard = NULL;

	*fd = -1;
	if (whole && input->name)
		by_name.hint.root_bytes = strlen(whole) - strlen(input->name);
	if (whole && !input->hint.objects) /* O_NONBLOCK: a FIFO must be rejected, not waited for */
		*fd = open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (!whole)
		fault_errno(fault, errno, "", "%s", strerror(errno));
	else if (!input->hint.objects && *fd < 0)
		fault_errno(fault, errno, "", "%s", bytes_open_fault(errno));
	else
		shard = open_whole(&by_name, whole, *fd, fault);
	free(whole);
	return shard;
}

const char *ctl_input_text(const char *path, const char *text)
{
	size_t n = strlen(path);

	return strncmp(text, path, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2 : text;
}

bool ctl_input_fault(const char *path, struct fault *fault)
{
	if (ctl_input_text(path, fault->text) == fault->text)
		fault_prefix(fault, "%s: ", path);
	return false;
}
