/* The disks of nodes: descriptors of processes, faults, and power cuts by chance. */
#include "tests/disk/calls.h"
#include "tests/sim/node.h"

#include <errno.h>

static uint64_t injected_errors;

void *disk_memory(size_t n)
{
	void *at = __real_calloc(1, n);

	CHECK(at);
	return at;
}

void disk_memory_free(void *at)
{
	__real_free(at);
}

struct disk *disk_here(void)
{
	return fiber_proc()->node->disk;
}

/* A slow call ends when the fault does. */
static void slow_call(const struct disk_faults *faults)
{
	int64_t until = fiber_now + (int64_t)draw(chance(10) ? 30 * SECOND : 300 * MILLI);

	while (fiber_now < until && faults->slow > 0)
		fiber_sleep(until - fiber_now < SECOND ? until - fiber_now : SECOND);
}

/* A call takes a while, and may fail. */
bool call_begins(const char *call, const char *path, bool writes)
{
	const struct disk_faults *faults = &fiber_proc()->node->disk_faults;

	(void)call, (void)path;
	system_call();
	if (chance(faults->slow) && fiber_current)
		slow_call(faults);
	if (writes && chance(faults->enospc))
		errno = ENOSPC;
	else if (chance(faults->eio))
		errno = EIO;
	else
		return false;
	injected_errors++;
	return true;
}

int call_ends(int result)
{
	return result;
}

size_t call_takes(size_t n, bool writes)
{
	(void)writes;
	return n > 1 && chance(4) ? 1 + draw(n) : n; /* some are short */
}

struct disk_file *disk_file_of(int fd)
{
	struct file *f = fd_get(fd);

	CHECK(!f || f->kind == FILE_DISK);
	return f ? f->of : NULL;
}

static void closed(struct file *f)
{
	disk_file_end(f->of);
	__real_free(f->of);
}

int disk_file_add(struct disk_inode *inode)
{
	struct proc *p = fiber_proc();
	struct disk_file *file = disk_memory(sizeof(*file));

	disk_file_begin(file, inode);
	return fd_add(p, file_new(FILE_DISK, file, closed));
}

uint64_t disk_injected(void)
{
	return injected_errors;
}

static unsigned by_chance(void *none, unsigned n)
{
	(void)none;
	return (unsigned)draw(n);
}

void disk_power_cut(struct disk *disk)
{
	disk_cut(disk, by_chance, NULL);
}

ssize_t disk_peek(const struct disk *disk, const char *path, void *bytes, size_t capacity)
{
	const struct disk_inode *i = disk_find(disk, path);

	if (!i || i->directory || i->now->n > capacity)
		return -1;
	memcpy(bytes, i->now->at, i->now->n);
	return (ssize_t)i->now->n;
}
