/*
 * bench-micro: small measurements in C. Each prints one line of JSON.
 *
 * next SOCKET STREAM POSITION BATCHES [stored|int64]
 *	One trainer: milliseconds from attach to first batch, nanoseconds of a ready next(), and the
 *	rate at which it takes batches, without reading their tokens. With "stored" a ready next()
 *	is not measured; "int64" also widens every batch into one buffer.
 * polite SOCKET STREAM SECONDS [PEER RATE [SLOTS]]
 *	A trainer that takes batches of 8 rows as fast as they come. With RATE it is peer PEER of
 *	rank 0 and takes RATE of them per second, 0 for all. Batches per second, and microseconds
 *	of the wait for a batch.
 * floor FILE SECONDS BYTES PIECES
 *	What a batch costs at least: one thread copies PIECES pieces of BYTES from random pages of a
 *	mapped file, which is in the page cache, to one buffer.
 * order
 *	Nanoseconds of CPU time from a position to its window, and to shard and offset. The
 *	yardstick of the machine is a read that misses every cache.
 */
#include "bench/figures.h"
#include "client/lib/tokend.h"
#include "proto/cursor.h"
#include "proto/table.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile uint64_t sink; /* what is stored here is not optimized away */

__attribute__((format(printf, 1, 2))) static _Noreturn void stop(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	fputs("bench-micro: ", stderr);
	vfprintf(stderr, format, list);
	fputc('\n', stderr);
	va_end(list);
	exit(1);
}

static void *room(size_t n, size_t size)
{
	void *memory = calloc(n, size);

	if (!memory)
		stop("out of memory");
	return memory;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

/* ---- trainers ---- */

static struct tokend *attach(const struct tokend_options *options)
{
	struct tokend *t;
	char why[1500];

	if (tokend_attach(&t, options, why, sizeof(why)) < 0)
		stop("%s", why);
	return t;
}

static struct tokend_batch take(struct tokend *t)
{
	struct tokend_batch batch;

	if (tokend_next(t, &batch) != 1)
		stop("%s", tokend_why(t));
	return batch;
}

/* The median time of a ready next(): lets the ring fill, then takes READY batches without a pause.
 * The clock is read around all of them but the first, which finds cold caches, because reading it
 * takes as long as one of them. */
static double ready_next_ns(struct tokend *t)
{
	enum { ROUNDS = 200, READY = 16 };
	static double sample[ROUNDS];
	const struct timespec pause = {0, 2000000};
	struct tokend_batch batch[READY];

	for (int round = 0; round < ROUNDS; round++) {
		nanosleep(&pause, NULL);
		batch[0] = take(t);

		double from = now_s(CLOCK_MONOTONIC);

		for (int i = 1; i < READY; i++)
			batch[i] = take(t);
		sample[round] = (now_s(CLOCK_MONOTONIC) - from) * 1e9 / (READY - 1);
		for (int i = 0; i < READY; i++)
			tokend_release(t, &batch[i]);
	}
	return median(sample, ROUNDS);
}

/* Takes @batches, and widens them into @to if it is not NULL. */
static void take_all(
	struct tokend *t, const struct tokend_shape *shape, uint64_t batches, int64_t *to)
{
	for (uint64_t i = 0; i < batches; i++) {
		struct tokend_batch batch = take(t);

		if (to)
			tokend_widen(to, batch.tokens, (size_t)shape->rows * shape->window_tokens,
				shape->token_bytes);
		tokend_release(t, &batch);
	}
}

static void next(int argc, char **argv)
{
	struct tokend_options options = {.size = sizeof(options),
		.socket = argv[0],
		.stream = argv[1],
		.position = strtoull(argv[2], NULL, 10),
		.start_at_position = 1,
		.world = 1,
		.micro_batch = 8,
		.connect_ms = 20000};
	uint64_t batches = strtoull(argv[3], NULL, 10);
	double from = now_s(CLOCK_MONOTONIC), rate = 0, cpu = 0;
	struct tokend *t = attach(&options);
	struct tokend_batch batch = take(t);
	double first = now_s(CLOCK_MONOTONIC) - from;
	struct tokend_shape shape;
	int64_t *to = NULL;

	tokend_release(t, &batch);
	tokend_shape(t, &shape);
	if (argc > 4 && strcmp(argv[4], "int64") == 0)
		to = room((size_t)shape.rows * shape.window_tokens, sizeof(*to));
	if (batches > 0) {
		double wall = now_s(CLOCK_MONOTONIC), own = now_s(CLOCK_THREAD_CPUTIME_ID);
		double tokens = (double)batches * shape.rows * shape.window_tokens;

		take_all(t, &shape, batches, to);
		rate = tokens / (now_s(CLOCK_MONOTONIC) - wall);
		cpu = (now_s(CLOCK_THREAD_CPUTIME_ID) - own) / tokens * 1e9;
	}
	printf("{\"first_ms\": %.3f, \"ready_ns\": %.0f, \"tokens_s\": %.0f, \"cpu_s_per_1e9\": "
	       "%.3f, \"lost_wakes\": %" PRIu64 "}\n",
		first * 1e3, batches > 0 && argc == 4 ? ready_next_ns(t) : 0, rate, cpu,
		shape.lost_wakes);
	tokend_detach(t);
	free(to);
}

static double wait_us(struct tokend *t)
{
	double from = now_s(CLOCK_MONOTONIC);
	struct tokend_batch batch = take(t);
	double took = now_s(CLOCK_MONOTONIC) - from;

	tokend_release(t, &batch);
	return took * 1e6;
}

static void polite(int argc, char **argv)
{
	enum { SAMPLES = 1 << 22 };
	struct tokend_options options = {.size = sizeof(options),
		.socket = argv[0],
		.stream = argv[1],
		.run = "polite",
		.world = 1,
		.micro_batch = 8,
		.peer = argc > 3 ? strtoull(argv[3], NULL, 10) : 0,
		.slots = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0,
		.connect_ms = 5000};
	double seconds = atof(argv[2]), rate = argc > 4 ? atof(argv[4]) : 0;
	struct tokend *t = attach(&options);
	double *wait = room(SAMPLES, sizeof(*wait));
	double from = now_s(CLOCK_MONOTONIC);
	int n = 0;

	for (int i = 0; i < 256 && now_s(CLOCK_MONOTONIC) < from + 0.3; i++)
		wait_us(t); /* warms up */
	from = now_s(CLOCK_MONOTONIC);
	while (n < SAMPLES && (n == 0 || now_s(CLOCK_MONOTONIC) < from + seconds)) {
		wait[n++] = wait_us(t);

		double early = rate > 0 ? from + n / rate - now_s(CLOCK_MONOTONIC) : 0;

		if (early > 0)
			usleep((unsigned)(early * 1e6));
	}
	double wall = now_s(CLOCK_MONOTONIC) - from, p50 = median(wait, (size_t)n);

	printf("{\"rate\": %.1f, \"p50\": %.2f, \"p99\": %.1f, \"p999\": %.1f, \"most\": %.1f}\n",
		n / wall, p50, wait[n - 1 - n / 100], wait[n - 1 - n / 1000], wait[n - 1]);
	tokend_detach(t);
	free(wait);
}

/* ---- the least that a copy costs ---- */

static void floor_of_copies(int argc, char **argv)
{
	enum { PAGE = 4096, BETWEEN_CLOCKS = 64 };
	size_t bytes = strtoull(argv[2], NULL, 10), pieces = strtoull(argv[3], NULL, 10);
	uint64_t copies = 0, random = 88172645463325252;
	int fd = open(argv[0], O_RDONLY | O_CLOEXEC);
	struct stat about;

	(void)argc;
	if (fd < 0 || fstat(fd, &about) < 0)
		stop("%s: %s", argv[0], strerror(errno));
	if (bytes == 0 || pieces == 0 || (size_t)about.st_size < bytes)
		stop("%s: has less than a piece", argv[0]);

	size_t pages = ((size_t)about.st_size - bytes) / PAGE + 1;
	const char *file =
		mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	char *to = room(pieces, bytes);

	if (file == MAP_FAILED)
		stop("%s: %s", argv[0], strerror(errno));
	memset(to, 1, bytes * pieces);

	double from = now_s(CLOCK_MONOTONIC), cpu = now_s(CLOCK_THREAD_CPUTIME_ID);
	double until = from + atof(argv[1]), now;

	do {
		for (int i = 0; i < BETWEEN_CLOCKS; i++, copies++) {
			for (size_t p = 0; p < pieces; p++)
				memcpy(to + p * bytes, file + next_random(&random) % pages * PAGE,
					bytes);
			__asm__ volatile("" : : "r"(to) : "memory"); /* the copy is used */
		}
		now = now_s(CLOCK_MONOTONIC);
	} while (now < until);
	cpu = now_s(CLOCK_THREAD_CPUTIME_ID) - cpu;
	printf("{\"copies_s\": %.1f, \"cpu_s\": %.3e}\n", (double)copies / (now - from),
		cpu / (double)copies);
	free(to);
}

/* ---- the order ---- */

enum { ORDER_ROUNDS = 7, MICRO = 8, POSITIONS = 200000, FAR_WORDS = 1 << 25 /* 256 MiB */ };

/* A chain: each read gives the address of the next one. */
static double far_read_ns(void)
{
	uint64_t *chain = room(FAR_WORDS, sizeof(*chain));
	uint64_t at = 0;
	double from;

	for (uint64_t i = 0; i < FAR_WORDS; i++)
		chain[i] = (i * 0x5851F42D4C957F2D + 12345) % FAR_WORDS;
	from = now_s(CLOCK_THREAD_CPUTIME_ID);
	for (int i = 0; i < POSITIONS; i++)
		at = chain[at];
	sink = at;
	from = (now_s(CLOCK_THREAD_CPUTIME_ID) - from) / POSITIONS;
	free(chain);
	return from * 1e9;
}

struct kind {
	const char *name;
	uint32_t datasets;
	enum order_shuffle shuffle;
	bool slide;
	uint64_t shards; /* of a dataset, of about 10^8 tokens each */
};

static const struct kind kinds[] = {
	{"one", 1, ORDER_GLOBAL, false, 100},
	{"mix8", 8, ORDER_GLOBAL, false, 100},
	{"mix8_block", 8, ORDER_BLOCK, false, 100},
	{"mix1000", 1000, ORDER_GLOBAL, false, 10},
	{"mix8_shards_1e6", 8, ORDER_GLOBAL, true, 125000},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

struct stream {
	struct cursor cursor;
	struct table *table; /* of each dataset */
};

static void stream_begin(struct stream *s, const struct kind *kind)
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
			t->tokens[i] = 100000000 + 1000003 * ((i * 7 + d) % 97);
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
	if (!cursor_begin(&s->cursor, &identity, sources, kind->datasets, NULL, 0, &fault))
		stop("%s: %s", fault.field, fault.text);
	free(sources);
	free(names);
}

static void stream_end(struct stream *s)
{
	for (uint32_t d = 0; d < s->cursor.datasets; d++) {
		free(s->table[d].tokens);
		free(s->table[d].first_window);
	}
	free(s->table);
	cursor_free(&s->cursor);
}

/* Of a position. @locate: shard and offset too. */
static double position_ns(const struct stream *s, uint64_t from, bool locate)
{
	struct order order = cursor_order(&s->cursor);
	uint64_t sum = 0, shard, offset;
	double begun = now_s(CLOCK_THREAD_CPUTIME_ID);

	for (uint64_t i = 0; i < POSITIONS; i++) {
		struct order_place place;

		order_at(&order, from + i, &place);
		sum += place.window;
		if (!locate)
			continue;
		table_locate(&s->table[place.dataset], &order.dataset[place.dataset], order.seed,
			place.epoch, place.window, &shard, &offset);
		sum += offset;
	}
	sink = sum;
	return (now_s(CLOCK_THREAD_CPUTIME_ID) - begun) * 1e9 / POSITIONS;
}

static void order(int argc, char **argv)
{
	static double at[KINDS][ORDER_ROUNDS], all[KINDS][ORDER_ROUNDS], far[ORDER_ROUNDS];
	static struct stream stream[KINDS];

	(void)argc;
	(void)argv;
	for (int k = 0; k < KINDS; k++)
		stream_begin(&stream[k], &kinds[k]);
	for (int round = 0; round < ORDER_ROUNDS; round++) {
		far[round] = far_read_ns();
		for (int k = 0; k < KINDS; k++) {
			at[k][round] = position_ns(&stream[k], UINT64_C(1) << (20 + round), false);
			all[k][round] = position_ns(&stream[k], UINT64_C(1) << (20 + round), true);
		}
	}
	printf("{\"far_read_ns\": %.1f", median(far, ORDER_ROUNDS));
	for (int k = 0; k < KINDS; k++) {
		printf(", \"%s\": {\"window_ns\": %.1f, \"token_ns\": %.1f}", kinds[k].name,
			median(at[k], ORDER_ROUNDS), median(all[k], ORDER_ROUNDS));
		stream_end(&stream[k]);
	}
	printf("}\n");
}

static const struct {
	const char *name;
	int least, most; /* arguments */
	void (*run)(int argc, char **argv);
} commands[] = {
	{"next", 4, 5, next},
	{"polite", 3, 6, polite},
	{"floor", 4, 4, floor_of_copies},
	{"order", 0, 0, order},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(argv[1], commands[i].name) != 0 || argc - 2 < commands[i].least ||
			argc - 2 > commands[i].most)
			continue;
		commands[i].run(argc - 2, argv + 2);
		return 0;
	}
	fputs("usage: bench-micro next|polite|floor|order ARGUMENT…, as its source says\n", stderr);
	return 2;
}
