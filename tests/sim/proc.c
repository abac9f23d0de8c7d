/* Processes, and the C library's calls for memory, threads, clocks and descriptors. */
#include "tests/sim/world.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x626c6f63 };

struct block {
	struct block *next, **at;
	struct proc *proc; /* NULL: the simulator's */
	uint32_t magic;
	uint32_t n;
};

_Static_assert(sizeof(struct block) == 32, "keeps the alignment of malloc()");

int64_t world_clock_offset; /* of the clock that people set */
static int last_pid = 100;
static struct proc *procs;

struct proc *proc_new(const char *name, uid_t uid, struct node *node)
{
	struct proc *p = __real_calloc(1, sizeof(*p));

	CHECK(p);
	snprintf(p->name, sizeof(p->name), "%s", name);
	p->pid = ++last_pid;
	p->uid = uid;
	p->node = node;
	p->alive = true;
	p->next = procs;
	procs = p;
	return p;
}

void system_call(void)
{
	if (!fiber_current)
		return;
	fiber_now += 50 + (int64_t)draw(400);
	if (chance(6))
		fiber_yield();
}

/* ---- descriptors ---- */

struct file *file_new(enum file_kind kind, void *of, void (*close)(struct file *file))
{
	struct file *f = __real_calloc(1, sizeof(*f));

	CHECK(f);
	*f = (struct file){.kind = kind, .refs = 1, .of = of, .close = close};
	return f;
}

void file_put(struct file *f)
{
	CHECK(f->refs > 0);
	if (--f->refs > 0)
		return;
	if (f->close)
		f->close(f);
	__real_free(f);
}

int fd_add(struct proc *p, struct file *f)
{
	for (int i = 0; i < FDS; i++)
		if (!p->fd[i]) {
			p->fd[i] = f;
			return FD_FIRST + i;
		}
	file_put(f);
	errno = EMFILE;
	return -1;
}

struct file *fd_get(int fd)
{
	struct proc *p = fiber_proc();

	if (p && fd >= FD_FIRST && fd < FD_FIRST + FDS && p->fd[fd - FD_FIRST])
		return p->fd[fd - FD_FIRST];
	CHECK(fd < 0 || !"a descriptor that is not open");
	errno = EBADF;
	return NULL;
}

unsigned fd_count(const struct proc *p)
{
	unsigned n = 0;

	for (int i = 0; i < FDS; i++)
		n += p->fd[i] != NULL;
	return n;
}

int __wrap_close(int fd)
{
	system_call();
	struct file *f = fd_get(fd);

	if (!f)
		return -1;
	fiber_proc()->fd[fd - FD_FIRST] = NULL;
	file_put(f);
	return 0;
}

bool file_readable(const struct file *f)
{
	if (f->kind == FILE_PROCESS)
		return !((const struct proc *)f->of)->alive;
	return (f->kind == FILE_SOCKET || f->kind == FILE_LISTENER) && socket_readable(f);
}

void proc_poke(struct proc *p)
{
	fiber_wake(p);
}

static void process_closed(struct file *f)
{
	struct proc *p = f->of;

	p->watchers--;
	if (p->gone && p->watchers == 0)
		__real_free(p);
}

int proc_opened(struct proc *of)
{
	of->watchers++;
	return fd_add(fiber_proc(), file_new(FILE_PROCESS, of, process_closed));
}

/* ---- death ---- */

bool world_is_proc(const void *proc)
{
	const struct proc *p = procs;

	while (p && p != proc)
		p = p->next;
	return p;
}

void world_poke_all(void)
{
	for (struct proc *p = procs; p; p = p->next)
		fiber_wake(p);
}

/* Frees its memory. */
static void free_later(void *proc)
{
	struct proc *p = proc;

	while (p->blocks) {
		struct block *b = p->blocks;

		p->blocks = b->next;
		__real_free(b);
	}
	if (p->watchers == 0)
		__real_free(p);
	else
		p->gone = true; /* freed with the last pidfd */
}

static void forget(const struct proc *p)
{
	struct proc **at = &procs;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
}

void proc_kill(struct proc *p)
{
	if (!p->alive)
		return;
	p->alive = false;
	for (int i = 0; i < FDS; i++)
		if (p->fd[i]) {
			struct file *f = p->fd[i];

			p->fd[i] = NULL;
			file_put(f);
		}
	rings_of_dead(p);
	loops_free(p);
	forget(p);
	world_poke_all();
	timer_at(fiber_now, free_later, p);
	if (p->ended)
		p->ended(p);
	fiber_kill(p);
}

/* ---- memory ---- */

static void *own(struct block *b, size_t n)
{
	struct proc *p = fiber_proc();

	if (!b)
		return NULL;
	CHECK(n < UINT32_MAX);
	*b = (struct block){.proc = p, .magic = MAGIC, .n = (uint32_t)n};
	if (p) {
		b->next = p->blocks;
		b->at = &p->blocks;
		if (b->next)
			b->next->at = &b->next;
		p->blocks = b;
		p->bytes += n;
	}
	return b + 1;
}

static void disown(struct block *b)
{
	if (!b->proc)
		return;
	b->proc->bytes -= b->n;
	*b->at = b->next;
	if (b->next)
		b->next->at = b->at;
}

void *__wrap_malloc(size_t n)
{
	return own(__real_malloc(sizeof(struct block) + n), n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return own(__real_calloc(1, sizeof(struct block) + n * size), n * size);
}

/* Memory that the C library allocated itself has no header. */
#ifdef ASAN
__attribute__((no_sanitize("address")))
#endif
static struct block *
block_of(void *at)
{
	struct block *b = (struct block *)at - 1;

	return b->magic == MAGIC ? b : NULL;
}

void __wrap_free(void *at)
{
	struct block *b = at ? block_of(at) : NULL;

	if (!b) {
		__real_free(at);
		return;
	}
	disown(b);
	b->magic = 0;
	memset(at, 0xdb, b->n); /* a later use fails */
	__real_free(b);
}

void *__wrap_realloc(void *at, size_t n)
{
	void *new = __wrap_malloc(n);

	if (new &&at) {
		struct block *b = block_of(at);

		CHECK(b);
		memcpy(new, at, b->n < n ? b->n : n);
		__wrap_free(at);
	}
	return new;
}

char *__wrap_strdup(const char *text)
{
	size_t n = strlen(text) + 1;
	char *new = __wrap_malloc(n);

	return new ? memcpy(new, text, n) : NULL;
}

/* ---- threads ---- */

struct thread {
	void *(*main)(void *);
	void *argument;
	bool over, detached;
};

static void thread_main(void *argument)
{
	struct thread *t = argument;

	t->main(t->argument);
	t->over = true;
	if (t->detached)
		__wrap_free(t);
	else
		fiber_wake(t);
}

int __wrap_pthread_create(
	pthread_t *id, const pthread_attr_t *attr, void *(*main)(void *), void *argument)
{
	struct thread *t = __wrap_malloc(sizeof(*t));

	(void)attr;
	*t = (struct thread){main, argument, false, false};
	*id = (pthread_t)t;
	fiber_new(fiber_proc(), thread_main, t);
	return 0;
}

int __wrap_pthread_join(pthread_t id, void **result)
{
	struct thread *t = (struct thread *)id;

	(void)result;
	while (!t->over)
		fiber_block(t, NEVER);
	__wrap_free(t);
	return 0;
}

int __wrap_pthread_detach(pthread_t id)
{
	((struct thread *)id)->detached = true;
	return 0;
}

int __wrap_pthread_setname_np(pthread_t id, const char *name)
{
	(void)id, (void)name;
	return 0;
}

/* A mutex's first word is its owner. */
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	struct fiber **owner = (struct fiber **)m;

	if (!fiber_current)
		return 0;
	while (*owner)
		fiber_block(m, NEVER);
	*owner = fiber_current;
	return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
	struct fiber **owner = (struct fiber **)m;

	if (!fiber_current)
		return 0;
	CHECK(*owner == fiber_current);
	*owner = NULL;
	fiber_wake(m);
	if (chance(8))
		fiber_yield();
	return 0;
}

int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr)
{
	(void)attr;
	memset(m, 0, sizeof(*m));
	return 0;
}

/* No other fiber runs between the release of the mutex and the wait. */
static void wait_for(pthread_cond_t *c, pthread_mutex_t *m, int64_t until)
{
	*(struct fiber **)m = NULL;
	fiber_wake(m);
	fiber_block(c, until);
	__wrap_pthread_mutex_lock(m);
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
	wait_for(c, m, NEVER);
	return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *to)
{
	int64_t until = to->tv_sec * SECOND + to->tv_nsec;

	wait_for(c, m, until);
	return fiber_now >= until ? ETIMEDOUT : 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *c)
{
	fiber_wake(c);
	return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *c)
{
	fiber_wake(c);
	return 0;
}

/* ---- clocks ---- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
	static int64_t cpu;
	int64_t ns = fiber_now;

	if (clock == CLOCK_THREAD_CPUTIME_ID)
		ns = cpu += 2 * MICRO;
	else if (clock == CLOCK_REALTIME)
		ns += world_clock_offset;
	*t = (struct timespec){ns / SECOND, ns % SECOND};
	if (clock == CLOCK_MONOTONIC)
		system_call();
	return 0;
}

time_t __wrap_time(time_t *to)
{
	time_t now = (fiber_now + world_clock_offset) / SECOND;

	if (to)
		*to = now;
	return now;
}

unsigned __wrap_sleep(unsigned seconds)
{
	fiber_sleep(seconds * SECOND);
	return 0;
}

int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
	(void)left;
	fiber_sleep(t->tv_sec * SECOND + t->tv_nsec);
	return 0;
}

/* ---- identity ---- */

uid_t __wrap_geteuid(void)
{
	return fiber_current ? fiber_proc()->uid : 0;
}

uid_t __wrap_getuid(void)
{
	return __wrap_geteuid();
}

pid_t __wrap_getpid(void)
{
	return fiber_proc()->pid;
}

int __wrap_gethostname(char *name, size_t n)
{
	snprintf(name, n, "host");
	return 0;
}

ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags)
{
	(void)flags;
	for (size_t i = 0; i < n; i++)
		((uint8_t *)to)[i] = (uint8_t)draw(256);
	return (ssize_t)n;
}

/* client/lib/process.c keeps it in a page of the process. */
uint64_t __wrap_process_number(void)
{
	struct proc *p = fiber_proc();

	if (p->token == 0)
		p->token = 1 + draw(UINT64_MAX - 1);
	return p->token;
}

long __wrap_syscall(long number, ...)
{
	(void)number;
	errno = ENOSYS;
	return -1;
}

__attribute__((noreturn)) void __wrap__exit(int status);
void __wrap__exit(int status)
{
	(void)status;
	proc_kill(fiber_proc());
	abort();
}
