/* How shards named on the command line are opened, and all their tokens. */
#include "client/ctl/offline/shards.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/bytes.h"
#include "daemon/shard/format.h"
#include "proto/phrases.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

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

int ctl_input_begin(struct ctl_input *input, const struct ctl_arguments *a)
{
	const char *config = ctl_named(a, "config");
	struct fault fault;

	if (!take_options(input, a))
		return CTL_USAGE;
	input->hint.frames = frames_new(FRAMES_BYTES);
	if (!input->hint.frames)
		return ctl_fail(PHRASE_MEMORY);
	input->config = config ? config_load(config, &fault) : NULL;
	if (!config || input->config)
		input->stores = ctl_stores_open(input->config, &fault);
	return input->stores ? CTL_OK : ctl_fail("%s", fault.text);
}

void ctl_input_end(struct ctl_input *input)
{
	if (input->hint.frames)
		frames_free(input->hint.frames);
	for (unsigned i = 0; i < input->lists; i++) {
		dataset_close(&input->listed[i].shards);
		dataset_close(&input->listed[i].first.of);
		free(input->listed[i].root);
		free(input->listed[i].mask);
	}
	free(input->listed);
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
	uint8_t *is = fine ? shard_list_mark(&all) : NULL;

	for (int i = 0; is && i < n; i++)
		if (is[shard_list_find(&all, path[i])] != LIST_SIDE)
			path[kept++] = path[i];
	shard_list_free(&all);
	free(is);
	return is ? kept : -1;
}

/* ---- the datasets of the config ---- */

bool ctl_listed_below(const struct listed *l, const char *path, const char **name)
{
	size_t n = strlen(l->root);

	n -= l->root[n - 1] == '/';
	*name = path + n + 1;
	return strncmp(path, l->root, n) == 0 && path[n] == '/';
}

struct listed *ctl_listed_find(const struct ctl_input *input, const char *path, int64_t *shard)
{
	struct listed *found = NULL;
	const char *name;

	for (unsigned i = 0; i < input->lists; i++) {
		struct listed *l = &input->listed[i];
		bool below = ctl_listed_below(l, path, &name);
		int64_t number = below ? shard_list_find(&l->shards.list, name) : -1;

		if ((number < 0 && !(below && l->unlisted)) || (found && !l->dataset->label_mask))
			continue;
		found = l;
		*shard = number;
		if (l->dataset->label_mask)
			break;
	}
	return found;
}

/* Sets l->mask to the dataset's directory of masks, without a slash at its end. */
static bool find_mask(struct ctl_input *input, struct listed *l)
{
	char path[PATH_MAX];

	if (!l->dataset->label_mask)
		return true;
	if (!config_path(input->config, l->dataset->label_mask, path, sizeof(path)))
		return ctl_error("%s: %s", l->dataset->label_mask, strerror(ENAMETOOLONG));
	for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
		path[n - 1] = 0;
	l->mask = strdup(path);
	return l->mask || ctl_error(PHRASE_MEMORY);
}

static bool list_dataset(struct ctl_input *input, bool manifests,
	const struct config_stream *stream, const struct config_dataset *dataset)
{
	struct listed *l = &input->listed[input->lists++];
	const struct config *config = input->config;
	bool url = url_text_is(dataset->path);
	char *root, path[PATH_MAX];
	struct fault fault;

	l->stream = stream;
	l->dataset = dataset;
	if (dataset->manifest && manifests) {
		l->shards = (struct dataset){.file = config,
			.stream = stream,
			.config = dataset,
			.finder.stores = input->stores};
		if (!dataset_manifest(&l->shards, &fault))
			return ctl_error("%s", fault.text);
	} else if (url) { /* without its slash, as other roots */
		l->shards.list.root = strndup(dataset->path, strlen(dataset->path) - 1);
		l->unlisted = true;
	} else if (!(config_path(config, dataset->path, path, sizeof(path)) ||
			   fault_errno(&fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG))) ||
		   !shard_list_read(&l->shards.list, path, &fault)) {
		return ctl_error("%s:%d: path: %s", config->path, dataset->path_line, fault.text);
	}
	root = l->shards.list.root;
	l->root = !root ? NULL : url ? strdup(root) : realpath(root, NULL);
	return l->root ? find_mask(input, l) : ctl_error("%s: %s", dataset->path, strerror(errno));
}

bool ctl_listed_read(struct ctl_input *input, bool manifests)
{
	const struct config *config = input->config;
	size_t datasets = 0;

	input->hint.budget_bytes = dataset_frames_budget(config);
	for (uint32_t i = 0; i < config->streams; i++)
		datasets += config->stream[i].datasets;
	input->listed = calloc(datasets + 1, sizeof(*input->listed));
	if (!input->listed)
		return ctl_error(PHRASE_MEMORY);
	for (uint32_t i = 0; i < config->streams; i++)
		for (uint32_t d = 0; d < config->stream[i].datasets; d++)
			if (!list_dataset(input, manifests, &config->stream[i],
				    &config->stream[i].dataset[d]))
				return false;
	return true;
}

void ctl_listed_use(const struct listed *l, struct ctl_input *input)
{
	const struct config_dataset *dataset = l->dataset;

	if (!input->format)
		input->format = shard_format(dataset->format);
	if (!input->hint.has_type)
		input->hint.type = !dataset->has_dtype && l->shards.entry
					   ? (enum shard_type)l->shards.entry[0].type
				   : dataset->token_bytes == 4 ? SHARD_U32
							       : SHARD_U16;
	input->hint.has_type |= dataset->has_dtype;
	if (!input->hint.column)
		input->hint.column = dataset->column;
	input->hint.window_tokens = l->stream->seq_len + l->stream->extra;
	input->hint.label_mask = l->mask;
	input->hint.root_bytes = strlen(l->root) + !bytes_ends_in(l->root, "/");
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

void ctl_input_close(struct shard *shard, int fd)
{
	shard_close(shard);
	if (fd >= 0)
		close(fd);
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

/* ---- all tokens of a shard ---- */

static uint64_t digest_piece(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece)
{
	const uint16_t *narrow = tokens;
	uint32_t wide[4096];
	XXH3_state_t state;

	if (token_bytes == 4)
		return XXH3_64bits_withSeed(tokens, 4 * n, piece);
	XXH3_INITSTATE(&state);
	XXH3_64bits_reset_withSeed(&state, piece);
	for (uint64_t some; n > 0; narrow += some, n -= some) {
		some = n < 4096 ? n : 4096;
		for (uint64_t i = 0; i < some; i++)
			wide[i] = narrow[i];
		XXH3_64bits_update(&state, wide, 4 * some);
	}
	return XXH3_64bits_digest(&state);
}

uint64_t ctl_digest(const void *tokens, uint64_t n, uint32_t token_bytes, uint64_t piece)
{
	const char *from = tokens;
	uint64_t sum = 0;

	for (uint64_t some; n > 0; from += some * token_bytes, n -= some) {
		some = n < CTL_DIGEST_TOKENS ? n : CTL_DIGEST_TOKENS;
		sum += digest_piece(from, some, token_bytes, piece++);
	}
	return sum;
}

static void look(
	struct ctl_scan *scan, uint64_t token, const void *tokens, uint64_t n, uint32_t token_bytes)
{
	uint32_t most = tokens_most(tokens, n, token_bytes);

	scan->most = most > scan->most ? most : scan->most;
	if (scan->vocab && most >= scan->vocab && scan->beyond == SHARD_UNKNOWN) {
		uint64_t i = tokens_first_above(tokens, n, token_bytes, (uint32_t)scan->vocab - 1);

		scan->beyond = token + i;
		scan->beyond_value = tokens_value(tokens, i, token_bytes);
	}
}

/* Counts the masked ones of @n tokens. @block: room for @n bytes. */
static bool count_masked(struct ctl_scan *scan, const struct shard *shard, uint64_t token,
	uint64_t n, uint8_t *block, struct fault *fault)
{
	if (!shard_loss_mask(shard, token, n, block, fault))
		return false;
	for (uint64_t i = 0; i < n; i++)
		scan->masked += !block[i];
	return true;
}

bool ctl_scan(struct ctl_scan *scan, const struct shard *shard, struct fault *fault)
{
	uint64_t tokens = shard->facts.tokens, n;
	uint32_t width = shard->facts.token_bytes;
	void *piece = malloc((tokens < CTL_DIGEST_TOKENS ? tokens : CTL_DIGEST_TOKENS) * width + 1);
	bool fine = piece || fault_memory(fault);

	scan->digest = scan->most = scan->masked = 0;
	scan->beyond = SHARD_UNKNOWN;
	for (uint64_t token = 0; fine && token < tokens; token += n) {
		n = tokens - token < CTL_DIGEST_TOKENS ? tokens - token : CTL_DIGEST_TOKENS;
		fine = shard_read(shard, token, n, piece, fault);
		if (!fine)
			break;
		look(scan, token, piece, n, width);
		if (scan->digests)
			scan->digest += ctl_digest(piece, n, width, token / CTL_DIGEST_TOKENS);
		if (scan->masks)
			fine = count_masked(scan, shard, token, n, piece, fault);
		if (scan->progress)
			ctl_progress_add(scan->progress, n);
	}
	free(piece);
	return fine;
}
