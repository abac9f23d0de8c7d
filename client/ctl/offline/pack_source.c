#include "client/ctl/offline/pack_source.h"

#include "daemon/shard/cache.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

struct pack_place *pack_place_open(struct stores *stores, const char *url, struct fault *fault)
{
	struct pack_place *place = calloc(1, sizeof(*place));

	if (!place) {
		fault_memory(fault);
		return NULL;
	}
	if (!ctl_listing_open(&place->listing, stores, url, NULL, fault)) {
		free(place);
		return NULL;
	}
	place->cache = cache_new(place->listing.list.root);
	if (place->cache)
		return place;
	pack_place_close(place);
	fault_memory(fault);
	return NULL;
}

void pack_place_close(struct pack_place *place)
{
	if (!place)
		return;
	cache_free(place->cache);
	ctl_listing_close(&place->listing);
	free(place);
}

struct ctl_input pack_source_input(const struct ctl_input *input, const struct pack_place *place)
{
	struct ctl_input own = *input;

	if (place) {
		own.hint.objects = &place->listing.objects;
		own.hint.cache = place->cache;
	}
	return own;
}

/* Size and ETag. An object without one could be replaced between two reads. */
static bool version_of_object(const struct pack_source *s, uint64_t version[3], struct fault *fault)
{
	const struct objects *objects = &s->place->listing.objects;
	struct object object = {.etag = NULL};
	char text[256];

	if (!objects->find(objects->context, s->path, &object))
		return fault_errno(fault, ENOENT, "", "%s: %s", s->path, strerror(ENOENT));
	if (!ctl_listing_etag_ok(object.etag, text, sizeof(text)))
		return fault_set(fault, FAULT_DATA, "", "%s: %s", s->path, text);
	version[0] = object.size;
	version[1] = XXH64(object.etag, strlen(object.etag), 0);
	return true;
}

static bool version_of_file(const struct pack_source *s, uint64_t version[3], struct fault *fault)
{
	struct stat st;

	if (fstat(s->fd, &st) != 0)
		return fault_errno(fault, errno, "", "%s: %s", s->path, strerror(errno));
	version[0] = (uint64_t)st.st_size;
	version[1] = (uint64_t)st.st_mtim.tv_sec;
	version[2] = (uint64_t)st.st_mtim.tv_nsec;
	return true;
}

bool pack_source_open(struct pack_source *s, const struct ctl_input *input, uint64_t *identity,
	struct fault *fault)
{
	const struct ctl_input own = pack_source_input(input, s->place);
	uint64_t version[3] = {0};

	s->fd = -1;
	if (s->place && !version_of_object(s, version, fault))
		return false;
	s->shard = ctl_input_open(&own, s->path, &s->fd, fault);
	if (!s->shard) {
		ctl_input_fault(s->path, fault);
	} else if (s->place || version_of_file(s, version, fault)) {
		const struct shard_facts *f = &s->shard->facts;
		const uint64_t facts[] = {version[0], version[1], version[2], f->tokens,
			f->token_bytes, f->index, f->bounds};

		*identity = XXH64(facts, sizeof(facts), 0);
		return true;
	}
	pack_source_close(s);
	return false;
}

void pack_source_close(struct pack_source *s)
{
	shard_close(s->shard);
	if (s->fd >= 0)
		close(s->fd);
	s->shard = NULL;
	s->fd = -1;
	s->ended = false;
}
