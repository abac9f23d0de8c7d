#include "tests/prove/prove.h"

#include "tests/unit/random_part.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct prove_part *const parts[] = {&prove_worlds, &prove_chains, &prove_orders};

enum { PARTS = sizeof(parts) / sizeof(parts[0]) };

/* ---- helpers of the parts ---- */

void prove_broken(const struct prove *p, const char *what, const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "prove: %s: not so: %s\n  ", p->part, what);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n  again: %s%s --seed %" PRIu64 " --number %" PRIu64 " %s\n", p->program,
		p->brief ? " --brief" : "", p->seed, p->number, p->part);
	exit(1);
}

void *prove_memory(const struct prove *p, size_t n, size_t size)
{
	void *memory = calloc(n, size);

	PROVE(p, memory, "out of memory");
	return memory;
}

struct cursor_source prove_source(struct rng *rng, unsigned index, uint64_t windows, char name[16])
{
	struct cursor_source source;

	snprintf(name, 16, "d%u", index);
	source = (struct cursor_source){
		.name = name,
		.windows = 1 + rng_below(rng, windows),
		.digest = rng_next(rng),
		.block = 1 + (uint32_t)rng_below(rng, 9),
		.group = 1 + (uint32_t)rng_below(rng, 5),
		.shuffle = (enum order_shuffle)rng_below(rng, 3),
		.slide = rng_below(rng, 2),
	};
	if (rng_below(rng, 2))
		random_part(rng, source.windows, &source.lo, &source.hi);
	return source;
}

void prove_weights(struct rng *rng, const struct cursor *cursor, double *weights)
{
	uint32_t sure = (uint32_t)rng_below(rng, cursor->datasets);

	for (uint32_t d = 0; d < cursor->datasets; d++) {
		weights[d] =
			rng_below(rng, 4) == 0 ? 0 : 1e-3 + (double)(rng_next(rng) >> 40) / 1e6;
		if (d == sure && weights[d] == 0)
			weights[d] = 1;
	}
}

size_t prove_bytes(const struct prove *p, struct cursor *cursor)
{
	static uint8_t bytes[LIMIT_CURSOR_BYTES], again[LIMIT_CURSOR_BYTES];
	size_t n = cursor_encode(cursor, bytes, sizeof(bytes));
	struct fault fault;
	struct cursor out;

	PROVE(p, n > 0, "the cursor at %" PRIu64 " does not fit", cursor->next);
	PROVE(p, cursor_decode(&out, bytes, n, &fault), "%s: %s", fault.field, fault.text);
	cursor_free(cursor);
	*cursor = out;
	PROVE(p, cursor_encode(cursor, again, sizeof(again)) == n && memcmp(bytes, again, n) == 0,
		"decoding and encoding changes the cursor at %" PRIu64, cursor->next);
	return n;
}

/* ---- history ---- */

static bool same_mix(const struct order_segment *a, const struct order_segment *b)
{
	return a->start == b->start && a->datasets == b->datasets &&
	       memcmp(a->units, b->units, a->datasets * sizeof(*a->units)) == 0 &&
	       memcmp(a->base, b->base, a->datasets * sizeof(*a->base)) == 0 &&
	       memcmp(a->phase, b->phase, a->padded * sizeof(*a->phase)) == 0;
}

void prove_remember(const struct prove *p, struct prove_history *h, const struct cursor *cursor)
{
	const uint32_t past = cursor_past(cursor);

	while (h->segments > 0 && h->segment[h->segments - 1]->start >= cursor_now(cursor)->start)
		order_segment_free(h->segment[--h->segments]);
	if (h->segments + cursor->segments > h->room) {
		h->room = 2 * (h->segments + cursor->segments);
		h->segment = realloc(h->segment, h->room * sizeof(struct order_segment *));
		PROVE(p, h->segment, "out of memory");
	}
	PROVE(p, h->segments == past, "the cursor at %" PRIu64 " has %u past mixes instead of %u",
		cursor->next, past, h->segments);
	for (uint32_t i = 0; i < past; i++)
		PROVE(p, same_mix(h->segment[i], cursor->segment[i]),
			"the cursor at %" PRIu64 " has another past mix %u", cursor->next, i);
	for (uint32_t i = past; i < cursor->segments; i++) {
		h->segment[h->segments] = order_segment_copy(cursor->segment[i]);
		PROVE(p, h->segment[h->segments++], "out of memory");
	}
}

struct order prove_order(const struct prove_history *h, const struct cursor *cursor)
{
	struct order order = cursor_order(cursor);

	order.segment = (const struct order_segment *const *)h->segment;
	order.segments = h->segments;
	return order;
}

void prove_forget(struct prove_history *h)
{
	while (h->segments > 0)
		order_segment_free(h->segment[--h->segments]);
	free(h->segment);
	*h = (struct prove_history){0};
}

/* ---- running ---- */

struct settings {
	uint64_t seed, number, jobs;
	double seconds;
	bool brief, one;
	const char *program;
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run_unit(const struct settings *s, const struct prove_part *part,
	struct prove_sums *sums, uint64_t number)
{
	struct prove p = {
		.part = part->name,
		.seed = s->seed,
		.number = number,
		.brief = s->brief,
		.rng.state = order_derive(s->seed, order_name_hash(part->name, strlen(part->name)),
				     number) |
			     1,
		.sums = sums,
		.program = s->program,
	};

	part->run(&p);
}

static uint64_t units_of(const struct settings *s, const struct prove_part *part)
{
	return s->brief ? part->brief_units : part->units;
}

/* Runs units until there are none left, or no time. */
static void work(const struct settings *s, const struct prove_part *part, struct prove_sums *sums,
	double until)
{
	bool timed = part->timed && !s->brief;

	while (!timed || now_s() < until) {
		uint64_t number = atomic_fetch_add(&sums->next, 1);

		if (number >= units_of(s, part))
			return;
		run_unit(s, part, sums, number);
	}
}

static bool all_fine(uint64_t jobs)
{
	bool fine = true;

	for (uint64_t i = 0; i < jobs; i++) {
		int status;

		if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
			fine = false;
	}
	return fine;
}

static bool run_part(const struct settings *s, const struct prove_part *part)
{
	struct prove_sums *sums = mmap(
		NULL, sizeof(*sums), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double begin = now_s();

	if (sums == MAP_FAILED) {
		perror("prove: mmap");
		return false;
	}
	fflush(stdout);
	for (uint64_t i = 0; i < s->jobs; i++) {
		pid_t pid = fork();

		if (pid < 0) {
			perror("prove: fork");
			return false;
		}
		if (pid == 0) {
			work(s, part, sums, begin + s->seconds);
			exit(0);
		}
	}
	if (!all_fine(s->jobs))
		return false;

	double seconds = now_s() - begin;

	if (sums->cases == 0) {
		fprintf(stderr, "prove: %s: no case was run\n", part->name);
		return false;
	}
	printf("%-7s %10" PRIu64 " cases, %8.2f million a minute, %11" PRIu64
	       " positions, %5.1f s: %s\n",
		part->name, sums->cases, (double)sums->cases / seconds * 60e-6, sums->positions,
		seconds, part->what);
	munmap(sums, sizeof(*sums));
	return true;
}

static bool run_one(const struct settings *s, const struct prove_part *part)
{
	struct prove_sums sums = {0};

	run_unit(s, part, &sums, s->number);
	printf("%s: unit %" PRIu64 " of seed %" PRIu64 " holds: %" PRIu64 " cases\n", part->name,
		s->number, s->seed, sums.cases);
	return true;
}

__attribute__((noreturn)) static void usage(void)
{
	fprintf(stderr, "usage: prove [--brief] [--seed S] [--seconds T] [--number N] "
			"[PART…]\nparts:");
	for (unsigned i = 0; i < PARTS; i++)
		fprintf(stderr, " %s", parts[i]->name);
	fprintf(stderr, "\n");
	exit(2);
}

static uint64_t number_of(const char *text)
{
	char *end;
	uint64_t value = text ? strtoull(text, &end, 0) : 0;

	if (!text || end == text || *end)
		usage();
	return value;
}

static int settle(struct settings *s, int argc, char **argv)
{
	int i = 1;

	for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
		if (strcmp(argv[i], "--brief") == 0)
			s->brief = true;
		else if (strcmp(argv[i], "--seed") == 0)
			s->seed = number_of(argv[++i]);
		else if (strcmp(argv[i], "--seconds") == 0)
			s->seconds = (double)number_of(argv[++i]);
		else if (strcmp(argv[i], "--number") == 0)
			s->one = true, s->number = number_of(argv[++i]);
		else
			usage();
	}
	return i;
}

static bool named(const struct prove_part *part, int names, char **name)
{
	for (int i = 0; i < names; i++)
		if (strcmp(part->name, name[i]) == 0)
			return true;
	return names == 0;
}

int main(int argc, char **argv)
{
	struct settings s = {.seed = (uint64_t)time(NULL),
		.jobs = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN),
		.seconds = 20,
		.program = argv[0]};
	int from = settle(&s, argc, argv), ran = 0;

	printf("prove: seed %" PRIu64 ", %" PRIu64 " processes%s\n", s.seed, s.jobs,
		s.brief ? ", brief: some cases of each part" : "");
	for (unsigned i = 0; i < PARTS; i++) {
		if (!named(parts[i], argc - from, argv + from))
			continue;
		ran++;
		if (!(s.one ? run_one : run_part)(&s, parts[i]))
			return 1;
	}
	if (ran == 0 || ran < argc - from)
		usage();
	return 0;
}
