/*
 * dataset-cat [-o] CONFIG STREAM: reads the shards of a stream's datasets as tokend does, from disk
 * or from a store. Prints a line of JSON for each dataset: its digest, and for each shard hashes of
 * its tokens, document boundaries and loss mask. With -o shards are opened, and not read. A fault
 * is the only line, on stderr, and the exit status is 1.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/catalog/dataset_shard.h"
#include "daemon/shard/frames.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { AT_ONCE = 4099 /* tokens */, FRAMES_BYTES = 64 << 20, PATIENCE_MS = 10000 };

struct reading {
	const struct dataset *dataset;
	struct stores *stores;
	uint64_t number;
	int fd;
	struct shard *shard; /* NULL: plain, and not opened */
	struct fault fault;
};

/* A plain shard as the daemon reads it, without opening it as a shard. */
static bool read_plain(struct reading *r, uint64_t token, uint64_t n, void *to)
{
	const struct dataset *d = r->dataset;
	uint64_t at = dataset_data_at(d, r->number) + token * d->token_bytes;
	struct object object;

	if (!d->objects)
		return pread(r->fd, to, n * d->token_bytes, (off_t)at) ==
		       (ssize_t)(n * d->token_bytes);
	dataset_object(d, r->number, &object);
	return store_read(r->stores, &object, at, to, n * d->token_bytes, &r->fault);
}

static bool hash_boundaries(struct reading *r, uint64_t *hash)
{
	uint64_t token = 0, tokens = r->shard->facts.tokens;

	while (r->shard->facts.documents != SHARD_UNKNOWN && token < tokens) {
		token = shard_boundary(r->shard, token, &r->fault);
		if (token == 0)
			return false;
		*hash = XXH64(&token, sizeof(token), *hash);
	}
	return true;
}

static bool hash_shard(struct reading *r, uint64_t *tokens, uint64_t *boundaries, uint64_t *masks)
{
	static uint32_t some[AT_ONCE];
	static uint8_t mask[AT_ONCE];
	const struct dataset *d = r->dataset;
	uint64_t count = d->table.tokens[r->number];

	for (uint64_t at = 0, n; at < count; at += n) {
		n = count - at < AT_ONCE ? count - at : AT_ONCE;
		if (!(r->shard ? shard_read(r->shard, at, n, some, &r->fault)
			       : read_plain(r, at, n, some)))
			return false;
		*tokens = XXH64(some, n * d->token_bytes, *tokens);
		if (!r->shard || !d->hint.loss_mask)
			continue;
		if (!shard_loss_mask(r->shard, at, n, mask, &r->fault))
			return false;
		*masks = XXH64(mask, n, *masks);
	}
	return !r->shard || !d->hint.documents || hash_boundaries(r, boundaries);
}

static bool cat_shard(struct reading *r, struct frames *frames, bool read)
{
	const struct dataset *d = r->dataset;
	bool plain = dataset_is_plain(d, r->number) && !d->marked;
	uint64_t tokens = 0, boundaries = 0, masks = 0;
	char path[PATH_MAX + 1];

	dataset_shard_path(d, r->number, path, sizeof(path));
	r->fd = d->objects ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	r->shard = plain ? NULL : dataset_open_shard(d, r->number, path, r->fd, frames, &r->fault);
	bool fine = (plain || r->shard) && (!read || hash_shard(r, &tokens, &boundaries, &masks));

	shard_close(r->shard);
	if (r->fd >= 0)
		close(r->fd);
	if (!fine) {
		fprintf(stderr, "%s: %s\n", path, r->fault.text);
		return false;
	}
	printf("%s\"%s\": [%" PRIu64 ", \"%016" PRIx64 "\", \"%016" PRIx64 "\", \"%016" PRIx64
	       "\"]",
		r->number ? ", " : "", dataset_shard_name(d, r->number), d->table.tokens[r->number],
		tokens, boundaries, masks);
	return true;
}

static bool cat_dataset(
	const struct dataset *d, struct stores *stores, struct frames *frames, bool read)
{
	struct reading r = {.dataset = d, .stores = stores};

	printf("{\"name\": \"%s\", \"digest\": \"%016" PRIx64 "\", \"windows\": %" PRIu64
	       ", \"token_bytes\": %" PRIu32 ", \"shards\": {",
		d->config->name, d->digest, d->table.windows, d->token_bytes);
	for (; r.number < d->table.shards; r.number++)
		if (!cat_shard(&r, frames, read))
			return false;
	printf("}}\n");
	return true;
}

int main(int argc, char **argv)
{
	bool read = getopt(argc, argv, "o") != 'o', fine;
	struct fault fault;
	struct config *config = config_load(argv[optind], &fault);
	struct store_options options = {
		.config = config, .memory_bytes = 64 << 20, .patience_ms = PATIENCE_MS};
	struct stores *stores = config ? store_open(&options, &fault) : NULL;
	struct catalog *catalog =
		stores ? catalog_open_stream(config, stores, argv[optind + 1], &fault) : NULL;
	struct frames *frames = frames_new(FRAMES_BYTES);
	const struct stream *stream = catalog ? catalog_stream(catalog, argv[optind + 1]) : NULL;

	if (!stream)
		fprintf(stderr, "%s\n", fault.text);
	fine = stream;
	for (uint32_t i = 0; fine && i < stream->config->datasets; i++)
		fine = cat_dataset(&stream->dataset[i], stores, frames, read);
	catalog_free(catalog);
	frames_free(frames);
	if (stores)
		store_stop(stores);
	store_close(stores);
	config_free(config);
	return !fine;
}
