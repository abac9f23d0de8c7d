#include "client/ctl/offline/input.h"

#include "client/ctl/common/arguments.h"
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

bool ctl_input_options(struct ctl_input *input, const struct ctl_command *command,
	const char *format, const char *dtype, const char *column)
{
	char names[SHARD_NAMES_BYTES];

	*input = (struct ctl_input){.hint = {.type = SHARD_U16, .column = column}};
	if (format && strcmp(format, "auto") != 0) {
		input->format = shard_format(format);
		if (!input->format) {
			ctl_usage(command,
				"--input-format %s: unknown format; must be auto or one of: %s",
				format, shard_format_names(names, sizeof(names)));
			return false;
		}
	}
	input->hint.has_type = dtype != NULL;
	if (dtype && !shard_type(dtype, &input->hint.type)) {
		ctl_usage(command,
			"--input-dtype %s: unknown type; must be u8, i8, u16, i16, u32, i32, u64 "
			"or i64",
			dtype);
		return false;
	}
	return true;
}

/* Length of @path's first @n bytes up to and including the last slash. */
static size_t parent_bytes(const char *path, size_t n)
{
	while (n > 0 && path[n - 1] != '/')
		n--;
	return n;
}

bool ctl_input_list(struct shard_list *list, const char *path, size_t *prefix, struct fault *fault)
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

void ctl_input_name(const struct shard_list *list, uint64_t i, const char *path, size_t prefix,
	char *name, size_t name_bytes)
{
	bool slash = prefix > 0 && path[prefix - 1] != '/';

	snprintf(name, name_bytes, "%.*s%s%s", (int)prefix, path, slash ? "/" : "",
		shard_list_name(list, i));
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
	if (!ctl_input_list(&below, path, &prefix, &fault))
		return true;
	for (uint64_t i = 0; fine && i < below.count; i++) {
		ctl_input_name(&below, i, path, prefix, name, sizeof(name));
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
