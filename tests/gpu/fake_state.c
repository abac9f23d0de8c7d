/* The state of the fake driver: mapped regions, current contexts, queued work. */
#include "tests/gpu/fake_state.h"

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
struct context primary[DEVICES];
struct region host[REGIONS], memory[REGIONS];
int faults, hosts, memories, registrations, captures, spoiled, held;
pid_t process;
_Thread_local struct context *stack[DEPTH];
_Thread_local int depth, capture_mode;

void fault(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "fake libcuda: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	faults++;
}

int number(const char *name, int otherwise)
{
	const char *value = getenv(name);

	return value && value[0] ? atoi(value) : otherwise;
}

int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- mapped memory ---- */

/* The inode of the file that the whole range maps; 1: anonymous memory, 0: not all is mapped. */
unsigned long mapped(uintptr_t at, size_t bytes, bool writable)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	uintptr_t reached = at, begin, end;
	unsigned long inode, found = 0;
	char mode[8], line[512];

	while (maps && reached < at + bytes && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s %*x %*s %lu", &begin, &end, mode, &inode) != 4)
			continue;
		if (begin <= reached && reached < end && (!writable || mode[1] == 'w')) {
			found = inode ? inode : 1;
			reached = end;
		}
	}
	if (maps)
		fclose(maps);
	return reached >= at + bytes ? found : 0;
}

struct region *find(struct region *list, int n, uintptr_t at, size_t bytes)
{
	for (int i = 0; i < n; i++)
		if (list[i].at < at + bytes && at < list[i].at + list[i].bytes)
			return &list[i];
	return NULL;
}

bool within(struct region *list, int n, uintptr_t at, size_t bytes)
{
	struct region *r = find(list, n, at, bytes);

	return r && r->at <= at && at + bytes <= r->at + r->bytes;
}

void check_regions(const char *when)
{
	for (int i = 0; i < hosts; i++)
		if (mapped(host[i].at, host[i].bytes, true) != host[i].inode) {
			fault("%zu bytes at %#" PRIxPTR
			      " were unmapped while registered (seen at %s)",
				host[i].bytes, host[i].at, when);
			host[i] = host[--hosts];
			i--;
		}
}

__attribute__((destructor)) static void at_exit(void)
{
	if (process != getpid())
		return;
	check_regions("exit");
	if (faults > 0)
		_exit(99);
}

/* ---- entering ---- */

/* Locks the mutex and returns the current context; or returns NULL and sets *error. */
struct context *enter(int *error, const char *name, bool disturbs)
{
	pthread_mutex_lock(&mutex);
	*error = OK;
	if (process == 0)
		*error = NOT_INITIALIZED;
	else if (process != getpid()) {
		fault("%s in a child of the process that began", name);
		*error = NOT_INITIALIZED;
	} else if (depth == 0 || !stack[depth - 1]) {
		fault("%s without a current context", name);
		*error = INVALID_CONTEXT;
	} else if (disturbs && captures > 0 && capture_mode != RELAXED) {
		spoiled = 1;
		*error = CAPTURE_UNSUPPORTED;
	}
	if (*error == OK)
		return stack[depth - 1];
	pthread_mutex_unlock(&mutex);
	return NULL;
}

int leave(int error)
{
	pthread_mutex_unlock(&mutex);
	return error;
}

/* ---- streams ---- */

struct stream *stream_of(struct context *c, void *handle)
{
	for (int i = 0; i < STREAMS; i++)
		if (c->stream[i].used && (handle ? handle == &c->stream[i] : i == 0))
			return &c->stream[i];
	return NULL;
}

struct op *queue(struct stream *s, int kind)
{
	struct op *op = calloc(1, sizeof(*op));

	op->kind = kind;
	op->due_ns = now_ns() + number("FAKE_CUDA_DELAY_MS", 0) * INT64_C(1000000);
	*s->last = op;
	s->last = &op->next;
	return op;
}

static void copy_now(const struct op *op)
{
	uintptr_t from = (uintptr_t)op->from;

	if (op->staged)
		memcpy((void *)op->to, op->staged, op->bytes);
	else if (!within(host, hosts, from, op->bytes))
		fault("a copy from %#" PRIxPTR ", which was unregistered while the copy was queued",
			from);
	else if (!mapped(from, op->bytes, false))
		fault("a copy from %#" PRIxPTR ", which was unmapped while the copy was queued",
			from);
	else
		memcpy((void *)op->to, op->from, op->bytes);
}

static void do_one(struct stream *s)
{
	struct op *op = s->first;

	s->busy = true;
	if (op->kind == COPY)
		copy_now(op);
	if (op->kind == RECORD && op->recording == op->event->recording)
		op->event->waits--;
	if (op->kind == HOST) {
		pthread_mutex_unlock(&mutex);
		op->call(op->data);
		pthread_mutex_lock(&mutex);
	}
	s->busy = false;
	s->first = op->next;
	if (!s->first)
		s->last = &s->first;
	free(op->staged);
	free(op);
}

/* Does the due work of a stream. @all: also work that is not due yet. */
void advance(struct stream *s, bool all)
{
	while (s->first && !s->busy && (all || (!held && now_ns() >= s->first->due_ns))) {
		while (all && now_ns() < s->first->due_ns)
			usleep(200);
		do_one(s);
	}
}

void advance_all(struct context *c, bool all)
{
	for (int i = 0; i < STREAMS; i++)
		if (c->stream[i].used)
			advance(&c->stream[i], all);
}
