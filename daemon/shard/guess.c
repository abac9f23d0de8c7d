#include "daemon/shard/shard.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	ALIGN = 4,    /* tokens: an int64 that is read as u16 begins at a multiple of 4 */
	CHANGES = 32, /* that the tokens above SMALL must show */
	SMALL = 3,    /* the high half of ids below 2^18 */
	NARROW_ROW = 8,
	RARE = 16, /* one of so many may be odd */
	LARGE_FRAME = 1 << 20,
	ENOUGH = 1000, /* tokens for the comparison of distributions */
	CONSTANT = 64, /* tokens of one value */
	FEW = 4,       /* tokens that a shard may not consist of */
	HIGHEST_ID = 1 << 24,
};

#define SAY(s, ...) snprintf((s)->text, sizeof((s)->text), __VA_ARGS__)

uint64_t sample_token(const struct sample *s, unsigned i)
{
	return i / s->each * s->step + i % s->each;
}

/* ---- statistics ---- */

struct histogram {
	uint32_t n, count[257];
};

static void count(struct histogram *h, uint32_t value)
{
	h->count[value]++;
	h->n++;
}

/* The total variation of two distributions: 0 if they are equal, 1 if they have nothing in common.
 */
static double distance(const struct histogram *a, const struct histogram *b)
{
	double sum = 0;

	for (unsigned i = 0; i < 257; i++)
		sum += fabs((double)a->count[i] / a->n - (double)b->count[i] / b->n);
	return sum / 2;
}

/* The probability that two values are equal: low if they vary. */
static double sameness(const struct histogram *h)
{
	double sum = 0;

	for (unsigned i = 0; i < 257; i++)
		sum += (double)h->count[i] * (h->count[i] - 1.0);
	return sum / ((double)h->n * (h->n - 1.0));
}

/* ---- wider types ---- */

/* Of wider ids, the high halves are small, and the low ones change. */
static const char *wider(const struct sample *s, uint32_t token_bytes)
{
	unsigned large[4] = {0}, changes = 0; /* tokens above SMALL, by index mod 4 */
	uint32_t last = 0;
	bool zero = true; /* those with an odd index are */

	for (unsigned i = 0; i < s->n; i++) {
		uint32_t value = s->value[i];

		large[i % 4] += value > SMALL;
		zero &= i % 2 == 0 || value == 0;
		if (i % 2 == 0 && value > SMALL && value != last) {
			last = value;
			changes++;
		}
	}
	unsigned most = changes / RARE, odd = large[1] + large[3];

	if (changes < CHANGES || odd > most || (token_bytes == 4 && !zero && odd == 0))
		return NULL;
	if (token_bytes == 4 || large[2] <= most)
		return "looks like int64 (the rest of each is 0 or small); write it as u32 and set "
		       "dtype: u32, or write .npy, which states its type";
	return "looks like u32 (every second u16 is 0 or small); set dtype: u32";
}

/* ---- u16 that are not ids ---- */

/* Repeated tokens, as in padding, count once. */
static const char *foreign_u16(const struct sample *s)
{
	struct histogram place[2] = {0}, low = {0}, high = {0}, sign[3] = {0};

	for (unsigned i = 0; i < s->n; i++) {
		uint32_t value = s->value[i], top = value >> 8;

		if (i > 0 && value == s->value[i - 1])
			continue;
		count(&place[i % 2], value <= SMALL ? 256 : top);
		count(&low, value & 0xff);
		count(&high, top);
		count(&sign[top >> 7], top & 0x7f);
		if (top >> 7)
			count(&sign[2], ~top & 0x7f); /* two's complement */
	}
	if (low.n < ENOUGH)
		return NULL;
	double even = sameness(&place[0]), odd = sameness(&place[1]);

	if (distance(&place[0], &place[1]) > 0.35 && (even > 1.4 * odd || odd > 1.4 * even))
		return "every second u16 is of another kind, as in u32, int64 or floats";
	if (sameness(&low) > 1.5 * sameness(&high))
		return "the high byte of its u16 varies more than the low one, as in big-endian "
		       "data";
	/* Equal distributions of few tokens still differ by chance. */
	if (distance(&low, &high) < 0.15 + 4.5 / floor(sqrt(low.n)) &&
		sameness(&high) < 1.15 * sameness(&low) && sameness(&low) < 0.125)
		return "the high byte of its u16 is like the low one, as in text, compressed or "
		       "encrypted data";
	if (sign[1].n > 0.4 * low.n && sign[1].n < 0.6 * low.n &&
		(distance(&sign[0], &sign[1]) < 0.2 || distance(&sign[0], &sign[2]) < 0.2))
		return "half of its u16 are negative as i16 or fp16, as in sound or weights";
	return NULL;
}

/* ---- doubts ---- */

/* Describes a place that has one value only, as where nothing was written; or one between these
 * that is a hole of the file, as an interrupted download leaves them. */
static void doubt_place(struct sample *s, const struct shard *shard)
{
	uint32_t ones = shard->facts.token_bytes == 2 ? UINT16_MAX : UINT32_MAX;
	const struct bytes *b = shard->bytes;
	off_t hole = b->plain && b->fd >= 0 ? lseek(b->fd, 0, SEEK_HOLE) : -1;

	for (unsigned from = 0; from < s->n && !*s->text; from += s->each) {
		unsigned end = s->n - from < s->each ? s->n : from + s->each, i = from;
		uint32_t value = s->value[from];

		while (i < end && s->value[i] == value)
			i++;
		if (i == end && (value == 0 || value == ones) && end - from >= CONSTANT &&
			(from == 0 || end - from == s->each))
			SAY(s,
				"tokens %" PRIu64 " to %" PRIu64 " are all %" PRIu32
				", as in space that was never written",
				sample_token(s, from), sample_token(s, end - 1), value);
	}
	if (!*s->text && hole >= 0 && (uint64_t)hole < b->size)
		SAY(s, "has a hole at byte %jd, as in space that was never written",
			(intmax_t)hole);
}

/* The number of different values. */
static unsigned kinds_of(const struct sample *s)
{
	enum { SLOTS = 1 << 16 }; /* twice as many as a sample has values */
	uint64_t *seen = calloc(SLOTS, sizeof(*seen));
	unsigned kinds = 0;

	for (unsigned i = 0; seen && i < s->n; i++) {
		uint64_t value = (uint64_t)s->value[i] + 1,
			 at = value * UINT64_C(0x9e3779b97f4a7c15);

		for (at >>= 48; seen[at] && seen[at] != value;)
			at = (at + 1) % SLOTS;
		kinds += !seen[at];
		seen[at] = value;
	}
	free(seen);
	return kinds;
}

/* Describes what is odd about tokens, if something is. */
static void doubt(struct sample *s, const struct shard *shard)
{
	const struct shard_facts *facts = &shard->facts;
	unsigned even = 0; /* tokens with an even index that are not 0 */
	bool zero = true;  /* those with an odd one are */

	for (unsigned i = 0; i < s->n; i++) {
		zero &= i % 2 == 0 || s->value[i] == 0;
		even += i % 2 == 0 && s->value[i] > 0;
	}
	doubt_place(s, shard);
	if (*s->text)
		return;
	unsigned kinds = s->n >= ENOUGH ? kinds_of(s) : 0;

	if (s->n >= CONSTANT && zero && even > s->n / 4) /* too few to say more */
		SAY(s, "every second token is 0, perhaps of a wider type");
	else if (s->n >= ENOUGH && tokens_most(s->value, s->n, 4) == 1)
		SAY(s, "has only the numbers 0 and 1, perhaps a mask");
	else if (facts->row_tokens > 1 && facts->row_tokens < NARROW_ROW)
		SAY(s, "is a table of %" PRIu64 " columns, perhaps an index", facts->row_tokens);
	else if (kinds > 0 && kinds <= FEW)
		SAY(s, "repeats four tokens or fewer");
	else if (kinds > 0 && kinds == s->n)
		SAY(s, "no token occurs twice in a sample of %u; perhaps it is an index", s->n);
}

static void judge(struct sample *s, const struct shard *shard)
{
	enum shard_type type = shard->facts.type;
	bool believed = shard->format->raw || shard->facts.believed,
	     narrow = believed && type == SHARD_U16,
	     raw = narrow || (believed && type == SHARD_U32);
	const char *wide = raw ? wider(s, shard_type_bytes(type)) : NULL;
	const char *foreign = narrow ? foreign_u16(s) : NULL;

	if (raw && !narrow && tokens_most(s->value, s->n, 4) >= HIGHEST_ID)
		foreign = "it has ids of 2^24 and more";
	if (wide)
		SAY(s, "%s", wide);
	else if (foreign)
		SAY(s, "does not look like tokens: %s", foreign);
	else
		doubt(s, shard);
	s->kind = wide	     ? SAMPLE_WIDE
		  : foreign  ? SAMPLE_FOREIGN
		  : *s->text ? SAMPLE_DOUBT
			     : SAMPLE_FINE;
}

/* ---- the sample ---- */

struct sample *sample_read(const struct shard *shard, struct fault *fault)
{
	const struct shard_facts *facts = &shard->facts;
	uint32_t width = shard_type_bytes(facts->type);
	struct sample *s = calloc(1, sizeof(*s));
	uint16_t narrow[SAMPLE_PLACE_TOKENS];
	bool fine = s || fault_memory(fault), wide = facts->token_bytes == 4;

	if (!fine)
		return NULL;
	s->each = 2 * SAMPLE_PLACE_TOKENS / (width < 2 ? 2 : width);
	s->step = s->each;
	if (facts->tokens > SAMPLE_PLACES * s->each && facts->frame_bytes <= LARGE_FRAME)
		s->step = (facts->tokens - s->each) / (SAMPLE_PLACES - 1) / ALIGN * ALIGN;
	for (uint64_t p = 0; fine && p < SAMPLE_PLACES && p * s->step < facts->tokens; p++) {
		uint64_t at = p * s->step, left = facts->tokens - at,
			 n = left < s->each ? left : s->each;
		void *to = s->value + s->n;

		fine = shard_read(shard, at, n, wide ? to : narrow, fault);
		if (fine && !wide)
			convert_tokens(SHARD_U16, 4, narrow, n, to);
		s->n += (unsigned)n;
	}
	if (fine) {
		judge(s, shard);
		return s;
	}
	free(s);
	return NULL;
}
