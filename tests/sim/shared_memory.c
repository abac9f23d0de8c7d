/* Memory that processes share, and the mapping of it. All processes see it at one address. */
#include "tests/disk/calls.h"
#include "tests/sim/world.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>

struct memory {
	size_t n;
	void *at;
	unsigned refs; /* its file and its views */
	int seals;
};

struct view {
	struct view *next;
	struct memory *memory;
	bool private, vacated;
};

static void memory_put(struct memory *m)
{
	CHECK(m->refs > 0);
	if (--m->refs > 0)
		return;
	if (m->at)
		__real_munmap(m->at, m->n);
	__real_free(m);
}

static void memory_closed(struct file *f)
{
	memory_put(f->of);
}

static void count_bytes(struct proc *p, const struct view *v, bool more)
{
	if (v->private || v->vacated)
		return;
	p->ring_bytes += more ? v->memory->n : -v->memory->n;
	CHECK(!more || p->ring_limit == 0 || p->ring_bytes <= grant_booked(p));
}

int __wrap_memfd_create(const char *name, unsigned flags)
{
	struct memory *m = __real_calloc(1, sizeof(*m));

	(void)name, (void)flags;
	system_call();
	CHECK(m);
	m->refs = 1;
	return fd_add(fiber_proc(), file_new(FILE_MEMORY, m, memory_closed));
}

int __wrap_ftruncate(int fd, off_t n)
{
	struct file *f = fd_get(fd);
	struct memory *m = f->of;

	CHECK(f->kind == FILE_MEMORY && !m->at && n > 0);
	m->n = (size_t)n;
	m->at = __real_mmap(NULL, m->n, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(m->at != MAP_FAILED);
	return 0;
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t n)
{
	(void)fd, (void)mode, (void)offset, (void)n;
	system_call();
	return 0;
}

static struct view *find(struct proc *p, const void *at)
{
	struct view *v = p->views;

	while (v && v->memory->at != at)
		v = v->next;
	return v;
}

static struct view *view_new(struct memory *m, bool private)
{
	struct proc *p = fiber_proc();
	struct view *v = __real_calloc(1, sizeof(*v));

	CHECK(v);
	*v = (struct view){.next = p->views, .memory = m, .private = private};
	p->views = v;
	count_bytes(p, v, true);
	return v;
}

void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
	if (!fiber_current)
		return __real_mmap(at, n, protection, flags, fd, offset);
	system_call();
	if (flags & MAP_FIXED) { /* ring_memory_vacate() */
		struct view *v = find(fiber_proc(), at);

		CHECK(v && v->memory->n == n);
		count_bytes(fiber_proc(), v, false);
		v->vacated = true;
		return at;
	}
	struct memory *m;

	if (fd >= 0) {
		struct file *f = fd_get(fd);

		m = f->of;
		CHECK(f->kind == FILE_MEMORY && m->n == n);
		m->refs++;
	} else {
		m = __real_calloc(1, sizeof(*m));
		CHECK(m);
		*m = (struct memory){.n = n, .refs = 1};
		m->at = __real_mmap(
			NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	return view_new(m, fd < 0)->memory->at;
}

static void view_end(struct proc *p, struct view **link)
{
	struct view *v = *link;

	*link = v->next;
	count_bytes(p, v, false);
	memory_put(v->memory);
	__real_free(v);
}

int __wrap_munmap(void *at, size_t n)
{
	if (!fiber_current)
		return __real_munmap(at, n);
	struct proc *p = fiber_proc();
	struct view **link = &p->views;

	while (*link && (*link)->memory->at != at)
		link = &(*link)->next;
	CHECK(*link && (*link)->memory->n == n);
	view_end(p, link);
	return 0;
}

int __wrap_madvise(void *at, size_t n, int advice)
{
	(void)at, (void)n, (void)advice;
	return 0;
}

void rings_of_dead(struct proc *p)
{
	while (p->views)
		view_end(p, &p->views);
	grants_of_dead(p);
}

bool ring_mapped(struct proc *p, const void *at, size_t n)
{
	for (struct view *v = p->views; v; v = v->next) {
		const char *begin = v->memory->at, *to = at;

		if (to >= begin && to + n <= begin + v->memory->n)
			return !v->vacated;
	}
	CHECK(!"a read into memory that the daemon does not have");
	return false;
}

/* ---- calls for memory and files alike ---- */

int __wrap_fcntl(int fd, int command, ...)
{
	struct file *f = fd_get(fd);
	va_list more;

	if (!f)
		return -1;
	va_start(more, command);
	struct memory *m = f->of;
	int result = 0;

	if (command == F_ADD_SEALS)
		m->seals |= va_arg(more, int);
	else if (command == F_GET_SEALS)
		result = m->seals;
	va_end(more);
	return result;
}

int __wrap_fstat(int fd, struct stat *st)
{
	struct file *f = fd_get(fd);

	if (!f)
		return -1;
	if (f->kind == FILE_DISK)
		return disk_file_stat(fd, st);
	*st = (struct stat){.st_size = (off_t)((const struct memory *)f->of)->n};
	return 0;
}
