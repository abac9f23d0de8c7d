/*
 * Compressed files. Where frames lie is read from the seek table at the end (zstd's
 * contrib/seekable_format), or without one by walking from block to block. A read decodes the
 * frames that it touches, whole, into a cache that all sources may share.
 *
 * Nothing a file says of itself is believed: the table must make up the file, a frame's blocks must
 * be able to hold what it claims before memory is taken for it, and what it decodes to must have
 * the length and the checksum that are on record.
 */
#include "daemon/shard/bytes_zstd.h"

#include "daemon/shard/reread.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
	BLOCK_MOST = 128 * 1024, /* what a block decodes to at most, by zstd's format */
	BLOCK_LEAST = 4,	 /* and what such a block takes at least */
	HEADER_MOST = 18,
	HEAD_FROM = 1 << 20, /* frames from here on are not decoded whole to recognise or describe a
				file */
	PEEK_BYTES = 4096,
	SAMPLED = 16,	 /* headers that are held against the seek table when a file is opened */
	SMALL = 1 << 16, /* files up to here are decoded whole when they are described, */
	SMALL_CONTENT =
		1 << 20, /* if that makes no more than this: no more than a frame to recognise by */
	EMPTY_MOST = 1 << 16, /* blocks in a row that hold nothing: a file's zeros look like them */
	KEPT_INPUT = 1 << 20, /* larger buffers are not kept for the next frame */
	OWN_ROOM = 2 << 20,   /* in a cache of one frame, for the decoder */
	BUDGET = 256 << 20,   /* where none is given */
	FOOTER_BYTES = 9,
	SKIPPABLE_BYTES = 8, /* magic and length */
};

static const uint32_t frame_magic = 0xfd2fb528, skippable_magic = 0x184d2a50,
		      table_magic = 0x184d2a5e, seekable_magic = 0x8f92eab1;

/* ---- the shape of a frame ---- */

struct header {
	uint64_t bytes;	  /* of itself */
	bool skippable;	  /* then bytes is all of the frame */
	bool has_content; /* it says what it decodes to: */
	uint64_t content;
	uint64_t block_most;
	uint64_t least; /* what its blocks decode to at least, once they were walked through */
	bool has_checksum;
};

/* @n bytes are there, HEADER_MOST if the file goes on so far. */
static bool parse_header(const uint8_t *p, size_t n, struct header *h)
{
	static const uint8_t dictionary_bytes[] = {0, 1, 2, 4}, content_bytes[] = {0, 2, 4, 8};

	*h = (struct header){0};
	if (n >= SKIPPABLE_BYTES && (bytes_u32(p) & ~15u) == skippable_magic) {
		h->skippable = true;
		h->bytes = SKIPPABLE_BYTES + (uint64_t)bytes_u32(p + 4);
		return true;
	}
	if (n < 5 || bytes_u32(p) != frame_magic || p[4] & 8)
		return false;
	bool single = p[4] & 32;
	unsigned at = 5u + !single + dictionary_bytes[p[4] & 3];
	unsigned content = p[4] >> 6 ? content_bytes[p[4] >> 6] : single;

	h->bytes = at + content;
	if (n < h->bytes)
		return false;
	uint64_t window = 0;

	if (!single) {
		uint64_t base = (uint64_t)1 << (10 + (p[5] >> 3));

		window = base + base / 8 * (p[5] & 7);
	}
	h->has_content = content > 0;
	h->content = content == 1   ? p[at]
		     : content == 2 ? bytes_u16(p + at) + 256u
		     : content == 4 ? bytes_u32(p + at)
		     : content == 8 ? bytes_u64(p + at)
				    : 0;
	if (single)
		window = h->content;
	h->block_most = window < BLOCK_MOST ? window : BLOCK_MOST;
	h->has_checksum = p[4] & 4;
	return true;
}

/* What is being walked through, a little of it at hand. */
struct walk {
	const struct bytes *file;
	uint64_t at, end;
	uint64_t peek_at;
	size_t peeked;
	uint8_t peek[PEEK_BYTES];
	int error;
	char *why;
	size_t why_bytes;
};

/* The next @n bytes, or fewer at the end; NULL if they cannot be read. */
static const uint8_t *peek(struct walk *w, size_t *n)
{
	if (*n > w->end - w->at)
		*n = (size_t)(w->end - w->at);
	if (w->at < w->peek_at || w->at + *n > w->peek_at + w->peeked) {
		w->peek_at = w->at;
		w->peeked = w->end - w->at < sizeof(w->peek) ? (size_t)(w->end - w->at)
							     : sizeof(w->peek);
		if (!bytes_read(
			    w->file, w->at, w->peek, w->peeked, &w->error, w->why, w->why_bytes)) {
			w->peeked = 0;
			return NULL;
		}
	}
	return w->peek + (w->at - w->peek_at);
}

static bool damaged(struct walk *w, uint64_t frame, const char *what)
{
	w->error = EBADMSG;
	return bytes_why(w->why, w->why_bytes,
		"zstd frame %" PRIu64 ": %s at byte %" PRIu64 " of %" PRIu64, frame, what, w->at,
		w->end);
}

/* From block to block to the end of a frame. @most: what they can decode to. */
static bool walk_blocks(struct walk *w, uint64_t frame, struct header *h, uint64_t *most)
{
	uint32_t empty = 0;
	bool last = false;

	*most = 0;
	while (!last) {
		size_t n = 3;
		const uint8_t *p = peek(w, &n);

		if (!p)
			return false;
		if (n < 3)
			return damaged(w, frame, "it is cut short");
		uint32_t block = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
		uint32_t type = block >> 1 & 3, size = block >> 3;

		last = block & 1;
		if (type == 3 || size > h->block_most)
			return damaged(w, frame,
				type == 3 ? "a block of reserved type"
					  : "a block that is too large");
		*most += type == 2 ? h->block_most : size;
		h->least += type == 2 ? 0 : size;
		empty = size > 0 ? 0 : empty + 1;
		if (empty > EMPTY_MOST)
			return damaged(w, frame, "too many blocks in a row that hold nothing");
		n = 3 + (type == 1 ? 1 : size) + (last && h->has_checksum ? 4 : 0);
		if (n > w->end - w->at)
			return damaged(w, frame, "it is cut short: a block goes on after the end");
		w->at += n;
	}
	return true;
}

/* What stands at byte @at of @end, where a frame should begin. */
static bool no_frame(const uint8_t *p, size_t n, uint64_t frame, uint64_t at, uint64_t end,
	char *why, size_t why_bytes)
{
	if (n >= 5 && bytes_u32(p) == frame_magic && p[4] & 8)
		return bytes_why(why, why_bytes,
			"zstd frame %" PRIu64 ": its descriptor at byte %" PRIu64 " of %" PRIu64
			" is 0x%02x; bit 3 must be 0",
			frame, at + 4, end, p[4]);
	return bytes_why(why, why_bytes,
		"zstd frame %" PRIu64 ": no zstd frame begins at byte %" PRIu64 " of %" PRIu64
		" (magic %08" PRIx32 "; must be %08" PRIx32 "): it is damaged, or cut short",
		frame, at, end, n >= 4 ? bytes_u32(p) : 0, frame_magic);
}

/* A frame whose header is @n bytes at @p; without the dictionary it would only look damaged. */
static bool needs_dictionary(
	const uint8_t *p, size_t n, uint64_t frame, char *why, size_t why_bytes)
{
	unsigned dictionary = ZSTD_getDictID_fromFrame(p, n);

	if (dictionary == 0)
		return false;
	bytes_why(why, why_bytes,
		"zstd frame %" PRIu64
		": was compressed with dictionary %u; must be without one: compress it "
		"again without",
		frame, dictionary);
	return true;
}

/* A whole frame: its header, and what its blocks can decode to. */
static bool walk_frame(struct walk *w, uint64_t frame, struct header *h, uint64_t *most)
{
	size_t n = HEADER_MOST;
	const uint8_t *p = peek(w, &n);

	if (!p)
		return false;
	if (!parse_header(p, n, h)) {
		w->error = EBADMSG;
		return no_frame(p, n, frame, w->at, w->end, w->why, w->why_bytes);
	}
	if (needs_dictionary(p, n, frame, w->why, w->why_bytes)) {
		w->error = EBADMSG;
		return false;
	}
	if (h->bytes > w->end - w->at)
		return damaged(w, frame, "it is cut short: it goes on after the end");
	w->at += h->bytes;
	*most = 0;
	if (h->skippable)
		return true;
	if (!walk_blocks(w, frame, h, most))
		return false;
	if (h->has_content && h->content > *most) {
		w->error = EBADMSG;
		return bytes_why(w->why, w->why_bytes,
			"zstd frame %" PRIu64 ": content size is %" PRIu64
			"; its blocks hold at most %" PRIu64,
			frame, h->content, *most);
	}
	return true;
}

/* A piece of memory as a file, to walk through it. */
struct memory {
	struct bytes bytes;
	const uint8_t *data;
};

static bool memory_read(const struct bytes *b, uint64_t at, void *to, size_t n, int *error,
	char *why, size_t why_bytes)
{
	(void)error, (void)why, (void)why_bytes;
	memcpy(to, ((const struct memory *)b)->data + at, n);
	return true;
}

static const struct bytes_ops memory_ops = {.read = memory_read};

/* ---- sources ---- */

struct frame {
	uint64_t from;	/* in the file */
	uint64_t begin; /* of what is decoded */
	uint32_t length;
	uint32_t checksum;
};

/* What tells a file from all others, and from itself when it was written again. */
struct identity {
	uint64_t device, inode, mtime_ns, bytes, ctime_ns;
};

struct source {
	struct bytes bytes;
	struct bytes *file;
	struct frames *frames; /* the cache */
	struct frames *share;  /* of it, or itself */
	struct frames *own;    /* NULL: it is others' */
	struct identity identity;
	bool has_checksums;
	uint64_t budget;
	uint64_t count, room;
	struct frame *frame; /* [count + 1]: the last is where all ends */
};

/* ---- decoding ---- */

struct decoder {
	struct decoder *next;
	ZSTD_DCtx *zstd;
	uint8_t *input;
	size_t room;
	uint64_t counted; /* what the cache thinks that it holds */
};

static void decoder_free(struct decoder *d)
{
	if (d) {
		ZSTD_freeDCtx(d->zstd);
		free(d->input);
	}
	free(d);
}

static struct decoder *decoder_new(void)
{
	struct decoder *d = calloc(1, sizeof(*d));

	if (d)
		d->zstd = ZSTD_createDCtx();
	if (d && !d->zstd) {
		free(d);
		d = NULL;
	}
	return d;
}

static bool decoder_room(struct decoder *d, size_t bytes)
{
	if (d->room >= bytes)
		return true;
	free(d->input);
	d->input = malloc(bytes);
	d->room = d->input ? bytes : 0;
	return d->input;
}

static bool no_memory(int *error, char *why, size_t why_bytes)
{
	*error = ENOMEM;
	return bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
}

/* A frame's bytes as they lie in the file, and proof that they are one frame that can be so large.
 */
static bool load_frame(struct decoder *d, const struct source *s, uint64_t frame, struct header *h,
	uint64_t *most, int *error, char *why, size_t why_bytes)
{
	const struct frame *f = &s->frame[frame];

	if (!decoder_room(d, f->length))
		return no_memory(error, why, why_bytes);
	if (!bytes_read(s->file, f->from, d->input, f->length, error, why, why_bytes))
		return false;
	const struct memory memory = {{.ops = &memory_ops, .size = f->length}, d->input};
	struct walk w = {
		.file = &memory.bytes, .end = f->length, .why = why, .why_bytes = why_bytes};

	*error = EBADMSG;
	if (!walk_frame(&w, frame, h, most))
		return false;
	return (w.at == w.end && !h->skippable) ||
	       bytes_why(why, why_bytes,
		       "zstd frame %" PRIu64 ": is %" PRIu64
		       " bytes long%s; the seek table says %" PRIu32,
		       frame, w.at, h->skippable ? " and holds nothing" : "", f->length);
}

/* Both checksums are the low half of the content's XXH64: where they agree, the decoder looks at
 * ours. */
static bool is_checked(const struct decoder *d, const struct frame *f, const struct header *h)
{
	return h->has_checksum && f->length >= 4 &&
	       bytes_u32(d->input + f->length - 4) == f->checksum;
}

/* Decodes frame @frame to @size bytes, into *@data or, where that is NULL, memory that it
 * allocates. */
static bool decode(struct decoder *d, const struct source *s, uint64_t frame, uint64_t size,
	char **data, int *error, char *why, size_t why_bytes)
{
	const struct frame *f = &s->frame[frame];
	struct header h;
	uint64_t most;

	if (!load_frame(d, s, frame, &h, &most, error, why, why_bytes))
		return false;
	if (size > most || (h.has_content && h.content != size))
		return bytes_why(why, why_bytes,
			"zstd frame %" PRIu64 ": the seek table says that it decodes to %" PRIu64
			" bytes; it %s %" PRIu64,
			frame, size, h.has_content ? "says" : "holds at most",
			h.has_content ? h.content : most);
	if (!*data && !(*data = malloc(size)))
		return no_memory(error, why, why_bytes);
	size_t got = ZSTD_decompressDCtx(d->zstd, *data, size, d->input, f->length);

	if (ZSTD_isError(got))
		return bytes_why(why, why_bytes, "zstd frame %" PRIu64 " is damaged: %s", frame,
			ZSTD_getErrorName(got));
	if (got != size)
		return bytes_why(why, why_bytes,
			"zstd frame %" PRIu64 " decodes to %zu bytes; the seek table says %" PRIu64,
			frame, got, size);
	return !s->has_checksums || is_checked(d, f, &h) ||
	       (uint32_t)XXH64(*data, size, 0) == f->checksum ||
	       bytes_why(why, why_bytes,
		       "zstd frame %" PRIu64 " is damaged: its checksum is %08" PRIx32
		       "; the seek table says %08" PRIx32,
		       frame, (uint32_t)XXH64(*data, size, 0), f->checksum);
}

/* ---- the cache ---- */

enum state { DECODING, READY, FAILED };

struct slot {
	struct identity identity;
	uint64_t frame, size;
	struct slot *next;	    /* of the same bucket */
	struct slot *older, *newer; /* of those that nobody uses */
	unsigned users;
	enum state state;
	pthread_cond_t decoded;
	int error;
	char *data;
	char why[224];
};

struct frames {
	struct frames *
		cache; /* itself; or, of a share, which has only this and the next two, the cache */
	uint64_t filling; /* a share's, of what is used: frames that it decodes now, with their
			     decoders */
	bool slow;
	uint64_t stuck; /* filling of the slow shares */
	pthread_mutex_t lock;
	pthread_cond_t let_go;
	uint64_t budget, used; /* used: slots with their data, and decoders */
	struct slot **bucket;
	uint64_t buckets, slots; /* a power of two */
	struct slot ends;	 /* .newer: the one unused longest; .older: the newest */
	struct decoder *idle;
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

void frames_slow(struct frames *share, bool slow)
{
	struct frames *frames = share->cache;

	pthread_mutex_lock(&frames->lock);
	if (share->slow != slow)
		frames->stuck += slow ? share->filling : -share->filling;
	share->slow = slow;
	pthread_cond_broadcast(&frames->let_go);
	pthread_mutex_unlock(&frames->lock);
}

static uint64_t hash(const struct identity *identity, uint64_t frame)
{
	uint64_t h = identity->inode * 0x9e3779b97f4a7c15 ^ identity->mtime_ns;

	h = (h ^ identity->device ^ identity->bytes << 20) * 0xbf58476d1ce4e5b9 + frame;
	h = (h ^ h >> 29) * 0x94d049bb133111eb;
	return h ^ h >> 32;
}

static struct slot **place(
	struct frames *frames, const struct identity *identity, uint64_t frame, uint64_t size)
{
	struct slot **at = &frames->bucket[hash(identity, frame) & (frames->buckets - 1)];

	while (*at && ((*at)->frame != frame || (*at)->size != size ||
			      memcmp(&(*at)->identity, identity, sizeof(*identity)) != 0))
		at = &(*at)->next;
	return at;
}

/* Twice as many buckets, if there is memory for them. */
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
	}
	free(slot);
}

/* Takes a slot that is not among the unused out of the cache. */
static void take_out(struct frames *frames, struct slot *slot)
{
	struct slot **at = place(frames, &slot->identity, slot->frame, slot->size);

	if (*at == slot)
		*at = slot->next;
	frames->used -= cost_of(slot->size);
	frames->slots--;
}

/* Takes out the one unused longest; NULL if all are in use. */
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

static struct decoder *take_idle(struct frames *frames)
{
	struct decoder *d = frames->idle;

	if (d)
		frames->idle = d->next;
	return d;
}

static bool drop_idle(struct frames *frames)
{
	struct decoder *d = take_idle(frames);

	if (d)
		frames->used -= d->counted;
	decoder_free(d);
	return d;
}

/* Gives up what nobody uses until the budget holds. */
static void shrink(struct frames *frames)
{
	while (frames->used - frames->stuck > frames->budget) {
		struct slot *oldest = take_oldest(frames);

		slot_free(oldest);
		if (!oldest && !drop_idle(frames))
			return;
	}
}

static void let_go(struct frames *frames, struct slot *slot)
{
	if (--slot->users > 0)
		return;
	if (slot->state == FAILED) {
		take_out(frames, slot);
		slot_free(slot);
	} else {
		slot->older = frames->ends.older;
		slot->newer = &frames->ends;
		slot->older->newer = frames->ends.older = slot;
	}
	shrink(frames);
	pthread_cond_broadcast(&frames->let_go);
}

static void count(struct frames *frames, struct decoder *d)
{
	uint64_t holds = sizeof(*d) + ZSTD_sizeof_DCtx(d->zstd) + d->room;

	frames->used += holds - d->counted;
	d->counted = holds;
}

/* One that can take @bytes in. NULL: out of memory. */
static struct decoder *take_decoder(struct frames *frames, size_t bytes)
{
	struct decoder *d = take_idle(frames);

	if (!d)
		d = decoder_new();
	if (d && !decoder_room(d, bytes)) {
		frames->used -= d->counted;
		decoder_free(d);
		return NULL;
	}
	if (d)
		count(frames, d);
	return d;
}

static void put_decoder(struct frames *frames, struct decoder *d)
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
 * Makes room for @size bytes. False: all that is there is in use, and somebody may have let go
 * since: look again. A cache without a budget never waits. *@spare: a slot that was given up for
 * it; frames are mostly of one size, and memory that was written to before costs less than new one.
 */
static bool make_room(struct frames *frames, uint64_t size, struct slot **spare)
{
	while (frames->used - frames->stuck + cost_of(size) > frames->budget) {
		struct slot *oldest = take_oldest(frames);

		if (oldest) {
			slot_free(*spare);
			*spare = oldest;
			continue;
		}
		if (drop_idle(frames))
			continue;
		return frames->slots == 0 || frames->budget == 0;
	}
	return true;
}

/*
 * May the share decode @bytes more now? One may have three quarters of the budget, so that storage
 * that hangs in the middle of its frames leaves room to others; slow ones have one quarter
 * together, and what they hold beyond that is no longer counted. A single frame is always let in.
 */
static bool may_fill(const struct frames *share, uint64_t bytes)
{
	const struct frames *frames = share->cache;
	uint64_t quarter = frames->budget / 4;

	if (share == frames || share->filling == 0)
		return true;
	if (share->slow)
		return frames->stuck + bytes <= quarter;
	return share->filling + bytes <= frames->budget - quarter;
}

static void count_filling(struct frames *share, int64_t bytes)
{
	share->filling += (uint64_t)bytes;
	if (share->slow)
		share->cache->stuck += (uint64_t)bytes;
}

/* With the spare's memory, if that is of the right size. */
static struct slot *slot_new(
	const struct source *s, uint64_t frame, uint64_t size, struct slot *spare)
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
	slot_free(spare);
	return slot;
}

static void put_in(struct frames *frames, struct slot *slot)
{
	if (frames->slots >= frames->buckets)
		grow(frames);
	*place(frames, &slot->identity, slot->frame, slot->size) = slot;
	frames->used += cost_of(slot->size);
	frames->slots++;
	use(slot);
}

/* Once more, from the disk: a bit may have flipped on its way. False: it has not, or not only; the
 * slot says so. */
static bool decode_again(struct decoder *d, const struct source *s, struct slot *slot)
{
	const struct frame *f = &s->frame[slot->frame];
	char first[sizeof(slot->why)];

	memcpy(first, slot->why, sizeof(first));
	reread_forget(s->file->fd, f->from, f->length);
	if (decode(d, s, slot->frame, slot->size, &slot->data, &slot->error, slot->why,
		    sizeof(slot->why))) {
		reread_was_good(s->file->fd, f->from, f->length, first);
		return true;
	}
	size_t n = strlen(slot->why);

	bytes_why(slot->why + n, sizeof(slot->why) - n,
		" (bytes %" PRIu64 " to %" PRIu64 ", read twice)", f->from, f->from + f->length);
	return false;
}

/* Decodes into a slot, which others may wait for. With the lock, which it gives up meanwhile. */
static void fill(
	struct frames *frames, const struct source *s, struct slot *slot, struct decoder *d)
{
	int64_t filling = (int64_t)(cost_of(slot->size) + d->counted);

	count_filling(s->share, filling);
	pthread_mutex_unlock(&frames->lock);
	bool fine = decode(d, s, slot->frame, slot->size, &slot->data, &slot->error, slot->why,
		sizeof(slot->why));

	if (!fine && slot->error == EBADMSG)
		fine = decode_again(d, s, slot);
	pthread_mutex_lock(&frames->lock);
	count_filling(s->share, -filling);
	put_decoder(frames, d);
	slot->state = fine ? READY : FAILED;
	pthread_cond_broadcast(&slot->decoded);
}

/* With the lock: the frame's slot, found or made and filled. NULL: out of memory. */
static struct slot *slot_of(
	struct frames *frames, const struct source *s, uint64_t frame, uint64_t size)
{
	for (;;) {
		struct slot *slot = *place(frames, &s->identity, frame, size), *spare = NULL;

		if (slot) {
			use(slot);
			while (slot->state == DECODING)
				pthread_cond_wait(&slot->decoded, &frames->lock);
			return slot;
		}
		struct decoder *d = take_decoder(frames, s->frame[frame].length);

		if (!d)
			return NULL;
		if (!may_fill(s->share, cost_of(size) + d->counted) ||
			!make_room(frames, size, &spare)) {
			slot_free(spare);
			put_decoder(frames, d);
			shrink(frames);
			pthread_cond_wait(&frames->let_go, &frames->lock);
			continue;
		}
		slot = slot_new(s, frame, size, spare);
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

	pthread_mutex_unlock(&frames->lock);
	return used;
}

/* ---- reading ---- */

/* The frame that holds byte @at; empty ones never do. */
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

/* Bytes [from, from + n) of a frame. */
static bool read_frame(const struct source *s, uint64_t frame, uint64_t from, void *to, size_t n,
	int *error, char *why, size_t why_bytes)
{
	struct frames *frames = s->frames;
	uint64_t size = s->frame[frame + 1].begin - s->frame[frame].begin;

	pthread_mutex_lock(&frames->lock);
	struct slot *slot = slot_of(frames, s, frame, size);

	if (!slot) {
		pthread_mutex_unlock(&frames->lock);
		return no_memory(error, why, why_bytes);
	}
	bool fine = slot->state == READY;

	if (fine) {
		/* In use, it stays as it is. */
		pthread_mutex_unlock(&frames->lock);
		memcpy(to, slot->data + from, n);
		pthread_mutex_lock(&frames->lock);
	} else {
		*error = slot->error;
		bytes_why(why, why_bytes, "%s", slot->why);
	}
	let_go(frames, slot);
	pthread_mutex_unlock(&frames->lock);
	return fine;
}

/* Bytes of a frame that is decoded already. */
static bool try_frame(const struct source *s, uint64_t frame, uint64_t from, void *to, size_t n)
{
	struct frames *frames = s->frames;
	uint64_t size = s->frame[frame + 1].begin - s->frame[frame].begin;

	pthread_mutex_lock(&frames->lock);
	struct slot *slot = *place(frames, &s->identity, frame, size);
	bool ready = slot && slot->state == READY;

	if (ready)
		use(slot);
	pthread_mutex_unlock(&frames->lock);
	if (!ready)
		return false;
	memcpy(to, slot->data + from, n);
	pthread_mutex_lock(&frames->lock);
	let_go(frames, slot);
	pthread_mutex_unlock(&frames->lock);
	return true;
}

static bool source_try(const struct bytes *b, uint64_t at, void *to, size_t n)
{
	const struct source *s = (const struct source *)b;
	char *out = to;

	for (uint64_t i = frame_at(s, at); n > 0; i++) {
		uint64_t left = s->frame[i + 1].begin - at;
		size_t some = n < left ? n : (size_t)left;

		if (some > 0 && !try_frame(s, i, at - s->frame[i].begin, out, some))
			return false;
		out += some;
		at += some;
		n -= some;
	}
	return true;
}

static bool source_read(const struct bytes *b, uint64_t at, void *to, size_t n, int *error,
	char *why, size_t why_bytes)
{
	const struct source *s = (const struct source *)b;
	char *out = to;

	for (uint64_t i = frame_at(s, at); n > 0; i++) {
		uint64_t left = s->frame[i + 1].begin - at;
		size_t some = n < left ? n : (size_t)left;

		if (some > 0 &&
			!read_frame(s, i, at - s->frame[i].begin, out, some, error, why, why_bytes))
			return false;
		out += some;
		at += some;
		n -= some;
	}
	return true;
}

static void source_close(struct bytes *b)
{
	struct source *s = (struct source *)b;

	frames_free(s->own);
	bytes_close(s->file);
	free(s->frame);
	free(s);
}

/* Of the page cache, and of decoded frames those that nobody uses now. */
static void source_forget(const struct bytes *b)
{
	const struct source *s = (const struct source *)b;

	pthread_mutex_lock(&s->frames->lock);
	for (uint64_t i = 0; i < s->count; i++) {
		uint64_t size = s->frame[i + 1].begin - s->frame[i].begin;
		struct slot *slot = *place(s->frames, &s->identity, i, size);

		if (!slot || slot->users > 0)
			continue;
		use(slot);
		take_out(s->frames, slot);
		slot_free(slot);
	}
	pthread_mutex_unlock(&s->frames->lock);
	bytes_forget(s->file);
}

/* Only the first blocks of a large frame: nothing of it is kept, and its checksum is not looked at.
 */
static bool source_head(const struct bytes *b, void *to, size_t n)
{
	const struct source *s = (const struct source *)b;
	uint64_t first = frame_at(s, 0), size = s->frame[first + 1].begin;
	const struct frame *f = &s->frame[first];
	ZSTD_outBuffer out = {to, n, 0};
	uint8_t input[PEEK_BYTES];
	char why[256];
	int error;

	if (size < HEAD_FROM || n > size)
		return false;
	ZSTD_DCtx *zstd = ZSTD_createDCtx();
	bool fine = zstd;

	for (uint64_t at = 0; fine && at < f->length && out.pos < n;) {
		ZSTD_inBuffer in = {
			input, f->length - at < sizeof(input) ? f->length - at : sizeof(input), 0};

		fine = bytes_read(s->file, f->from + at, input, in.size, &error, why, sizeof(why));
		while (fine && in.pos < in.size && out.pos < n) {
			size_t left = ZSTD_decompressStream(zstd, &out, &in);

			fine = !ZSTD_isError(left) && (left > 0 || out.pos == n);
		}
		at += in.size;
	}
	ZSTD_freeDCtx(zstd);
	return fine && out.pos == n;
}

/* A small file is decoded whole, but for large frames: there is nothing in it then that is found
 * out later.
 */
static bool source_check(const struct bytes *b, char *why, size_t why_bytes)
{
	const struct source *s = (const struct source *)b;
	char byte;
	int error;

	if (s->file->size > SMALL || b->size > SMALL_CONTENT)
		return true;
	for (uint64_t i = 0; i < s->count; i++)
		if (s->frame[i + 1].begin > s->frame[i].begin &&
			s->frame[i + 1].begin - s->frame[i].begin < HEAD_FROM &&
			!read_frame(s, i, 0, &byte, 1, &error, why, why_bytes))
			return false;
	return true;
}

static const struct bytes_ops source_ops = {
	source_read, source_close, source_head, source_try, source_check, source_forget};

/* ---- where frames lie ---- */

static bool refuse_large(
	const struct source *s, uint64_t frame, uint64_t size, char *why, size_t why_bytes)
{
	return bytes_why(why, why_bytes,
		"zstd frame %" PRIu64 " decodes to %s%" PRIu64
		" bytes; the decode budget is %" PRIu64
		": compress the file in frames of 256 KiB (`tokctl pack --format zstd`), or raise "
		"`memory:`, "
		"of "
		"which it is a quarter",
		frame, size == UINT64_MAX ? "more than " : "",
		size == UINT64_MAX ? s->budget : size, s->budget);
}

/* Notes the next frame: [from, from + length) of the file, @size bytes decoded. */
static bool add_frame(struct source *s, uint64_t from, uint64_t length, uint64_t size,
	uint32_t checksum, char *why, size_t why_bytes)
{
	struct frame *last = &s->frame[s->count];

	if (size > length / BLOCK_LEAST * BLOCK_MOST)
		return bytes_why(why, why_bytes,
			"zstd frame %" PRIu64 ": decompressed size is %" PRIu64 "; its %" PRIu64
			" compressed bytes hold at most %" PRIu64,
			s->count, size, length, length / BLOCK_LEAST * BLOCK_MOST);
	if (size > s->budget)
		return refuse_large(s, s->count, size, why, why_bytes);
	if (size > 0 && (length > UINT32_MAX || length > s->budget + BLOCK_MOST))
		return bytes_why(why, why_bytes,
			"zstd frame %" PRIu64 ": compressed size is %" PRIu64
			"; the decode budget is %" PRIu64,
			s->count, length, s->budget);
	last->from = from;
	last->length = (uint32_t)length;
	last->checksum = checksum;
	last[1].begin = last->begin + size;
	s->count++;
	if (size > s->bytes.frame_bytes)
		s->bytes.frame_bytes = size;
	return true;
}

static bool make_frames(struct source *s, uint64_t room, char *why, size_t why_bytes)
{
	struct frame *frame = realloc(s->frame, (room + 1) * sizeof(*frame));

	if (!frame)
		return bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
	if (!s->frame)
		frame[0].begin = 0;
	s->frame = frame;
	s->room = room;
	return true;
}

/* The seek table's frame and what is in it. */
struct table {
	uint64_t at, count;
	uint32_t entry_bytes;
};

static bool read_footer(const struct source *s, struct table *t, char *why, size_t why_bytes)
{
	uint8_t footer[FOOTER_BYTES], head[SKIPPABLE_BYTES];
	uint64_t size = s->file->size;
	int error;

	if (size < SKIPPABLE_BYTES + FOOTER_BYTES)
		return bytes_why(why, why_bytes,
			"seek table: the file has %" PRIu64 " bytes; a table alone has %d", size,
			SKIPPABLE_BYTES + FOOTER_BYTES);
	if (!bytes_read(
		    s->file, size - sizeof(footer), footer, sizeof(footer), &error, why, why_bytes))
		return false;
	if (footer[4] & 0x7c)
		return bytes_why(why, why_bytes,
			"seek table: descriptor is 0x%02x; its bits 2 to 6 must be 0", footer[4]);
	t->count = bytes_u32(footer);
	t->entry_bytes = footer[4] & 0x80 ? 12 : 8;
	uint64_t content = t->count * t->entry_bytes + FOOTER_BYTES;

	if (content + SKIPPABLE_BYTES > size)
		return bytes_why(why, why_bytes,
			"seek table: number of frames is %" PRIu64 ", a table of %" PRIu64
			" bytes; the file has %" PRIu64,
			t->count, content + SKIPPABLE_BYTES, size);
	t->at = size - content - SKIPPABLE_BYTES;
	if (!bytes_read(s->file, t->at, head, sizeof(head), &error, why, why_bytes))
		return false;
	if (bytes_u32(head) != table_magic || bytes_u32(head + 4) != content)
		return bytes_why(why, why_bytes,
			"seek table: number of frames is %" PRIu64 ", but at byte %" PRIu64
			" no table of that length begins (magic %08" PRIx32 ", length %" PRIu32 ")",
			t->count, t->at, bytes_u32(head), bytes_u32(head + 4));
	return t->count <= t->at / SKIPPABLE_BYTES ||
	       bytes_why(why, why_bytes,
		       "seek table: number of frames is %" PRIu64 "; the %" PRIu64
		       " bytes before it hold at most %" PRIu64,
		       t->count, t->at, t->at / SKIPPABLE_BYTES);
}

static bool add_entries(struct source *s, const struct table *t, char *why, size_t why_bytes)
{
	uint8_t some[128 * 12];
	uint64_t from = 0;
	int error;

	for (uint64_t i = 0; i < t->count; i++) {
		uint64_t in = i % 128, left = t->count - i < 128 ? t->count - i : 128;

		if (in == 0 && !bytes_read(s->file, t->at + SKIPPABLE_BYTES + i * t->entry_bytes,
				       some, left * t->entry_bytes, &error, why, why_bytes))
			return false;
		const uint8_t *entry = some + in * t->entry_bytes;
		uint32_t length = bytes_u32(entry);

		if (length > t->at - from)
			return bytes_why(why, why_bytes,
				"seek table: frame %" PRIu64 " has a compressed size of %" PRIu32
				"; from byte %" PRIu64 " on there are %" PRIu64 " before the table",
				i, length, from, t->at - from);
		if (!add_frame(s, from, length, bytes_u32(entry + 4),
			    t->entry_bytes == 12 ? bytes_u32(entry + 8) : 0, why, why_bytes))
			return false;
		from += length;
	}
	return from == t->at || bytes_why(why, why_bytes,
					"seek table: its frames make up %" PRIu64
					" bytes; there are %" PRIu64 " before the table",
					from, t->at);
}

/* Some frames' own headers, against the table. */
static bool check_headers(const struct source *s, char *why, size_t why_bytes)
{
	uint64_t step = s->count / SAMPLED + 1;

	for (uint64_t i = 0; i < s->count; i += step) {
		const struct frame *f = &s->frame[i];
		uint64_t size = f[1].begin - f->begin;
		uint8_t head[HEADER_MOST];
		size_t n = f->length < sizeof(head) ? f->length : sizeof(head);
		struct header h;
		int error;

		if (size == 0)
			continue;
		if (!bytes_read(s->file, f->from, head, n, &error, why, why_bytes))
			return false;
		if (!parse_header(head, n, &h) || h.skippable)
			return bytes_why(why, why_bytes,
				"seek table: frame %" PRIu64 " is at byte %" PRIu64
				", where no zstd frame begins (magic %08" PRIx32
				"; must be %08" PRIx32 ")",
				i, f->from, n >= 4 ? bytes_u32(head) : 0, frame_magic);
		if (needs_dictionary(head, n, i, why, why_bytes))
			return false;
		if (h.has_content && h.content != size)
			return bytes_why(why, why_bytes,
				"seek table: frame %" PRIu64 " has a decompressed size of %" PRIu64
				"; the frame itself says %" PRIu64,
				i, size, h.content);
	}
	return true;
}

/* What the table says is empty is never read: it must be, or tokens would be lost without a word.
 */
static bool check_empty(const struct source *s, char *why, size_t why_bytes)
{
	struct walk w = {.file = s->file, .why = why, .why_bytes = why_bytes};
	struct header h;
	uint64_t most;

	for (uint64_t i = 0; i < s->count; i++) {
		const struct frame *f = &s->frame[i];

		if (f[1].begin > f->begin)
			continue;
		w.at = f->from;
		w.end = f->from + f->length;
		if (!walk_frame(&w, i, &h, &most))
			return false;
		if (most > 0 || w.at < w.end)
			return bytes_why(why, why_bytes,
				"seek table: frame %" PRIu64
				" has a decompressed size of 0; its %" PRIu32
				" compressed bytes hold up to %" PRIu64,
				i, f->length, most);
	}
	return true;
}

static bool read_table(struct source *s, char *why, size_t why_bytes)
{
	struct table t;

	if (!read_footer(s, &t, why, why_bytes) || !make_frames(s, t.count, why, why_bytes) ||
		!add_entries(s, &t, why, why_bytes))
		return false;
	s->has_checksums = t.entry_bytes == 12;
	return check_headers(s, why, why_bytes) && check_empty(s, why, why_bytes);
}

/* What a frame that does not say so decodes to: there is no other way than to decode it. */
static bool count_content(struct source *s, const struct walk *w, uint64_t from, uint64_t most,
	uint64_t *size, char *why, size_t why_bytes)
{
	struct decoder *d = decoder_new();
	struct header h;
	int error;

	uint64_t length = w->at - from, room = most < s->budget ? most : s->budget;
	char *data = malloc(room);

	s->frame[s->count].from = from;
	s->frame[s->count].length = (uint32_t)length;
	bool fine = d && data ? length <= UINT32_MAX && length <= s->budget + BLOCK_MOST
			      : no_memory(&error, why, why_bytes);

	if (d && data && !fine)
		refuse_large(s, s->count, UINT64_MAX, why, why_bytes);
	fine = fine && load_frame(d, s, s->count, &h, &most, &error, why, why_bytes);
	if (fine) {
		*size = ZSTD_decompressDCtx(d->zstd, data, room, d->input, length);
		if (ZSTD_getErrorCode(*size) == ZSTD_error_dstSize_tooSmall && most > room)
			fine = refuse_large(s, s->count, UINT64_MAX, why, why_bytes);
		else if (ZSTD_isError(*size))
			fine = bytes_why(why, why_bytes,
				"zstd frame %" PRIu64 " is damaged: %s (bytes %" PRIu64
				" to %" PRIu64 ")",
				s->count, ZSTD_getErrorName(*size), from, from + length);
	}
	free(data);
	decoder_free(d);
	return fine;
}

/* No table: frame after frame. */
static bool walk_file(struct source *s, char *why, size_t why_bytes)
{
	struct walk w = {.file = s->file, .end = s->file->size, .why = why, .why_bytes = why_bytes};

	if (w.end == 0)
		return bytes_why(
			why, why_bytes, "its size is 0 bytes; a zstd file has at least one frame");
	while (w.at < w.end) {
		uint64_t from = w.at, most = 0, size;
		struct header h;

		if (s->count >= s->room &&
			!make_frames(s, s->room ? 2 * s->room : 4, why, why_bytes))
			return false;
		if (!walk_frame(&w, s->count, &h, &most))
			return false;
		size = h.content;
		if (h.skippable || (!h.has_content && most == 0))
			continue;
		if (!h.has_content && h.least > s->budget)
			return refuse_large(s, s->count, UINT64_MAX, why, why_bytes);
		if (!h.has_content && h.least == most)
			size = most;
		else if (!h.has_content && !count_content(s, &w, from, most, &size, why, why_bytes))
			return false;
		if (!add_frame(s, from, w.at - from, size, 0, why, why_bytes))
			return false;
	}
	return true;
}

/* ---- opening ---- */

static bool has_table(const struct bytes *file)
{
	uint8_t end[4];
	int error;
	char why[256];

	return file->size >= sizeof(end) &&
	       bytes_read(file, file->size - sizeof(end), end, sizeof(end), &error, why,
		       sizeof(why)) &&
	       bytes_u32(end) == seekable_magic;
}

bool zstd_recognise(const struct bytes *file)
{
	uint8_t head[4];

	if (bytes_ending(file->path, ".zst") || bytes_ending(file->path, ".zstd"))
		return true;
	if (bytes_head(file, head, sizeof(head)) < sizeof(head))
		return false;
	return bytes_u32(head) == frame_magic ||
	       ((bytes_u32(head) & ~15u) == skippable_magic && has_table(file));
}

static bool identify(struct source *s, char *why, size_t why_bytes)
{
	struct stat st;

	if (fstat(s->file->fd, &st) != 0)
		return bytes_why(why, why_bytes, "%s", strerror(errno));
	s->identity = (struct identity){st.st_dev, st.st_ino,
		(uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec,
		(uint64_t)st.st_size,
		/* What was decoded while it was overwritten must not pass for what it was before.
		 */
		(uint64_t)st.st_ctim.tv_sec * 1000000000 + (uint64_t)st.st_ctim.tv_nsec};
	return true;
}

static bool find_frames(struct source *s, char *why, size_t why_bytes)
{
	s->count = 0;
	s->bytes.frame_bytes = 0;
	s->has_checksums = false;
	return has_table(s->file) ? read_table(s, why, why_bytes) : walk_file(s, why, why_bytes);
}

/* As decode_again(): what is wrong may be a bit of the table, or of a header. */
static bool find_frames_twice(struct source *s, char *why, size_t why_bytes)
{
	char first[256] = "";

	if (find_frames(s, first, sizeof(first)))
		return true;
	bytes_forget(s->file);
	if (!find_frames(s, why, why_bytes))
		return false;
	reread_was_good(s->file->fd, 0, s->file->size, first);
	return true;
}

struct bytes *zstd_open(struct bytes *file, struct frames *frames, uint64_t budget_bytes, char *why,
	size_t why_bytes)
{
	struct source *s = calloc(1, sizeof(*s));

	if (!s) {
		bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
		bytes_close(file);
		return NULL;
	}
	s->file = file;
	s->budget = budget_bytes ? budget_bytes : BUDGET;
	s->bytes = (struct bytes){.ops = &source_ops, .path = file->path, .fd = file->fd};
	if (!identify(s, why, why_bytes) || !find_frames_twice(s, why, why_bytes))
		goto fail;
	s->bytes.frames = s->count;
	s->bytes.index_bytes = sizeof(*s) + (s->room + 1) * sizeof(*s->frame);
	s->bytes.size = s->count ? s->frame[s->count].begin : 0;
	s->share = frames;
	if (!frames)
		s->share = s->own = frames_new(s->bytes.frame_bytes + OWN_ROOM);
	s->frames = s->share ? s->share->cache : NULL;
	if (!s->frames) {
		bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
		goto fail;
	}
	return &s->bytes;
fail:
	source_close(&s->bytes);
	return NULL;
}
