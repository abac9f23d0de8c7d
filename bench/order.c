/*
 * bench-order: the CPU time of mapping a position to its window, and to shard and offset.
 *
 * Prints one line of JSON: nanoseconds for several kinds of streams. Two yardsticks of the machine
 * are measured in the same run: a read that misses every cache, and a division that depends on the
 * division before it.
 *
 * bench-order TOKENS: the nanoseconds for one dataset of so many tokens, in shards of 10^10.
 */
#include "proto/cursor.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 7, MICRO = 8, POSITIONS = 200000, FAR_WORDS = 1 << 25 /* 256 MiB */ };

static const uint64_t SHARD_TOKENS = UINT64_C(10000000000);

static volatile uint64_t sink;

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *room(size_t n, size_t size)
{
	void *memory = calloc(n, size);

	if (!memory) {
		fprintf(stderr, "bench-order: out of memory\n");
		exit(1);
	}
	return memory;
}

/* ---- yardsticks ---- */

/* A chain: each read gives the address of the next one. */
static double far_read_ns(void)
{
	uint64_t *next = room(FAR_WORDS, sizeof(*next));
	uint64_t at = 0;
	double from;

	for (uint64_t i = 0; i < FAR_WORDS; i++)
		next[i] = (i * 0x5851F42D4C957F2D + 12345) % FAR_WORDS;
	from = now_ns();
	for (int i = 0; i < POSITIONS; i++)
		at = next[at];
	sink = at;
	from = (now_ns() - from) / POSITIONS;
	free(next);
	return from;
}

static double division_ns(void)
{
	uint64_t x = UINT64_MAX, by = sink | 0x10000001;
	double from = now_ns();

	for (int i = 0; i < POSITIONS; i++)
		x = ~(x / by);
	sink = x;
	return (now_ns() - from) / POSITIONS;
}

/* ---- streams ---- */

struct kind {
	const char *name;
	uint32_t datasets;
	enum order_shuffle shuffle;
	bool slide;
	uint64_t shards;
	uint64_t tokens; /* of a shard, or 0: about 10^8 */
};

static const struct kind kinds[] = {
	{"one", 1, ORDER_GLOBAL, false, 100, 0},
	{"mix8", 8, ORDER_GLOBAL, false, 100, 0},
	{"mix8_block", 8, ORDER_BLOCK, false, 100, 0},
	{"mix8_slide", 8, ORDER_GLOBAL, true, 100, 0},
	{"mix1000", 1000, ORDER_GLOBAL, false, 10, 0},
	{"shards_1e6", 1, ORDER_GLOBAL, false, 1000000, 0},
	{"mix8_shards_1e6", 8, ORDER_GLOBAL, true, 125000, 0},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

struct stream {
	struct cursor cursor;
	struct table *table;
};

static void begin(struct stream *s, const struct kind *kind)
{
	struct cursor identity = {
		.stream = "bench", .seed = 42, .seq_len = 2048, .extra = 1, .stride = 2048};
	struct cursor_source *sources = room(kind->datasets, sizeof(*sources));
	char(*names)[16] = room(kind->datasets, sizeof(*names));
	struct fault fault;

	s->table = room(kind->datasets, sizeof(*s->table));
	for (uint32_t d = 0; d < kind->datasets; d++) {
		struct table *t = &s->table[d];

		*t = (struct table){.window_tokens = 2049, .stride = 2048, .shards = kind->shards};
		t->tokens = room(t->shards, sizeof(*t->tokens));
		t->first_window = room(t->shards + 1, sizeof(*t->first_window));
		for (uint64_t i = 0; i < t->shards; i++)
			t->tokens[i] = kind->tokens ? kind->tokens
						    : 100000000 + 1000003 * ((i * 7 + d) % 97);
		table_number(t);
		snprintf(names[d], sizeof(names[d]), "d%u", d);
		sources[d] = (struct cursor_source){.name = names[d],
			.weight = 1 + d % 7,
			.windows = t->windows,
			.block = 64,
			.group = 64,
			.shuffle = kind->shuffle,
			.slide = kind->slide};
	}
	if (!cursor_begin(&s->cursor, &identity, sources, kind->datasets, NULL, 0, &fault)) {
		fprintf(stderr, "bench-order: %s: %s\n", fault.field, fault.text);
		exit(1);
	}
	free(sources);
	free(names);
}

static void end(struct stream *s)
{
	for (uint32_t d = 0; d < s->cursor.datasets; d++) {
		free(s->table[d].tokens);
		free(s->table[d].first_window);
	}
	free(s->table);
	cursor_free(&s->cursor);
}

/* Nanoseconds a position, batch after batch, as a session plans them. @locate: shard and offset
 * too. */
static double position_ns(const struct stream *s, uint64_t from, bool locate)
{
	struct order order = cursor_order(&s->cursor);
	uint64_t sum = 0, shard, offset;
	double begun = now_ns();

	for (uint64_t i = 0; i < POSITIONS; i += MICRO) {
		struct order_place place[MICRO];

		order_at_all(&order, from + i, MICRO, place);
		for (int r = 0; r < MICRO; r++) {
			uint32_t d = place[r].dataset;

			sum += place[r].window;
			if (!locate)
				continue;
			table_locate(&s->table[d], &order.dataset[d], order.seed, place[r].epoch,
				place[r].window, &shard, &offset);
			sum += offset;
		}
	}
	sink = sum;
	return (now_ns() - begun) / POSITIONS;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values)
{
	qsort(values, ROUNDS, sizeof(*values), by_value);
	return values[ROUNDS / 2];
}

/* One dataset of @tokens. */
static int against_size(uint64_t tokens)
{
	const uint64_t shards = tokens > SHARD_TOKENS ? tokens / SHARD_TOKENS : 1;
	const struct kind kind = {"size", 1, ORDER_GLOBAL, false, shards, tokens / shards};
	double at[ROUNDS], all[ROUNDS];
	struct stream stream;

	begin(&stream, &kind);
	for (int round = 0; round < ROUNDS; round++) {
		at[round] = position_ns(&stream, UINT64_C(1) << (20 + round), false);
		all[round] = position_ns(&stream, UINT64_C(1) << (20 + round), true);
	}
	printf("{\"window_ns\": %.1f, \"token_ns\": %.1f}\n", median(at), median(all));
	end(&stream);
	return 0;
}

int main(int argc, char **argv)
{
	static double at[KINDS][ROUNDS], all[KINDS][ROUNDS], far[ROUNDS], division[ROUNDS];
	static struct stream stream[KINDS];

	if (argc == 2)
		return against_size(strtoull(argv[1], NULL, 10));
	for (int k = 0; k < KINDS; k++)
		begin(&stream[k], &kinds[k]);
	for (int round = 0; round < ROUNDS; round++) {
		far[round] = far_read_ns();
		division[round] = division_ns();
		for (int k = 0; k < KINDS; k++) {
			at[k][round] = position_ns(&stream[k], UINT64_C(1) << (20 + round), false);
			all[k][round] = position_ns(&stream[k], UINT64_C(1) << (20 + round), true);
		}
	}
	printf("{\"far_read_ns\": %.1f, \"division_ns\": %.2f", median(far), median(division));
	for (int k = 0; k < KINDS; k++) {
		printf(", \"%s\": {\"window_ns\": %.1f, \"token_ns\": %.1f}", kinds[k].name,
			median(at[k]), median(all[k]));
		end(&stream[k]);
	}
	printf("}\n");
	return 0;
}
