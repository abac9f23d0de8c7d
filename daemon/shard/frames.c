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
#include <time.h>

enum {
	KEPT_INPUT = 1 << 20, /* larger buffers are not kept for the next frame */
	CANCEL_MS = 20,	      /* how often a thread that waits asks whether it is cancelled */
};

enum state { DECODING, READY, FAILED };

struct slot {
	struct zstd_identity identity;
	uint64_t frame, size;
	struct slot *next;	    /* of the same bucket */
	struct slot *older, *newer; /* in the list of unused slots */
	unsigned users;
	enum state state;
	pthread_cond_t decoded;
	char *data;
	struct fault *fault; /* if FAILED; NULL: out of memory */
};

struct frames {
	struct frames
		*cache;	  /* itself; for a share, which has only the first two members, its cache */
	uint64_t filling; /* memory of the frames that it is decoding, with their decoders */
	uint64_t decoding; /* sum of `filling` of it and its shares */
	pthread_mutex_t lock;
	pthread_cond_t let_go;
	uint64_t budget, used; /* used: by slots with their data, and decoders */
	struct slot **bucket;
	uint64_t buckets, slots; /* a power of two */
	struct slot ends;	 /* of the unused slots: .newer is the oldest, .older the newest */
	struct zstd_decoder *idle;
	struct slot *dropped; /* to be freed without the lock, by unlock() */
};

struct frames *frames_new(uint64_t budget_bytes)
{
	struct frames *frames = calloc(1, sizeof(*frames));

	if (!frames)
		return NULL;
	frames->buckets = 64;
	frames->bucket = calloc(frames->buckets, sizeof(struct slot *));
	if (!frames->bucket) {
		free(frames);
		return NULL;
	}
	frames->cache = frames;
	frames->budget = budget_bytes;
	frames->ends.newer = frames->ends.older = &frames->ends;
	pthread_mutex_init(&frames->lock, NULL);
	pthread_cond_init(&frames->let_go, NULL);
	return frames;
}

struct frames *frames_share(struct frames *frames)
{
	struct frames *share = calloc(1, sizeof(*share));

	if (share)
		share->cache = frames;
	return share;
}

struct frames *frames_cache(struct frames *share)
{
	return share->cache;
}

static uint64_t hash(const struct zstd_identity *identity, uint64_t frame)
{
	uint64_t h = identity->inode * 0x9e3779b97f4a7c15 ^ identity->mtime_ns;

	h = (h ^ identity->device ^ identity->bytes << 20) * 0xbf58476d1ce4e5b9 + frame;
	h = (h ^ h >> 29) * 0x94d049bb133111eb;
	return h ^ h >> 32;
}

static struct slot **place(
	struct frames *frames, const struct zstd_identity *identity, uint64_t frame, uint64_t size)
{
	struct slot **at = &frames->bucket[hash(identity, frame) & (frames->buckets - 1)];

	while (*at && ((*at)->frame != frame || (*at)->size != size ||
			      memcmp(&(*at)->identity, identity, sizeof(*identity)) != 0))
		at = &(*at)->next;
	return at;
}

/* Doubles the number of buckets, if there is memory. */
static void grow(struct frames *frames)
{
	uint64_t buckets = 2 * frames->buckets;
	struct slot **bucket = calloc(buckets, sizeof(struct slot *));

	if (!bucket)
		return;
	for (uint64_t i = 0; i < frames->buckets; i++)
		for (struct slot *slot = frames->bucket[i], *next; slot; slot = next) {
			struct slot **at =
				&bucket[hash(&slot->identity, slot->frame) & (buckets - 1)];

			next = slot->next;
			slot->next = *at;
			*at = slot;
		}
	free(frames->bucket);
	frames->bucket = bucket;
	frames->buckets = buckets;
}

static void use(struct slot *slot)
{
	if (slot->users++ == 0 && slot->older) {
		slot->older->newer = slot->newer;
		slot->newer->older = slot->older;
		slot->older = slot->newer = NULL;
	}
}

static uint64_t cost_of(uint64_t size)
{
	return sizeof(struct slot) + size;
}

static void slot_free(struct slot *slot)
{
	if (slot) {
		pthread_cond_destroy(&slot->decoded);
		free(slot->data);
		free(slot->fault);
	}
	free(slot);
}

static void drop(struct frames *frames, struct slot *slot)
{
	if (slot) {
		slot->next = frames->dropped;
		frames->dropped = slot;
	}
}

/* Freeing megabytes takes long, and the data thread may wait for the lock. */
static void unlock(struct frames *frames)
{
	struct slot *slot = frames->dropped;

	frames->dropped = NULL;
	pthread_mutex_unlock(&frames->lock);
	for (struct slot *next; slot; slot = next) {
		next = slot->next;
		slot_free(slot);
	}
}

/* Removes a slot that is not in the list of unused slots from the cache. */
static void take_out(struct frames *frames, struct slot *slot)
{
	struct slot **at = place(frames, &slot->identity, slot->frame, slot->size);

	assert(frames->slots > 0 && frames->used >= cost_of(slot->size));
	if (*at == slot)
		*at = slot->next;
	frames->used -= cost_of(slot->size);
	frames->slots--;
}

/* Removes and returns the oldest unused slot; NULL if all are in use. */
static struct slot *take_oldest(struct frames *frames)
{
	struct slot *slot = frames->ends.newer;

	if (slot == &frames->ends)
		return NULL;
	frames->ends.newer = slot->newer;
	slot->newer->older = &frames->ends;
	take_out(frames, slot);
	return slot;
}

static struct zstd_decoder *take_idle(struct frames *frames)
{
	struct zstd_decoder *d = frames->idle;

	if (d)
		frames->idle = d->next;
	return d;
}

static bool drop_idle(struct frames *frames)
{
	struct zstd_decoder *d = take_idle(frames);

	if (d)
		frames->used -= d->counted;
	zstd_decoder_free(d);
	return d;
}

/* Frees unused slots and decoders until the cache is within its budget. */
static void shrink(struct frames *frames)
{
	while (frames->used > frames->budget) {
		struct slot *oldest = take_oldest(frames);

		drop(frames, oldest);
		if (!oldest && !drop_idle(frames))
			return;
	}
}

static void let_go(struct frames *frames, struct slot *slot)
{
	assert(slot->users > 0 && slot->state != DECODING && !slot->older && !slot->newer);
	if (--slot->users > 0)
		return;
	if (slot->state == FAILED) {
		take_out(frames, slot);
		drop(frames, slot);
	} else {
		slot->older = frames->ends.older;
		slot->newer = &frames->ends;
		slot->older->newer = frames->ends.older = slot;
	}
	shrink(frames);
	pthread_cond_broadcast(&frames->let_go);
}

static void count(struct frames *frames, struct zstd_decoder *d)
{
	uint64_t holds = sizeof(*d) + ZSTD_sizeof_DCtx(d->zstd) + d->room;

	frames->used += holds - d->counted;
	d->counted = holds;
}

/* Returns a decoder with room for @bytes of input. NULL: out of memory. */
static struct zstd_decoder *take_decoder(struct frames *frames, size_t bytes)
{
	struct zstd_decoder *d = take_idle(frames);

	if (!d)
		d = zstd_decoder_new();
	if (d && !zstd_decoder_room(d, bytes)) {
		frames->used -= d->counted;
		zstd_decoder_free(d);
		return NULL;
	}
	if (d)
		count(frames, d);
	return d;
}

static void put_decoder(struct frames *frames, struct zstd_decoder *d)
{
	if (d->room > KEPT_INPUT) {
		free(d->input);
		d->input = NULL;
		d->room = 0;
	}
	count(frames, d);
	d->next = frames->idle;
	frames->idle = d;
}

/*
 * Makes room for @size bytes. Returns false if everything is in use: wait for let_go, then retry.
 * The frame that each share has of its own does not wait, nor does a cache without a budget.
 * *@spare: a slot that was evicted. Frames are mostly of one size, and reusing its memory is
 * cheaper than faulting in new pages.
 */
static bool make_room(const struct frames *share, uint64_t size, struct slot **spare)
{
	struct frames *frames = share->cache;
	bool own = share != frames && share->filling == 0;

	while (frames->used + cost_of(size) > frames->budget) {
		struct slot *oldest = take_oldest(frames);

		if (oldest) {
			drop(frames, *spare);
			*spare = oldest;
			continue;
		}
		if (drop_idle(frames))
			continue;
		return own || frames->slots == 0 || frames->budget == 0;
	}
	return true;
}

/*
 * Whether the share may decode @bytes more now: a frame, and of what other shares leave a half. So
 * storage that hangs while its frames are read leaves room, for however many shares it hangs.
 */
static bool may_fill(const struct frames *share, uint64_t bytes)
{
	const struct frames *frames = share->cache;
	uint64_t others = frames->decoding - share->filling;

	if (share == frames || share->filling == 0)
		return true;
	return others < frames->budget && share->filling + bytes <= (frames->budget - others) / 2;
}

static void count_filling(struct frames *share, int64_t bytes)
{
	share->filling += (uint64_t)bytes;
	share->cache->decoding += (uint64_t)bytes;
}

/* Frees @spare, but reuses its memory if it has the right size. */
static struct slot *slot_new(struct frames *frames, const struct zstd_source *s, uint64_t frame,
	uint64_t size, struct slot *spare)
{
	struct slot *slot = calloc(1, sizeof(*slot));

	if (slot) {
		slot->identity = s->identity;
		slot->frame = frame;
		slot->size = size;
		pthread_cond_init(&slot->decoded, NULL);
	}
	if (slot && spare && spare->size == size) {
		slot->data = spare->data;
		spare->data = NULL;
	}
	drop(frames, spare);
	return slot;
}

static void put_in(struct frames *frames, struct slot *slot)
{
	if (frames->slots >= frames->buckets)
		grow(frames);
	*place(frames, &slot->identity, slot->frame, slot->size) = slot;
	frames->used += cost_of(slot->size);
	frames->slots++;
	assert(slot->users == 0 && slot->state == DECODING);
	use(slot);
}

/*
 * Reads the frame from the disk again and decodes it: a bit may have flipped on the way. False: it
 * is still damaged; @fault.
 */
static bool decode_again(
	struct zstd_decoder *d, const struct zstd_source *s, struct slot *slot, struct fault *fault)
{
	const struct zstd_frame *f = &s->frame[slot->frame];
	const struct fault first = *fault;

	reread_forget(s->file->fd, f->from, f->length);
	if (zstd_decode(d, s, slot->frame, slot->size, &slot->data, fault)) {
		reread_was_good(s->file->fd, f->from, f->length, first.text);
		return true;
	}
	size_t n = strlen(fault->text);

	snprintf(fault->text + n, sizeof(fault->text) - n,
		" (bytes %" PRIu64 " to %" PRIu64 ", read twice)", f->from, f->from + f->length);
	return false;
}

/*
 * Decodes into a slot, for which other threads may wait. Called with the lock; releases it while
 * decoding.
 */
static void fill(struct frames *frames, const struct zstd_source *s, struct slot *slot,
	struct zstd_decoder *d)
{
	int64_t filling = (int64_t)(cost_of(slot->size) + d->counted);

	count_filling(s->share, filling);
	unlock(frames);
	struct fault fault;
	bool fine = zstd_decode(d, s, slot->frame, slot->size, &slot->data, &fault) ||
		    (fault.code == FAULT_DATA && decode_again(d, s, slot, &fault));

	if (!fine && (slot->fault = malloc(sizeof(fault))))
		*slot->fault = fault;
	pthread_mutex_lock(&frames->lock);
	count_filling(s->share, -filling);
	put_decoder(frames, d);
	slot->state = fine ? READY : FAILED;
	pthread_cond_broadcast(&slot->decoded);
}

/*
 * Waits for another thread. A store may not answer that one for hours, so in a store this thread
 * can be cancelled meanwhile: false, with @fault.
 */
static bool wait_for(struct frames *frames, const struct zstd_source *s, pthread_cond_t *cond,
	struct fault *fault)
{
	const struct objects *objects = s->file->objects;
	struct timespec until;

	if (!objects) {
		pthread_cond_wait(cond, &frames->lock);
		return true;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += CANCEL_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_cond_clockwait(cond, &frames->lock, CLOCK_MONOTONIC, &until);
	return !store_is_cancelled(objects->stores) ||
	       fault_errno(fault, ECANCELED, "", "cancelled");
}

/*
 * Called with the lock: finds or decodes the frame, and returns its slot, in use. NULL: @fault.
 */
static struct slot *slot_of(struct frames *frames, const struct zstd_source *s, uint64_t frame,
	uint64_t size, struct fault *fault)
{
	fault_memory(fault);
	for (;;) {
		struct slot *slot = *place(frames, &s->identity, frame, size), *spare = NULL;

		if (slot) {
			use(slot);
			while (slot->state == DECODING)
				if (!wait_for(frames, s, &slot->decoded, fault) &&
					slot->state == DECODING) {
					slot->users--; /* the thread that decodes uses it */
					return NULL;
				}
			return slot;
		}
		struct zstd_decoder *d = take_decoder(frames, s->frame[frame].length);

		if (!d)
			return NULL;
		if (!may_fill(s->share, cost_of(size) + d->counted) ||
			!make_room(s->share, size, &spare)) {
			drop(frames, spare);
			put_decoder(frames, d);
			shrink(frames);
			if (frames->dropped) { /* before it waits */
				unlock(frames);
				pthread_mutex_lock(&frames->lock);
			} else if (!wait_for(frames, s, &frames->let_go, fault))
				return NULL;
			continue;
		}
		slot = slot_new(frames, s, frame, size, spare);
		if (!slot) {
			put_decoder(frames, d);
			return NULL;
		}
		put_in(frames, slot);
		fill(frames, s, slot, d);
		return slot;
	}
}

void frames_free(struct frames *frames)
{
	if (!frames)
		return;
	if (frames->cache != frames) {
		free(frames);
		return;
	}
	for (struct slot *slot; (slot = take_oldest(frames));)
		slot_free(slot);
	while (drop_idle(frames))
		;
	pthread_mutex_destroy(&frames->lock);
	pthread_cond_destroy(&frames->let_go);
	free(frames->bucket);
	free(frames);
}

uint64_t frames_bytes(struct frames *frames)
{
	frames = frames->cache;
	pthread_mutex_lock(&frames->lock);
	uint64_t used = frames->used;

	unlock(frames);
	return used;
}

bool frames_read(const struct zstd_source *s, uint64_t frame, uint64_t from, void *to, size_t n,
	struct fault *fault)
{
	struct frames *frames = s->frames;
	uint64_t size = s->frame[frame + 1].begin - s->frame[frame].begin;

	pthread_mutex_lock(&frames->lock);
	struct slot *slot = slot_of(frames, s, frame, size, fault);

	if (!slot) {
		unlock(frames);
		return false;
	}
	bool fine = slot->state == READY;

	if (fine) {
		/* A slot in use does not change. */
		unlock(frames);
		memcpy(to, slot->data + from, n);
		pthread_mutex_lock(&frames->lock);
	} else {
		fault_memory(fault);
		if (slot->fault)
			*fault = *slot->fault;
	}
	let_go(frames, slot);
	unlock(frames);
	return fine;
}

bool frames_try(const struct zstd_source *s, uint64_t frame, uint64_t from, void *to, size_t n)
{
	struct frames *frames = s->frames;
	uint64_t size = s->frame[frame + 1].begin - s->frame[frame].begin;

	pthread_mutex_lock(&frames->lock);
	struct slot *slot = *place(frames, &s->identity, frame, size);
	bool ready = slot && slot->state == READY;

	if (ready)
		use(slot);
	unlock(frames);
	if (!ready)
		return false;
	memcpy(to, slot->data + from, n);
	pthread_mutex_lock(&frames->lock);
	let_go(frames, slot);
	unlock(frames);
	return true;
}
