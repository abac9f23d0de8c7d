#include "daemon/shard/frames.h"

#include "daemon/shard/bytes.h"
#include "daemon/shard/zstd.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

enum {
	DECODER_BYTES = 160 << 10, /* what zstd allocates to decode a frame */
	BUCKET_BYTES = 64 << 10,   /* of the budget, for each bucket */
	BUCKETS_LEAST = 64,
	BUCKETS_MOST = 1 << 18,
	CANCEL_MS = 20, /* how often a thread that waits asks whether it is cancelled */
};

/* A decoded frame, or one that is being decoded. */
struct slot {
	uint64_t version, frame, size; /* version: of its file */
	LIST_ENTRY(slot) link;	       /* in its bucket; later in the list of dropped slots */
	TAILQ_ENTRY(slot) unused;
	unsigned users; /* the thread that decodes it is one */
	bool ready;
	char data[];
};

LIST_HEAD(slots, slot);

struct frames {
	struct frames *cache;  /* itself, or of a share its cache; the rest is the cache's */
	uint64_t decoding;     /* of a share, too: memory for the frames that it is decoding */
	uint64_t decoding_all; /* sum over the cache and its shares */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a frame was decoded, or is no longer in use */
	uint64_t budget, used;
	TAILQ_HEAD(, slot) unused; /* the oldest first */
	struct slots dropped;	   /* to be freed without the lock */
	uint64_t buckets;	   /* a power of two */
	struct slots bucket[];
};

struct frames *frames_new(uint64_t budget_bytes)
{
	uint64_t buckets = BUCKETS_LEAST;

	while (buckets < budget_bytes / BUCKET_BYTES && buckets < BUCKETS_MOST)
		buckets *= 2;
	struct frames *cache = calloc(1, sizeof(*cache) + buckets * sizeof(cache->bucket[0]));

	if (!cache)
		return NULL;
	cache->cache = cache;
	cache->budget = budget_bytes;
	cache->buckets = buckets;
	TAILQ_INIT(&cache->unused);
	pthread_mutex_init(&cache->lock, NULL);
	pthread_cond_init(&cache->changed, NULL);
	return cache;
}

struct frames *frames_share(struct frames *frames)
{
	struct frames *share = calloc(1, sizeof(*share));

	if (share)
		share->cache = frames;
	return share;
}

void frames_free(struct frames *frames)
{
	if (frames && frames->cache == frames) {
		for (struct slot *slot; (slot = TAILQ_FIRST(&frames->unused));) {
			TAILQ_REMOVE(&frames->unused, slot, unused);
			free(slot);
		}
		pthread_mutex_destroy(&frames->lock);
		pthread_cond_destroy(&frames->changed);
	}
	free(frames);
}

/* Freeing megabytes takes long, and the data thread may wait for the lock. */
static void unlock(struct frames *cache)
{
	struct slot *slot = LIST_FIRST(&cache->dropped);

	LIST_INIT(&cache->dropped);
	pthread_mutex_unlock(&cache->lock);
	for (struct slot *next; slot; slot = next) {
		next = LIST_NEXT(slot, link);
		free(slot);
	}
}

uint64_t frames_bytes(struct frames *frames)
{
	struct frames *cache = frames->cache;

	pthread_mutex_lock(&cache->lock);
	uint64_t used = cache->used;

	unlock(cache);
	return used;
}

static uint64_t kept_bytes(uint64_t size)
{
	return sizeof(struct slot) + size;
}

static struct slots *bucket_of(struct frames *cache, uint64_t version, uint64_t frame)
{
	uint64_t hash = version + frame * UINT64_C(0x9e3779b97f4a7c15);

	return &cache->bucket[hash >> 32 & (cache->buckets - 1)];
}

static void drop(struct frames *cache, struct slot *slot)
{
	assert(cache->used >= kept_bytes(slot->size));
	cache->used -= kept_bytes(slot->size);
	LIST_REMOVE(slot, link);
	LIST_INSERT_HEAD(&cache->dropped, slot, link);
}

/* Drops frames that are not in use until @bytes more are within the budget. */
static void make_room(struct frames *cache, uint64_t bytes)
{
	for (struct slot *slot;
		cache->used + bytes > cache->budget && (slot = TAILQ_FIRST(&cache->unused));) {
		TAILQ_REMOVE(&cache->unused, slot, unused);
		drop(cache, slot);
	}
}

/* Whether the share may decode a frame now, for which it needs @bytes. */
static bool may_decode(struct frames *share, uint64_t bytes)
{
	struct frames *cache = share->cache;
	uint64_t others = cache->decoding_all - share->decoding;
	bool own = share->decoding == 0;

	if (!own &&
		(others > cache->budget || share->decoding + bytes > (cache->budget - others) / 2))
		return false;
	make_room(cache, bytes);
	return own || cache->used + bytes <= cache->budget;
}

static void count(struct frames *share, uint64_t kept, uint64_t bytes)
{
	share->cache->used += kept;
	share->cache->decoding_all += bytes;
	share->decoding += bytes;
}

/* Decodes a frame; once more if it is damaged, because a bit may have flipped on the way. */
static bool decode_twice(const struct zstd_source *s, struct slot *slot, struct fault *fault)
{
	const struct zstd_frame *f = &s->frame[slot->frame];

	if (zstd_decode(s, slot->frame, slot->size, slot->data, fault))
		return true;
	if (fault->code != FAULT_DATA)
		return false;
	const struct fault first = *fault;

	reread_forget(s->file->fd, f->from, f->length);
	if (zstd_decode(s, slot->frame, slot->size, slot->data, fault)) {
		reread_was_good(s->file->fd, f->from, f->length, first.text);
		return true;
	}
	size_t n = strlen(fault->text);

	snprintf(fault->text + n, sizeof(fault->text) - n,
		" (bytes %" PRIu64 " to %" PRIu64 ", read twice)", f->from, f->from + f->length);
	return false;
}

/*
 * Decodes a frame, for which other threads may wait, and returns its slot, in use. NULL: @fault.
 * Called with the lock; releases it while decoding. @bytes: memory for it.
 */
static struct slot *decode(const struct zstd_source *s, uint64_t frame, uint64_t size,
	uint64_t bytes, struct fault *fault)
{
	struct frames *cache = s->frames->cache;
	uint64_t more = bytes - kept_bytes(size); /* only while it is decoded */
	struct slot *slot = malloc(kept_bytes(size));

	if (!slot) {
		fault_memory(fault);
		return NULL;
	}
	*slot = (struct slot){
		.version = s->file->version, .frame = frame, .size = size, .users = 1};
	LIST_INSERT_HEAD(bucket_of(cache, slot->version, frame), slot, link);
	count(s->frames, bytes, bytes);
	unlock(cache);
	bool fine = decode_twice(s, slot, fault);

	pthread_mutex_lock(&cache->lock);
	count(s->frames, -more, -bytes);
	slot->ready = fine;
	if (!fine)
		drop(cache, slot);
	pthread_cond_broadcast(&cache->changed);
	return fine ? slot : NULL;
}

/*
 * Waits for another thread. A store may not answer that one for hours, so this one can be
 * cancelled meanwhile: false, with @fault.
 */
static bool wait_for_change(
	struct frames *cache, const struct objects *objects, struct fault *fault)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += CANCEL_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_cond_clockwait(&cache->changed, &cache->lock, CLOCK_MONOTONIC, &until);
	return !objects || !store_is_cancelled(objects->stores) ||
	       fault_errno(fault, ECANCELED, "", "cancelled");
}

/* Finds or decodes a frame, and returns its slot, in use. Called with the lock. NULL: @fault. */
static struct slot *get(
	const struct zstd_source *s, uint64_t frame, uint64_t size, struct fault *fault)
{
	struct frames *cache = s->frames->cache;
	struct slots *bucket = bucket_of(cache, s->file->version, frame);
	uint64_t bytes = kept_bytes(size) + s->frame[frame].length + DECODER_BYTES;

	for (;;) {
		struct slot *slot;

		LIST_FOREACH(slot, bucket, link)
		if (slot->frame == frame && slot->version == s->file->version && slot->size == size)
			break;
		if (slot && slot->ready) {
			if (slot->users++ == 0)
				TAILQ_REMOVE(&cache->unused, slot, unused);
			return slot;
		}
		if (!fault)
			return NULL;
		/* If another thread fails to decode it, this one tries, too. */
		if (!slot && may_decode(s->frames, bytes))
			return decode(s, frame, size, bytes, fault);
		if (!wait_for_change(cache, s->file->objects, fault))
			return NULL;
	}
}

static void let_go(struct frames *cache, struct slot *slot)
{
	assert(slot->users > 0 && slot->ready);
	if (--slot->users > 0)
		return;
	TAILQ_INSERT_TAIL(&cache->unused, slot, unused);
	make_room(cache, 0);
	pthread_cond_broadcast(&cache->changed);
}

bool frames_read(const struct zstd_source *s, uint64_t frame, uint64_t from, void *to, size_t n,
	struct fault *fault)
{
	struct frames *cache = s->frames->cache;
	uint64_t size = s->frame[frame + 1].begin - s->frame[frame].begin;

	pthread_mutex_lock(&cache->lock);
	struct slot *slot = get(s, frame, size, fault);

	if (slot) { /* in use, so it does not change */
		unlock(cache);
		memcpy(to, slot->data + from, n);
		pthread_mutex_lock(&cache->lock);
		let_go(cache, slot);
	}
	unlock(cache);
	return slot;
}
