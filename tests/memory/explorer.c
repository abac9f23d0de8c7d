/* The search: threads as coroutines, and a copy of their memory at each choice. */
#include "tests/memory/graph.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

enum { PAGE = 4096, WORLD_PAGES = 1024, STACK = 64 * 1024, NAMES = 32, SHARED = 4 };
enum { SEEN_MOST = 1 << 24 }; /* graphs that are kept, in 512 MB; later ones may come again */

/* ---- the program's memory ---- */

/* Only pages that threads have written are copied. The others stay as setup() left them. */
static uint8_t *world, *pristine;
static size_t world_used;
static bool tracked; /* setup() is over: the first write to a page is a fault */
static unsigned dirty[WORLD_PAGES], dirties;

static void first_write(int signal, siginfo_t *info, void *context)
{
	size_t at = (size_t)((uint8_t *)info->si_addr - world);

	(void)signal, (void)context;
	if (!tracked || at >= (size_t)WORLD_PAGES * PAGE)
		abort();
	dirty[dirties++] = (unsigned)(at / PAGE);
	mprotect(world + at / PAGE * PAGE, PAGE, PROT_READ | PROT_WRITE);
}

static void world_make(void)
{
	static uint8_t alternative[64 * 1024];
	struct sigaction action = {
		.sa_sigaction = first_write, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};

	if (!world) {
		world = mmap(NULL, (size_t)WORLD_PAGES * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		pristine = mmap(NULL, (size_t)WORLD_PAGES * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert(world != MAP_FAILED && pristine != MAP_FAILED);
		sigaltstack(&(stack_t){.ss_sp = alternative, .ss_size = sizeof(alternative)}, NULL);
		sigaction(SIGSEGV, &action, NULL);
	}
	tracked = false;
	mprotect(world, (size_t)WORLD_PAGES * PAGE, PROT_READ | PROT_WRITE);
	memset(world, 0, world_used);
	world_used = 0;
	dirties = 0;
}

void *world_alloc(size_t bytes, size_t alignment)
{
	world_used = (world_used + alignment - 1) / alignment * alignment;
	void *at = world + world_used;

	world_used += bytes;
	assert(!tracked && world_used <= (size_t)WORLD_PAGES * PAGE);
	return at;
}

static void world_track(void)
{
	memcpy(pristine, world, world_used);
	tracked = true;
	mprotect(world, (size_t)WORLD_PAGES * PAGE, PROT_READ);
}

/* ---- threads ---- */

struct thread {
	ucontext_t context;
	struct operation *next; /* that it wants to perform; NULL: it has ended */
};

static struct {
	const struct program *program;
	struct graph graph;
	struct thread *thread; /* in the world */
	ucontext_t scheduler;
	int current; /* -1: none runs */
	const char *name[NAMES];
	const void *named[NAMES];
	unsigned names;
	struct {
		const char *name;
		const uint8_t *at;
		size_t bytes;
		struct shadow *shadow;
	} shared[SHARED];
	unsigned shares;
	struct exploration result;
	double deadline;
	char failure[16384];
} x = {.current = -1};

/* The last accesses to a byte. Numbers are counts of events, plus one; 0: never. */
struct shadow {
	uint8_t writer, wrote;
	uint8_t read[EXPLORER_THREADS];
};

bool explorer_in_thread(void)
{
	return x.current >= 0;
}

static void to_scheduler(void)
{
	unsigned self = (unsigned)x.current;

	swapcontext(&x.thread[self].context, &x.scheduler);
}

static void thread_main(void)
{
	unsigned self = (unsigned)x.current;

	x.program->thread[self]();
	x.thread[self].next = NULL;
	setcontext(&x.scheduler);
}

static void resume(unsigned t)
{
	x.current = (int)t;
	swapcontext(&x.scheduler, &x.thread[t].context);
	x.current = -1;
}

uint64_t explorer_operate(struct operation *o)
{
	x.thread[x.current].next = o;
	to_scheduler();
	return o->result;
}

void explorer_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (!x.result.failed)
		vsnprintf(x.result.what, sizeof(x.result.what), format, args);
	va_end(args);
	x.result.failed = true;
	if (x.current >= 0)
		setcontext(&x.scheduler); /* the thread is not resumed */
}

/* ---- what a thread may call ---- */

void explorer_shared(void *at, size_t bytes, const char *name)
{
	assert(x.shares < SHARED);
	x.shared[x.shares].name = name;
	x.shared[x.shares].at = at;
	x.shared[x.shares].bytes = bytes;
	x.shared[x.shares++].shadow = world_alloc(bytes * sizeof(struct shadow), PAGE);
}

void explorer_name(const void *at, const char *name)
{
	assert(x.names < NAMES);
	x.named[x.names] = at;
	x.name[x.names++] = name;
}

static const char *name_of(const void *at)
{
	static char buffer[32];

	for (unsigned i = 0; i < x.names; i++)
		if (x.named[i] == at)
			return x.name[i];
	snprintf(buffer, sizeof(buffer), "%p", at);
	return buffer;
}

static const char *who(unsigned t)
{
	static const char *const number[] = {"thread 0", "thread 1", "thread 2", "thread 3"};

	return x.program->who[t] ? x.program->who[t] : number[t];
}

/* Which other thread accessed the byte without being ordered? -1: none. */
static int unordered(const struct shadow *s, bool write, const unsigned *knows)
{
	if (s->wrote && (int)s->writer != x.current && knows[s->writer] < s->wrote)
		return s->writer;
	for (int t = 0; write && t < EXPLORER_THREADS; t++)
		if (t != x.current && knows[t] < s->read[t])
			return t;
	return -1;
}

static void access_byte(struct shadow *s, const char *name, bool write, const unsigned *knows)
{
	/* An access is known if an event after it is: that with this number, or a later one. */
	uint8_t now = (uint8_t)(x.graph.thread[x.current].count + 1);
	int other = unordered(s, write, knows);

	if (other >= 0)
		explorer_fail("data race: %s of %s by %s, unordered with %s",
			write ? "write" : "read", name, who((unsigned)x.current),
			who((unsigned)other));
	if (write) {
		s->writer = (uint8_t)x.current;
		s->wrote = now;
	} else {
		s->read[x.current] = now;
	}
}

void explorer_plain(const void *start, size_t bytes, bool write)
{
	const uint8_t *at = start;

	if (x.current < 0)
		return;
	for (unsigned i = 0; i < x.shares; i++) {
		unsigned knows[EXPLORER_THREADS];

		if (at >= x.shared[i].at + x.shared[i].bytes || at + bytes <= x.shared[i].at)
			continue;
		assert(at >= x.shared[i].at && at + bytes <= x.shared[i].at + x.shared[i].bytes);
		for (unsigned t = 0; t < EXPLORER_THREADS; t++)
			knows[t] = graph_knows(&x.graph, (unsigned)x.current, t);
		for (size_t b = 0; b < bytes; b++)
			access_byte(&x.shared[i].shadow[at - x.shared[i].at + b], x.shared[i].name,
				write, knows);
	}
}

static uint64_t word(enum operation_kind kind, int order, void *at, uint64_t value, uint64_t await)
{
	struct operation o = {.kind = kind,
		.order = order,
		.at = at,
		.bytes = sizeof(uint64_t),
		.value = value,
		.await = await};

	return explorer_operate(&o);
}

void channel_send(uint64_t *channel)
{
	word(EXCHANGE, memory_order_acq_rel, channel, 1, 0);
}

void channel_wait(uint64_t *channel)
{
	word(EXCHANGE, memory_order_acq_rel, channel, 0, 1);
}

void explorer_await(const void *at, uint64_t least)
{
	word(LOAD, memory_order_relaxed, (void *)at, 0, least);
}

/* ---- graphs that were reached ---- */

static struct {
	unsigned __int128 *key;
	size_t room, used;
} seen;

static uint64_t mix(uint64_t h, uint64_t v)
{
	h += v + UINT64_C(0x9e3779b97f4a7c15);
	h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
	return h ^ h >> 31;
}

static unsigned label(const struct event *e)
{
	return e->thread * 256u + e->number;
}

static uint64_t hash(const struct graph *g, uint64_t h)
{
	const uint64_t seed = h;

	for (unsigned t = 0; t < EXPLORER_THREADS; t++)
		h = mix(h, g->thread[t].count);
	/* Sums, because the order in which events and places were added has no meaning. */
	for (unsigned e = 0; e < g->events; e++)
		if (g->event[e].thread != NOBODY && g->event[e].reads)
			h += mix(
				mix(seed, label(&g->event[e])), label(&g->event[g->event[e].from]));
	for (unsigned p = 0; p < g->places; p++) {
		uint64_t order = mix(seed, (uintptr_t)g->place[p].at);

		for (unsigned i = 1; i < g->place[p].count; i++)
			order = mix(order, label(&g->event[g->place[p].order[i]]));
		h += g->place[p].count > 1 ? order : 0;
	}
	return mix(h, seed);
}

static bool insert(unsigned __int128 key)
{
	size_t i = (size_t)key & (seen.room - 1);

	while (seen.key[i] && seen.key[i] != key)
		i = (i + 1) & (seen.room - 1);
	if (seen.key[i])
		return false;
	if (seen.used == SEEN_MOST - 1)
		return true;
	seen.key[i] = key;
	seen.used++;
	return true;
}

/* True if the graph is new. */
static bool reach(const struct graph *g)
{
	unsigned __int128 key =
		(unsigned __int128)hash(g, 0x1234567) << 64 | hash(g, UINT64_C(0x9876543210)) | 1;

	if (seen.used * 2 >= seen.room) {
		unsigned __int128 *old = seen.key;
		size_t room = seen.room;

		seen.room = room ? room * 2 : 1 << 16;
		seen.key = calloc(seen.room, sizeof(*seen.key));
		assert(seen.key);
		seen.used = 0;
		for (size_t i = 0; i < room; i++)
			if (old[i])
				insert(old[i]);
		free(old);
	}
	return insert(key);
}

/* ---- the search ---- */

struct snapshot {
	unsigned events, places, pages;
	set sc;
	struct thread_view thread[EXPLORER_THREADS];
	uint8_t *memory;
	struct place place[];
};

static struct snapshot *snapshot_make(void)
{
	const struct graph *g = &x.graph;
	struct snapshot *s = malloc(sizeof(*s) + g->places * sizeof(s->place[0]));

	assert(s);
	s->events = g->events;
	s->places = g->places;
	s->pages = dirties;
	s->sc = g->sc;
	memcpy(s->thread, g->thread, sizeof(s->thread));
	memcpy(s->place, g->place, g->places * sizeof(s->place[0]));
	s->memory = malloc((size_t)dirties * PAGE + 1);
	assert(s->memory);
	for (unsigned i = 0; i < dirties; i++)
		memcpy(s->memory + (size_t)i * PAGE, world + (size_t)dirty[i] * PAGE, PAGE);
	return s;
}

static void snapshot_restore(const struct snapshot *s)
{
	struct graph *g = &x.graph;

	g->events = s->events;
	g->places = s->places;
	g->sc = s->sc;
	memcpy(g->thread, s->thread, sizeof(s->thread));
	memcpy(g->place, s->place, s->places * sizeof(s->place[0]));
	for (unsigned i = 0; i < dirties; i++)
		memcpy(world + (size_t)dirty[i] * PAGE,
			i < s->pages ? s->memory + (size_t)i * PAGE
				     : pristine + (size_t)dirty[i] * PAGE,
			PAGE);
}

static void snapshot_free(struct snapshot *s)
{
	free(s->memory);
	free(s);
}

static const char *const order_name[] = {
	"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};

static void print_event(FILE *out, const struct event *e)
{
	const char *name = e->fence ? "" : name_of(x.graph.place[e->place].at);

	if (e->thread == NOBODY)
		return;
	fprintf(out, "  %-8s  ", who(e->thread));
	if (e->fence)
		fprintf(out, "fence");
	else if (e->reads && e->writes)
		fprintf(out, "%s: %lu → %lu", name, e->read, e->wrote);
	else if (e->reads)
		fprintf(out, "%s is %lu", name, e->read);
	else
		fprintf(out, "%s = %lu", name, e->wrote);
	fprintf(out, "  %s  %#lx\n", order_name[e->order], (unsigned long)e->site);
}

static void note_failure(void)
{
	FILE *out = fmemopen(x.failure, sizeof(x.failure), "w");

	assert(out);
	for (unsigned e = 0; e < x.graph.events; e++)
		print_event(out, &x.graph.event[e]);
	for (unsigned t = 0; t < EXPLORER_THREADS && x.program->thread[t]; t++) {
		const struct operation *o = x.thread[t].next;

		if (o && o->await)
			fprintf(out, "  %-8s  waits for %s\n", who(t), name_of(o->at));
	}
	fclose(out);
}

void explorer_print_failure(void)
{
	printf("%s%s\n", x.failure, x.result.what);
}

static void search(void);

/* Does the operation repeat the thread's last one, as a spin loop does? */
static bool repeats(unsigned t, const struct operation *o)
{
	const struct thread_view *view = &x.graph.thread[t];
	const struct event *last = &x.graph.event[view->last];

	return o->kind == LOAD && !o->await && o->site && view->count > 0 && !last->fence &&
	       last->reads && !last->writes && last->site == o->site &&
	       x.graph.place[last->place].at == o->at;
}

/* Runs thread @t to its next operation. */
static void advance(unsigned t)
{
	resume(t);
	while (!x.result.failed && x.thread[t].next && repeats(t, x.thread[t].next)) {
		x.thread[t].next->result = x.graph.event[x.graph.thread[t].last].read;
		resume(t);
	}
	if (!x.result.failed && x.thread[t].next && x.thread[t].next->kind != FENCE)
		graph_place(&x.graph, x.thread[t].next);
}

/* Tries all choices of thread @t. False: there is none. */
static bool try(unsigned t)
{
	struct choice choices[WRITES];
	unsigned n = graph_choices(&x.graph, t, x.thread[t].next, choices);
	bool any = false;

	if (n == 0)
		return false;

	struct snapshot *s = snapshot_make();

	for (unsigned i = 0; i < n && !x.result.failed && !x.result.stopped; i++) {
		if (graph_add(&x.graph, t, x.thread[t].next, choices[i])) {
			any = true;
			advance(t);
			if (x.result.failed)
				note_failure();
			else
				search();
		}
		snapshot_restore(s);
	}
	snapshot_free(s);
	return any;
}

static void end_execution(void)
{
	x.result.executions++;
	for (unsigned t = 0; t < EXPLORER_THREADS && x.program->thread[t]; t++)
		if (x.thread[t].next && !x.program->serves[t])
			explorer_fail("asleep for ever: %s", who(t));
	if (!x.result.failed && x.program->end)
		x.program->end();
	if (x.result.failed)
		note_failure();
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void search(void)
{
	bool any = false;

	if (!reach(&x.graph))
		return;
	if ((++x.result.states & 1023) == 0 && x.deadline > 0 && seconds() > x.deadline)
		x.result.stopped = true;
	for (unsigned t = 0; t < EXPLORER_THREADS && x.program->thread[t]; t++) {
		const struct operation *o = x.thread[t].next;

		if (o && (o->kind == STORE || o->kind == FENCE)) {
			try(t);
			return;
		}
	}
	for (unsigned t = 0; t < EXPLORER_THREADS && x.program->thread[t]; t++)
		if (x.thread[t].next && try(t))
			any = true;
	if (!any && !x.result.failed && !x.result.stopped)
		end_execution();
}

struct exploration explore(const struct program *program, double limit_s)
{
	x.program = program;
	x.graph = (struct graph){0};
	x.names = x.shares = 0;
	x.result = (struct exploration){0};
	x.deadline = limit_s > 0 ? seconds() + limit_s : 0;
	free(seen.key);
	memset(&seen, 0, sizeof(seen));
	world_make();
	x.thread = world_alloc(EXPLORER_THREADS * sizeof(*x.thread), PAGE);
	if (program->setup)
		program->setup();
	for (unsigned t = 0; t < EXPLORER_THREADS && program->thread[t]; t++) {
		getcontext(&x.thread[t].context);
		x.thread[t].context.uc_stack.ss_sp = world_alloc(STACK, PAGE);
		x.thread[t].context.uc_stack.ss_size = STACK;
		makecontext(&x.thread[t].context, thread_main, 0);
	}
	world_track();
	for (unsigned t = 0; t < EXPLORER_THREADS && program->thread[t]; t++)
		if (!x.result.failed)
			advance(t);
	if (x.result.failed)
		note_failure();
	else
		search();
	return x.result;
}
