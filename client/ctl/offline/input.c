/* How shards named on the command line are opened. */
#include "client/ctl/offline/shards.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/format.h"
#include "daemon/shard/frames.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* ---- stores ---- */

enum {
	PATIENCE_MS = 60 * 1000,
	FRAMES_BYTES = 64 << 20, /* of decoded zstd frames */
};

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

static bool take_options(struct ctl_input *input, const struct ctl_arguments *a)
{
	const char *format = ctl_named(a, "input-format"), *type = ctl_named(a, "input-dtype");
	char names[SHARD_NAMES_BYTES];

	*input = (struct ctl_input){.hint = {.type = SHARD_U16,
					    .has_type = type,
					    .column = ctl_named(a, "input-column")}};
	input->format = format ? shard_format(format) : NULL;
	if (format && !input->format && strcmp(format, "auto") != 0)
		ctl_usage(a->command,
			"--input-format %s: unknown format; must be auto or one of: %s", format,
			shard_format_names(names, sizeof(names)));
	else if (type && !shard_type(type, &input->hint.type))
		ctl_usage(a->command,
			"--input-dtype %s: unknown type; must be u8, i8, u16, i16, u32, i32, u64 "
			"or i64",
			type);
	else
		return true;
	return false;
}

int ctl_input_begin(struct ctl_input *input, const struct ctl_arguments *a, int paths)
{
	const char *config = ctl_named(a, "config");
	struct fault fault;
	bool urls = false, fine;

	if (!take_options(input, a))
		return CTL_USAGE;
	for (int i = 0; i < paths; i++)
		urls |= url_text_is(a->argument[i]);
	input->hint.frames = frames_new(FRAMES_BYTES);
	fine = input->hint.frames || fault_memory(&fault);
	if (fine && config) {
		input->config = config_load(config, &fault);
		fine = input->config;
	}
	if (fine && (urls || (config && ctl_stores_needed(input->config, NULL)))) {
		input->stores = ctl_stores_open(input->config, &fault);
		fine = input->stores;
	}
	return fine ? CTL_OK : ctl_fail("%s", fault.text);
}

void ctl_input_end(struct ctl_input *input)
{
	if (input->hint.frames)
		frames_free(input->hint.frames);
	store_close(input->stores);
	config_free(input->config);
}

int ctl_input_paths(char **path, int n)
{
	struct shard_list all = {0};
	struct fault fault;
	bool fine = true;
	int kept = 0;

	for (int i = 0; fine && i < n; i++)
		fine = shard_list_add(&all, path[i], &fault);
	shard_list_sort(&all);
	for (int i = 0; fine && i < n; i++)
		if (!shard_list_accompanies(&all, path[i]))
			path[kept++] = path[i];
	shard_list_free(&all);
	return fine ? kept : -1;
}

/* ---- opening ---- */

struct ctl_input ctl_input_at(const struct ctl_place *p, const struct ctl_input *input)
{
	struct ctl_input own = *input;

	own.hint.indexes = p->indexes;
	own.hint.objects = p->remote ? &p->objects : NULL;
	return own;
}

struct shard *ctl_input_open(
	const struct ctl_input *input, const char *path, int *fd, struct fault *fault)
{
	bool remote = input->hint.objects;
	struct shard *shard = NULL;

	/* O_NONBLOCK: a FIFO must be rejected, not waited for */
	*fd = remote ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (!remote && *fd < 0)
		fault_errno(fault, errno, "", "%s", bytes_open_fault(errno));
	else
		shard = shard_open(input->format, path, *fd, &input->hint, fault);
	if (!shard && shard_is_unknown(fault) && !shard_is_foreign(fault))
		strncat(fault->text, "; " PHRASE_NOT_SHARD,
			sizeof(fault->text) - strlen(fault->text) - 1);
	return shard;
}

const char *ctl_input_text(const char *path, const char *text)
{
	size_t n = strlen(path);

	return strncmp(text, path, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2 : text;
}

bool ctl_input_fault(const char *path, struct fault *fault)
{
	bool named = store_is_url(path)
			     ? strncmp(fault->text, path, strcspn(path, ":") + strlen("://")) == 0
			     : ctl_input_text(path, fault->text) != fault->text;

	return named ? false : fault_prefix(fault, "%s: ", path);
}
