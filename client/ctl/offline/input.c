/* How shards named on the command line are opened, and all their tokens. */
#include "client/ctl/offline/shards.h"
#include "proto/phrases.h"

#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- stores ---- */

enum {
	PATIENCE_MS = 60 * 1000,
	FRAMES_BYTES = 64 << 20, /* of decoded zstd frames */
};

/* A store that does not answer is waited for: the user sees why nothing happens. */
static void note(const char *line)
{
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

/* Removes side files of shards from the @n paths. Returns the number of those left; -1: out of
 * memory. */
static int drop_sides(char **path, int n)
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

int ctl_input_begin(struct ctl_input *input, const struct ctl_arguments *a, int *n)
{
	const char *config = ctl_text(a, "config"), *format = ctl_text(a, "input-format"),
		   *type = ctl_text(a, "input-dtype");
	struct fault fault;

	*input = (struct ctl_input){.format = format ? shard_format(format) : NULL,
		.hint = {.type = SHARD_U16,
			.has_type = type,
			.column = ctl_text(a, "input-column")}};
	if (type)
		shard_type(type, &input->hint.type);
	*n = drop_sides(a->argument, *n);
	input->hint.frames = frames_new(FRAMES_BYTES);
	if (*n < 0 || !input->hint.frames)
		return ctl_fail(PHRASE_MEMORY);
	input->config = config ? config_load(config, &fault) : NULL;
	if (!config || input->config)
		input->stores = ctl_stores_open(input->config, &fault);
	return input->stores ? CTL_OK : ctl_fail("%s", fault.text);
}

/* ---- opening ---- */

struct ctl_input ctl_input_at(const struct ctl_place *p, const struct ctl_input *input)
{
	struct ctl_input own = *input;

	own.hint.indexes = p->set.hint.indexes;
	own.hint.objects = p->set.bucket ? &p->set.finder : NULL;
	return own;
}

const char *ctl_input_text(const char *path, const char *text)
{
	size_t n = strlen(path);

	return strncmp(text, path, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2 : text;
}

/* ---- all tokens of a shard ---- */

uint64_t ctl_digest(const uint32_t *tokens, uint64_t n, uint64_t piece)
{
	uint64_t sum = 0;

	for (uint64_t some; n > 0; tokens += some, n -= some) {
		some = n < CTL_DIGEST_TOKENS ? n : CTL_DIGEST_TOKENS;
		sum += XXH3_64bits_withSeed(tokens, some * sizeof(*tokens), piece++);
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

/* Of a piece of the digest, which they divide: looked at while they are in the processor's cache.
 */
enum { BLOCK_TOKENS = 1 << 16 };

bool ctl_scan(struct ctl_scan *scan, const struct shard *shard, struct fault *fault)
{
	uint64_t tokens = shard->facts.tokens, n;
	uint32_t width = shard->facts.token_bytes;
	uint64_t room = tokens < CTL_DIGEST_TOKENS ? tokens + 1 : CTL_DIGEST_TOKENS;
	uint64_t most = shard->bytes->object ? CTL_DIGEST_TOKENS : BLOCK_TOKENS; /* a GET is dear */
	uint32_t *wide = malloc(room * sizeof(*wide)); /* a piece of the digest */
	uint16_t *narrow = malloc(room * sizeof(*narrow));
	uint8_t *mask = (uint8_t *)narrow; /* when its tokens are not needed any more */
	bool fine = (wide && narrow) || fault_memory(fault);

	scan->digest = scan->most = scan->masked = 0;
	scan->beyond = SHARD_UNKNOWN;
	for (uint64_t token = 0; fine && token < tokens; token += n) {
		uint64_t piece = token / CTL_DIGEST_TOKENS, begin = token % CTL_DIGEST_TOKENS;
		uint32_t *to = wide + (scan->digests ? begin : 0);
		void *block = width == 2 ? (void *)narrow : to;

		n = tokens - token < most ? tokens - token : most;
		fine = shard_read(shard, token, n, block, fault);
		if (!fine)
			break;
		look(scan, token, block, n, width);
		for (uint64_t i = 0; scan->digests && width == 2 && i < n; i++)
			to[i] = narrow[i];
		if (scan->digests && (begin + n == CTL_DIGEST_TOKENS || token + n == tokens))
			scan->digest += ctl_digest(wide, begin + n, piece);
		fine = !scan->masks || shard_loss_mask(shard, token, n, mask, fault);
		for (uint64_t i = 0; scan->masks && fine && i < n; i++)
			scan->masked += !mask[i];
		if (scan->progress)
			ctl_progress_add(n);
	}
	free(wide);
	free(narrow);
	return fine;
}
