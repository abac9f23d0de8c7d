/*
 * Finds cursors in checkpoints by their first bytes. A cursor may be there as it is, as the text of
 * a pickle (its bytes as UTF-8), or in hex. The files are mapped.
 */
#include "client/ctl/common/error.h"
#include "client/ctl/offline/cursor.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct search {
	struct cursor_scan *scan;
	const char *path;
	const unsigned char *bytes; /* [n] the file, mapped */
	size_t n;
	bool failed; /* an error was printed */
	unsigned char unpacked[LIMIT_CURSOR_BYTES];
};

/* ---- the forms of a cursor ---- */

/* Each decodes the bytes at @from, up to a byte that does not belong to the form, to @to
 * ([@most]). Returns their number. */
typedef size_t unpack_form(const unsigned char *from, size_t n, unsigned char *to, size_t most);

static size_t as_it_is(const unsigned char *from, size_t n, unsigned char *to, size_t most)
{
	n = n < most ? n : most;
	memcpy(to, from, n);
	return n;
}

/* pickle's protocol 2 stores bytes as a text of U+0000 to U+00FF. */
static size_t from_utf8(const unsigned char *from, size_t n, unsigned char *to, size_t most)
{
	size_t used = 0;

	for (size_t i = 0; i < n && used < most; i++) {
		if (from[i] < 0x80) {
			to[used++] = from[i];
			continue;
		}
		if (i + 1 == n || (from[i] & 0xfe) != 0xc2 || (from[i + 1] & 0xc0) != 0x80)
			break;
		to[used++] = (unsigned char)(from[i] << 6 | (from[i + 1] & 0x3f));
		i++;
	}
	return used;
}

static size_t from_hex(const unsigned char *from, size_t n, unsigned char *to, size_t most)
{
	static const char digits[] = "0123456789abcdef";
	size_t used = 0;

	for (; 2 * used + 1 < n && used < most; used++) {
		const char *high = memchr(digits, from[2 * used], 16),
			   *low = memchr(digits, from[2 * used + 1], 16);

		if (!high || !low)
			break;
		to[used] = (unsigned char)((high - digits) << 4 | (low - digits));
	}
	return used;
}

/* ---- what was found ---- */

/* Takes ownership of @cursor, whose bytes are in s->unpacked. */
static void keep(struct search *s, struct cursor *cursor, uint64_t offset)
{
	struct cursor_scan *scan = s->scan;
	struct cursor_found found = {.cursor = *cursor, .offset = offset, .places = 1};

	memcpy(&found.sum, s->unpacked + 8, sizeof(found.sum));
	for (size_t i = 0; i < scan->n; i++)
		if (scan->found[i].sum == found.sum) {
			scan->found[i].places++;
			cursor_free(cursor);
			return;
		}
	found.path = strdup(s->path);
	if (!found.path) {
		ctl_fail(PHRASE_MEMORY);
	} else if (ctl_grow((void **)&scan->found, scan->n, sizeof(*scan->found))) {
		scan->found[scan->n++] = found;
		return;
	}
	free(found.path);
	cursor_free(cursor);
	s->failed = true;
}

enum verdict { NONE, DAMAGED, FOUND };

/* Keeps the cursor that is at @at in this form. The magic alone is common in some files, and to
 * unpack all is slow. */
static enum verdict look(struct search *s, unpack_form *unpack, size_t at)
{
	size_t n = unpack(s->bytes + at, s->n - at, s->unpacked, CURSOR_HEAD_BYTES);
	struct cursor cursor;
	struct fault fault;

	if (!cursor_begins(s->unpacked, n))
		return NONE;
	n = unpack(s->bytes + at, s->n - at, s->unpacked, LIMIT_CURSOR_BYTES);
	n = cursor_length(s->unpacked, n);
	if (n == 0)
		return NONE;
	if (!cursor_decode(&cursor, s->unpacked, n, &fault))
		return DAMAGED;
	keep(s, &cursor, at);
	return FOUND;
}

static void look_at_bytes(struct search *s, size_t at)
{
	enum verdict verdict = look(s, as_it_is, at);

	if (verdict != FOUND && look(s, from_utf8, at) != FOUND)
		s->scan->damaged += verdict == DAMAGED;
}

static void search_for(struct search *s, const char *magic, bool hex)
{
	const unsigned char *at = s->bytes, *end = s->bytes + s->n;

	for (; !s->failed && (at = memmem(at, (size_t)(end - at), magic, strlen(magic))); at++)
		if (hex)
			look(s, from_hex, (size_t)(at - s->bytes));
		else
			look_at_bytes(s, (size_t)(at - s->bytes));
}

/* ---- files ---- */

static const char *mapped; /* the name of the file */

/* A read of the mapping failed. None is within malloc() or stdio, so both may be used here. */
static void on_bus_error(int number)
{
	(void)number;
	ctl_fail("%s: became shorter, or cannot be read", mapped);
	_exit(CTL_FAILED);
}

static bool search_file(struct search *s, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	void *bytes = NULL;
	struct stat st;
	bool done = fd >= 0 && fstat(fd, &st) == 0;

	if (done && st.st_size > 0)
		bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (!done || bytes == MAP_FAILED) {
		ctl_fail("%s: %s", path, strerror(errno));
		done = false;
	} else if (bytes) {
		madvise(bytes, (size_t)st.st_size, MADV_SEQUENTIAL);
		s->path = mapped = path;
		s->bytes = bytes;
		s->n = (size_t)st.st_size;
		search_for(s, "tkdc", false);
		search_for(s, "746b6463", true);
		munmap(bytes, (size_t)st.st_size);
	}
	if (fd >= 0)
		close(fd);
	s->scan->files++;
	s->scan->bytes += done ? (uint64_t)st.st_size : 0;
	return done && !s->failed;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

bool cursor_scan(struct cursor_scan *scan, const char *path)
{
	struct search *s = calloc(1, sizeof(*s));
	char *copy = strdup(path), *paths[] = {copy, NULL};
	FTS *tree =
		copy ? fts_open(paths, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name) : NULL;
	bool done = s && tree;

	*scan = (struct cursor_scan){0};
	if (!done)
		ctl_fail("%s: %s", path, strerror(errno));
	else
		s->scan = scan;
	signal(SIGBUS, on_bus_error);
	for (FTSENT *e; done && (e = fts_read(tree));) {
		if (e->fts_info == FTS_F)
			done = search_file(s, e->fts_accpath);
		else if (e->fts_info == FTS_ERR || e->fts_info == FTS_DNR || e->fts_info == FTS_NS)
			done = ctl_fail("%s: %s", e->fts_path, strerror(e->fts_errno)) == CTL_OK;
	}
	if (tree)
		fts_close(tree);
	free(copy);
	free(s);
	return done;
}

void cursor_scan_free(struct cursor_scan *scan)
{
	for (size_t i = 0; i < scan->n; i++) {
		cursor_free(&scan->found[i].cursor);
		free(scan->found[i].path);
	}
	free(scan->found);
	*scan = (struct cursor_scan){0};
}
