/*
 * zstd-compressed files: those with a seek table at their end (zstd's contrib/seekable_format), or
 * of one frame whose header states its size. A read decodes the frames that it touches, each as a
 * whole, into a cache that all sources may share.
 *
 * Files are untrusted. The frames of a seek table must fill the file, and no frame may be larger
 * than the budget. The decoded bytes must have the recorded length and checksum.
 */
#include "daemon/shard/format.h"

#define XXH_INLINE_ALL
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
	HEADER_MOST = 18,
	SKIPPABLE_BYTES = 8, /* magic and length */
	FOOTER_BYTES = 9,
	HEAD_FROM = 1 << 20, /* bytes; of larger frames the first bytes are decoded by themselves */
	HEAD_MORE = 130 << 10, /* a block has 128 KiB at most */
	SMALL = 1 << 16,       /* bytes; files up to this size are decoded when they are opened, */
	SMALL_CONTENT = 1 << 20,   /* if their contents are at most this large */
	DECODER_BYTES = 160 << 10, /* what zstd allocates to decode a frame */
	BUDGET = 256 << 20,	   /* the default */
	HAS_CHECKSUM = 4,	   /* in byte 4 of a frame */
};

static const uint32_t frame_magic = 0xfd2fb528, table_magic = 0x184d2a5e,
		      seekable_magic = 0x8f92eab1;

/* A decoded frame, or one that is being decoded. */
struct slot {
	struct frame *frame;
	uint64_t bytes;		/* with this struct */
	bool ready;		/* it is decoded, and in the cache's list */
	TAILQ_ENTRY(slot) next; /* used more recently */
	char data[];
};

/* Of a file. The slots are the cache's, and used with its lock. */
struct frame {
	uint64_t from;	   /* offset in the file */
	uint64_t begin;	   /* offset in the contents */
	struct slot *slot; /* NULL: it is not in the cache */
	uint32_t checksum;
};

struct source {
	struct bytes bytes;
	struct bytes *file;
	struct frames *frames; /* the cache, or a share of it */
	bool own;	       /* the cache is the source's */
	uint64_t budget;
	uint64_t count;
	struct frame *frame; /* [count + 1]: the last is the end */
	bool checksums;	     /* the frames have some */
};

static uint64_t size_of(const struct frame *frame)
{
	return frame[1].begin - frame->begin;
}

static uint64_t length_of(const struct frame *frame)
{
	return frame[1].from - frame->from;
}

/* ---- decoding ---- */

/* Reads and decodes a frame. */
static bool decode(const struct source *s, const struct frame *f, char *to, struct fault *fault)
{
	size_t size = size_of(f), packed = length_of(f);
	uint8_t *input = malloc(packed + 1);

	if (!input)
		return fault_memory(fault);
	bool fine = bytes_read(s->file, f->from, input, packed, fault);
	size_t length = fine ? ZSTD_findFrameCompressedSize(input, packed) : 0,
	       got = fine ? ZSTD_decompress(to, size, input, packed) : 0;
	/* zstd compared the frame's own checksum, which is usually the same number. */
	bool checked = fine && !ZSTD_isError(got) && packed > 4 && (input[4] & HAS_CHECKSUM) &&
		       bytes_u32(input + packed - 4) == f->checksum;

	free(input);
	if (!fine)
		return false;
	if (!ZSTD_isError(length) && length != packed)
		return fault_data(fault,
			"zstd frame %td: is %zu bytes long, and %zu are there: it has several "
			"frames, but no seek table that lists them; decompress it, and use "
			"`tokctl pack --format zstd`",
			f - s->frame, length, packed);
	if (ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation)
		return fault_memory(fault);
	const char *wrong =
		ZSTD_isError(got) ? ZSTD_getErrorName(got)
		: got != size	  ? "it has another size than the seek table says"
		: s->checksums && !checked && (uint32_t)XXH64(to, size, 0) != f->checksum
			? "it has another checksum than the seek table says"
			: NULL;

	return !wrong ||
	       fault_data(fault, "zstd frame %td is damaged: %s (bytes %" PRIu64 " to %" PRIu64 ")",
		       f - s->frame, wrong, f->from, f[1].from);
}

reread_receiver *reread_told;

/* Drops the file from the page cache, which would return the same again. */
static void forget(const struct bytes *file)
{
	posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* Decodes a frame; once more if it is damaged, because a bit may have flipped on the way. */
static bool decode_twice(
	const struct source *s, const struct frame *f, char *to, struct fault *fault)
{
	if (decode(s, f, to, fault))
		return true;
	if (fault->code != FAULT_DATA)
		return false;
	const struct fault first = *fault;

	forget(s->file);
	if (!decode(s, f, to, fault))
		return false;
	if (reread_told)
		reread_told(s->file->fd, f->from, length_of(f), first.text);
	return true;
}

/* ---- the cache ---- */

struct frames {
	struct frames *cache;  /* itself, or of a share its cache; the rest is the cache's */
	uint64_t decoding;     /* of a share, too: memory for the frames that it is decoding */
	uint64_t decoding_all; /* sum over the cache and its shares */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a frame was decoded, or failed to be */
	uint64_t budget, used;
	TAILQ_HEAD(, slot) ready; /* least recently used first */
};

struct frames *frames_new(uint64_t budget_bytes)
{
	struct frames *cache = calloc(1, sizeof(*cache));

	if (!cache)
		return NULL;
	cache->cache = cache;
	cache->budget = budget_bytes;
	TAILQ_INIT(&cache->ready);
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
		assert(frames->used == 0);
		pthread_mutex_destroy(&frames->lock);
		pthread_cond_destroy(&frames->changed);
	}
	free(frames);
}

uint64_t frames_bytes(struct frames *frames)
{
	struct frames *cache = frames->cache;

	pthread_mutex_lock(&cache->lock);
	uint64_t used = cache->used;

	pthread_mutex_unlock(&cache->lock);
	return used;
}

static void drop(struct frames *cache, struct slot *slot)
{
	assert(cache->used >= slot->bytes);
	cache->used -= slot->bytes;
	if (slot->ready)
		TAILQ_REMOVE(&cache->ready, slot, next);
	slot->frame->slot = NULL;
	free(slot);
}

/* Drops frames until @bytes more are within the budget. */
static void make_room(struct frames *cache, uint64_t bytes)
{
	while (cache->used + bytes > cache->budget && !TAILQ_EMPTY(&cache->ready))
		drop(cache, TAILQ_FIRST(&cache->ready));
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

/*
 * Decodes a frame, for which other threads may wait. False: @fault. Called with the lock; releases
 * it while decoding. @more: memory that only decoding needs.
 */
static bool fill(const struct source *s, struct frame *f, uint64_t more, struct fault *fault)
{
	struct frames *cache = s->frames->cache;
	uint64_t bytes = sizeof(struct slot) + size_of(f);
	struct slot *slot = malloc(bytes);

	if (!slot)
		return fault_memory(fault);
	*slot = (struct slot){.frame = f, .bytes = bytes};
	f->slot = slot;
	count(s->frames, bytes + more, bytes + more);
	pthread_mutex_unlock(&cache->lock);
	bool fine = decode_twice(s, f, slot->data, fault);

	pthread_mutex_lock(&cache->lock);
	count(s->frames, -more, -(bytes + more));
	if (fine)
		TAILQ_INSERT_TAIL(&cache->ready, slot, next);
	slot->ready = fine;
	if (!fine)
		drop(cache, slot);
	pthread_cond_broadcast(&cache->changed);
	return fine;
}

/* Decodes a frame unless it is in the cache. Called with the lock. False: @fault. */
static bool have(const struct source *s, struct frame *f, struct fault *fault)
{
	struct frames *cache = s->frames->cache;
	uint64_t more = length_of(f) + DECODER_BYTES;
	bool fine = true;

	while (fine && (!f->slot || !f->slot->ready)) {
		if (!fault)
			return false;
		/* If another thread fails to decode it, this one tries, too. */
		if (!f->slot && may_decode(s->frames, sizeof(struct slot) + size_of(f) + more))
			fine = fill(s, f, more, fault);
		else
			pthread_cond_wait(&cache->changed, &cache->lock);
	}
	return fine;
}

/*
 * Reads bytes [from, from + n) of a decoded frame; waits for decoding. @fault: NULL: it must not
 * wait, not even for the lock, with which megabytes may be freed; false: the slow way may have it.
 */
static bool frames_read(const struct source *s, struct frame *f, uint64_t from, void *to, size_t n,
	struct fault *fault)
{
	struct frames *cache = s->frames->cache;

	if (!fault && pthread_mutex_trylock(&cache->lock) != 0)
		return false;
	if (fault)
		pthread_mutex_lock(&cache->lock);
	bool fine = have(s, f, fault);

	if (fine) {
		memcpy(to, f->slot->data + from, n);
		TAILQ_REMOVE(&cache->ready, f->slot, next);
		TAILQ_INSERT_TAIL(&cache->ready, f->slot, next);
		make_room(cache, 0);
	}
	pthread_mutex_unlock(&cache->lock);
	return fine;
}

/* ---- finding the frames ---- */

/* Appends the next frame: @length bytes of the file, @size decoded. */
static bool add_frame(struct source *s, uint64_t length, uint64_t size, struct fault *fault)
{
	struct frame *last = &s->frame[s->count];

	if (size > s->budget || length > s->budget + SMALL)
		return fault_data(fault,
			"zstd frame %" PRIu64 " has %" PRIu64
			" bytes; the decode budget is %" PRIu64
			", a quarter of `memory`: compress the file in frames of 256 KiB (`tokctl "
			"pack --format zstd`), or raise `memory`",
			s->count, size > s->budget ? size : length, s->budget);
	last[1].from = last->from + length;
	last[1].begin = last->begin + size;
	s->count++;
	if (size > s->bytes.frame_bytes)
		s->bytes.frame_bytes = size;
	return true;
}

static bool make_frames(struct source *s, uint64_t most, struct fault *fault)
{
	s->frame = calloc(most + 1, sizeof(*s->frame));
	s->bytes.index_bytes = sizeof(*s) + (most + 1) * sizeof(*s->frame);
	return s->frame || fault_memory(fault);
}

/* Reads the table that ends with @footer. Bits 2 to 6 of its descriptor are reserved. */
static bool read_table(struct source *s, const uint8_t *footer, struct fault *fault)
{
	uint64_t frames = bytes_u32(footer), words = footer[4] & 0x80 ? 3 : 2,
		 content = 4 * words * frames + FOOTER_BYTES, size = s->file->size, from = 0,
		 end = content + SKIPPABLE_BYTES <= size ? size - content - SKIPPABLE_BYTES : 0;
	struct bytes_array table = {
		.b = s->file, .at = end + SKIPPABLE_BYTES, .count = words * frames, .width = 4};
	uint64_t length, decoded, checksum = 0;
	uint8_t head[SKIPPABLE_BYTES];
	char none;

	if (!bytes_read(s->file, end, head, sizeof(head), fault))
		return false;
	if (bytes_u32(head) != table_magic || bytes_u32(head + 4) != content ||
		frames > end / SKIPPABLE_BYTES || (footer[4] & 0x7c))
		return fault_data(fault,
			"seek table: number of frames is %" PRIu64
			" and descriptor 0x%02x, but no such table, after that many frames, is at "
			"the end of the file's %" PRIu64 " bytes",
			frames, footer[4], size);
	if (!make_frames(s, frames, fault))
		return false;
	s->checksums = words == 3;
	for (uint64_t i = 0; i < frames; i++) {
		if (!bytes_next(&table, &length, fault) || !bytes_next(&table, &decoded, fault) ||
			(s->checksums && !bytes_next(&table, &checksum, fault)))
			return false;
		if (length > end - from)
			break;
		s->frame[i].checksum = (uint32_t)checksum;
		if (!add_frame(s, length, decoded, fault))
			return false;
		/* It is never read, so it must be empty: otherwise tokens would be lost. */
		if (decoded == 0 && !decode(s, &s->frame[i], &none, fault))
			return false;
		from += length;
	}
	return (from == end && s->count == frames) ||
	       fault_data(fault,
		       "seek table: its frames do not end where it begins, at byte %" PRIu64
		       ": frame %" PRIu64 " begins at byte %" PRIu64,
		       end, s->count, from);
}

/* Without a table, the file must be one frame. */
static bool read_header(struct source *s, struct fault *fault)
{
	uint8_t head[HEADER_MOST];
	uint64_t n = s->file->size < sizeof(head) ? s->file->size : sizeof(head);

	if (!bytes_read(s->file, 0, head, n, fault) || !make_frames(s, 1, fault))
		return false;
	unsigned long long size = ZSTD_getFrameContentSize(head, n);

	if (n < 4 || bytes_u32(head) != frame_magic || size == ZSTD_CONTENTSIZE_ERROR)
		return fault_data(fault,
			"no zstd frame begins at byte 0 of %" PRIu64 " (magic %08" PRIx32
			"; must be %08" PRIx32
			"): it is damaged or truncated, or has no seek table",
			s->file->size, n >= 4 ? bytes_u32(head) : 0, frame_magic);
	if (size == ZSTD_CONTENTSIZE_UNKNOWN)
		return fault_data(fault,
			"has no seek table, and its frame does not state its size, as when zstd "
			"reads a pipe; decompress it, and use `tokctl pack --format zstd`");
	return add_frame(s, s->file->size, size, fault);
}

/* ---- the source ---- */

/* The frame that contains byte @at of the contents; never an empty one. */
static uint64_t frame_at(const struct source *s, uint64_t at)
{
	uint64_t lo = 0, hi = s->count;

	while (hi - lo > 1) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (s->frame[mid].begin <= at)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

bool zstd_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	const struct source *s = (const struct source *)b;
	char *next = to;

	for (uint64_t i = frame_at(s, at); n > 0; i++) {
		struct frame *f = &s->frame[i];
		uint64_t left = f[1].begin - at, from = at - f->begin;
		size_t some = n < left ? n : (size_t)left;

		if (some > 0 && !frames_read(s, f, from, next, some, fault))
			return false;
		next += some;
		at += some;
		n -= some;
	}
	return true;
}

void zstd_close(struct bytes *b)
{
	struct source *s = (struct source *)b;

	if (s->frames) {
		pthread_mutex_lock(&s->frames->cache->lock);
		for (uint64_t i = 0; i < s->count; i++)
			if (s->frame[i].slot)
				drop(s->frames->cache, s->frame[i].slot);
		pthread_mutex_unlock(&s->frames->cache->lock);
	}
	if (s->own)
		frames_free(s->frames);
	bytes_close(s->file);
	free(s->frame);
	free(s);
}

bool zstd_head(const struct bytes *b, void *to, size_t n)
{
	const struct source *s = (const struct source *)b;
	const struct frame *f = &s->frame[frame_at(s, 0)];
	uint64_t packed = length_of(f) < n + HEAD_MORE ? length_of(f) : n + HEAD_MORE;
	struct fault fault;

	if (size_of(f) < HEAD_FROM || n > size_of(f))
		return false;
	void *input = bytes_load(s->file, f->from, packed, &fault);
	ZSTD_DCtx *zstd = ZSTD_createDCtx();
	ZSTD_inBuffer in = {input, packed, 0};
	ZSTD_outBuffer out = {to, n, 0};
	bool fine = input && zstd && !ZSTD_isError(ZSTD_decompressStream(zstd, &out, &in)) &&
		    out.pos == n;

	ZSTD_freeDCtx(zstd);
	free(input);
	return fine;
}

/* Decodes all of a small file, so that its damage is found now and not later. */
static bool decode_small(const struct source *s, struct fault *fault)
{
	char byte;

	if (s->file->size > SMALL || s->bytes.size > SMALL_CONTENT)
		return true;
	for (uint64_t i = 0; i < s->count; i++)
		if (size_of(&s->frame[i]) > 0 && !frames_read(s, &s->frame[i], 0, &byte, 1, fault))
			return false;
	return true;
}

bool zstd_recognise(const struct bytes *file)
{
	bool named = bytes_ending(file->path, ".zst") || bytes_ending(file->path, ".zstd");

	/* A pointer of Git LFS has the name of what it points to. */
	return bytes_u32(file->head) == frame_magic || (named && !foreign_kind(file));
}

struct bytes *zstd_open(
	struct bytes *file, struct frames *frames, uint64_t budget_bytes, struct fault *fault)
{
	struct source *s = calloc(1, sizeof(*s));
	uint8_t footer[FOOTER_BYTES] = {0};
	uint64_t n = file->size < FOOTER_BYTES ? file->size : FOOTER_BYTES;

	if (!s) {
		fault_memory(fault);
		bytes_close(file);
		return NULL;
	}
	s->file = file;
	s->budget = budget_bytes ? budget_bytes : BUDGET;
	s->bytes = (struct bytes){.path = file->path,
		.stored = file->stored,
		.fd = file->fd,
		.id = file->id,
		.objects = file->objects,
		.object = file->object};
	if (!bytes_read(file, file->size - n, footer + FOOTER_BYTES - n, n, fault) ||
		!(n == FOOTER_BYTES && bytes_u32(footer + 5) == seekable_magic
				? read_table(s, footer, fault)
				: read_header(s, fault))) {
		forget(file); /* opened again, it is read from the disk */
		goto fail;
	}
	s->bytes.size = s->frame[s->count].begin;
	s->own = !frames;
	s->frames = frames ? frames : frames_new(s->bytes.frame_bytes + sizeof(struct slot));
	if (!s->frames)
		fault_memory(fault);
	else if (decode_small(s, fault))
		return &s->bytes;
fail:
	zstd_close(&s->bytes);
	return NULL;
}
