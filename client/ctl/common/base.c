/* Messages and progress on stderr; time, memory and files. */
#include "client/ctl/common/ctl.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int ctl_fail(const char *text, ...)
{
	char line[2 * PATH_MAX];
	va_list args;

	va_start(args, text);
	vsnprintf(line, sizeof(line), text, args);
	va_end(args);
	fprintf(stderr, "tokctl: %s\n", fault_line(line));
	return CTL_FAILED;
}

uint64_t ctl_clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

bool ctl_grow(void **array, size_t n, size_t bytes)
{
	void *more = *array;

	if ((n & (n - 1)) == 0) /* it is full at 0, 1, 2, 4, … items */
		more = realloc(*array, (n ? 2 * n : 1) * bytes);
	if (!more)
		return ctl_error(PHRASE_MEMORY);
	*array = more;
	return true;
}

/* ---- progress ---- */

enum { EVERY_MS = 100 }; /* a redraw, by the thread that adds work when it is due */

static struct {
	const char *what, *unit;
	uint64_t total;
	_Atomic uint64_t done, next_ms; /* next_ms: of the next redraw */
} progress;

void ctl_progress_begin(const char *what, const char *unit, uint64_t total)
{
	progress.what = what;
	progress.unit = unit;
	progress.total = total;
	progress.done = 0;
	progress.next_ms = isatty(STDERR_FILENO) ? ctl_clock_ms() + EVERY_MS : UINT64_MAX;
}

void ctl_progress_add(uint64_t n)
{
	double done = (double)(atomic_fetch_add(&progress.done, n) + n);
	uint64_t now = ctl_clock_ms(), next = progress.next_ms;

	/* The thread that advances next_ms draws. */
	if (now < next || !atomic_compare_exchange_strong(&progress.next_ms, &next, now + EVERY_MS))
		return;
	dprintf(STDERR_FILENO, "\r\033[K%.120s  %s", progress.what, si(done, progress.unit).text);
	if (progress.total > 0)
		dprintf(STDERR_FILENO, " of %s, %.0f %%",
			si((double)progress.total, progress.unit).text,
			100 * done / (double)progress.total);
}

void ctl_progress_end(void)
{
	if (progress.next_ms < UINT64_MAX)
		dprintf(STDERR_FILENO, "\r\033[K");
}

/* ---- files that replace others ---- */

static int open_parent(const char *path, int flags)
{
	const char *slash = strrchr(path, '/');
	char parent[PATH_MAX];

	snprintf(parent, sizeof(parent), "%.*s", slash ? (int)(slash - path) + 1 : 1,
		slash ? path : ".");
	return open(parent, flags | O_CLOEXEC, 0666);
}

bool ctl_file_sync_parent(const char *path)
{
	int fd = open_parent(path, O_RDONLY | O_DIRECTORY);
	bool done = fd >= 0 && fsync(fd) == 0;

	if (fd >= 0)
		close(fd);
	return done;
}

bool ctl_file_begin(struct ctl_file *f, const char *path)
{
	struct stat st;

	*f = (struct ctl_file){.path = path};
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return ctl_error("%s: " PHRASE_NOT_FILE "; write to another path", path);
	snprintf(f->part, sizeof(f->part), "%s.%ld", path, (long)getpid());
	/* Without a name: an interrupt leaves nothing, and a walk does not meet it. */
	int fd = open_parent(path, O_TMPFILE | O_WRONLY);

	f->unnamed = fd >= 0;
	f->to = f->unnamed ? fdopen(fd, "w") : fopen(f->part, "wxe");
	if (f->to)
		return true;
	return ctl_error("%s: cannot be written: %s", path, strerror(errno));
}

bool ctl_file_end(struct ctl_file *f, bool keep)
{
	char unnamed[40];
	bool done = keep && fflush(f->to) == 0 && !ferror(f->to) && fsync(fileno(f->to)) == 0;

	snprintf(unnamed, sizeof(unnamed), "/proc/self/fd/%d", fileno(f->to));
	if (done && f->unnamed)
		done = linkat(AT_FDCWD, unnamed, AT_FDCWD, f->part, AT_SYMLINK_FOLLOW) == 0;
	done = done && rename(f->part, f->path) == 0 && ctl_file_sync_parent(f->path);
	if (keep && !done)
		ctl_fail("%s: cannot be written: %s", f->path, strerror(errno));
	if (!done)
		unlink(f->part);
	fclose(f->to);
	return done;
}

bool ctl_file_write(const char *path, const void *bytes, size_t n)
{
	struct ctl_file file;

	if (!ctl_file_begin(&file, path))
		return false;
	fwrite(bytes, 1, n, file.to);
	return ctl_file_end(&file, true);
}

/* ---- mapped files ---- */

static struct {
	const char *path;
	void *at;
	size_t bytes; /* 0: none */
} mapped;

static void on_bus_error(int number)
{
	(void)number;
	ctl_fail("%s: became shorter, or cannot be read", mapped.path);
	_exit(CTL_FAILED);
}

const void *ctl_map(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	void *at = MAP_FAILED;
	struct stat st;

	if (mapped.bytes > 0)
		munmap(mapped.at, mapped.bytes);
	mapped.bytes = 0;
	if (fd >= 0 && fstat(fd, &st) == 0) {
		*bytes = (size_t)st.st_size;
		if (S_ISDIR(st.st_mode))
			errno = EISDIR;
		else
			at = *bytes ? mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0) : &mapped;
	}
	if (at == MAP_FAILED)
		ctl_fail("%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	if (at == MAP_FAILED)
		return NULL;
	mapped.path = path;
	mapped.at = at;
	mapped.bytes = *bytes;
	signal(SIGBUS, on_bus_error);
	return at;
}

/* ---- cursor files ---- */

bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct cursor *begin)
{
	struct fault fault;
	size_t n;
	const void *bytes = ctl_map(path, &n);

	if (!bytes)
		return false;
	if (!cursor_decode(cursor, bytes, n, &fault))
		return ctl_error("%s: %s: %s%s", path, fault.field, fault.text,
			n > LIMIT_CURSOR_BYTES
				? "; of a checkpoint, write state_dict()[\"cursor\"] to a file"
				: "");
	return !begin || cursor_belongs(cursor, begin, &fault) ||
	       ctl_error("%s: is not a cursor of stream %s: %s: %s", path, begin->stream,
		       fault.field, fault.text);
}
