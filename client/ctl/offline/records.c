/* Record files: their sections, and the orders in which their rows were served. */
#include "client/ctl/common/error.h"
#include "client/ctl/offline/proof.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool no_memory(void)
{
	ctl_fail(PHRASE_MEMORY);
	return false;
}

/* ---- files ---- */

static bool add_file(struct records *r, const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0) {
		ctl_fail("%s: %s", path, strerror(errno));
		return false;
	}
	if (!S_ISREG(st.st_mode)) {
		ctl_fail("%s: not a regular file, so not a record", path);
		return false;
	}
	if (!ctl_grow((void **)&r->file, r->files, sizeof(*r->file)))
		return false;

	char *copy = strdup(path);

	if (!copy)
		return no_memory();
	r->file[r->files++] = (struct record_file){copy, st.st_dev, st.st_ino};
	return true;
}

static int is_record(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return e->d_name[0] != '.' && n > 7 && strcmp(e->d_name + n - 7, ".record") == 0;
}

static bool add_directory(struct records *r, const char *path)
{
	struct dirent **entry = NULL;
	int n = scandir(path, &entry, is_record, alphasort);
	bool done = n > 0;

	if (n <= 0)
		ctl_fail("%s: %s", path, n < 0 ? strerror(errno) : "contains no *.record files");
	for (int i = 0; i < n; i++) {
		char *whole = NULL;

		if (done && asprintf(&whole, "%s/%s", path, entry[i]->d_name) < 0)
			done = no_memory();
		done = done && add_file(r, whole);
		free(whole);
		free(entry[i]);
	}
	free(entry);
	return done;
}

bool records_add(struct records *r, const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? add_directory(r, path)
							   : add_file(r, path);
}

static int by_inode(const void *a, const void *b)
{
	const struct record_file *x = a, *y = b;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct record_file *)a)->path, ((const struct record_file *)b)->path);
}

/* Drops files that were named twice, and sorts the files by path. */
static void drop_repeated(struct records *r)
{
	size_t kept = 0;

	qsort(r->file, r->files, sizeof(*r->file), by_inode);
	for (size_t i = 0; i < r->files; i++)
		if (kept > 0 && by_inode(&r->file[kept - 1], &r->file[i]) == 0)
			free(r->file[i].path);
		else
			r->file[kept++] = r->file[i];
	r->files = kept;
	qsort(r->file, r->files, sizeof(*r->file), by_path);
}

size_t records_runs(const struct records *r, char *names, size_t bytes)
{
	static const char form[] = "([^/]+)\\.[0-9]+-[0-9]+\\.[0-9]+-[0-9]+\\.record$";
	char run[NAME_MAX + 1], last[NAME_MAX + 1] = "";
	size_t runs = 0, used = 0;
	regmatch_t match[2];
	regex_t parser;

	*names = 0;
	if (regcomp(&parser, form, REG_EXTENDED) != 0)
		return 0;
	/* The files are sorted by path, so in a directory those of a run follow each other. */
	for (size_t i = 0; i < r->files; i++) {
		const char *path = r->file[i].path;

		if (regexec(&parser, path, 2, match, 0) != 0)
			continue;
		snprintf(run, sizeof(run), "%.*s", (int)(match[1].rm_eo - match[1].rm_so),
			path + match[1].rm_so);
		if (!wire_name_ok(run) || strcmp(run, last) == 0)
			continue;
		memcpy(last, run, sizeof(last));
		runs++;
		if (used < bytes)
			used += (size_t)snprintf(
				names + used, bytes - used, "%s%s", used ? ", " : "", run);
	}
	regfree(&parser);
	return runs;
}

/* ---- entries ---- */

/* Reads @n bytes at @at. */
static bool read_all(int fd, void *to, size_t n, uint64_t at, const char *path)
{
	for (size_t got = 0; got < n;) {
		ssize_t some = pread(fd, (char *)to + got, n - got, (off_t)(at + got));

		if (some < 0 && errno == EINTR)
			continue;
		if (some <= 0) {
			ctl_fail("%s: %s", path,
				some < 0 ? strerror(errno) : "was truncated while it was read");
			return false;
		}
		got += (size_t)some;
	}
	return true;
}

bool records_each(const struct records *r, uint32_t file, uint64_t first, uint64_t n,
	record_take *take, void *context)
{
	const char *path = r->file[file].path;
	uint64_t entry[4096][2], end;
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	bool fine = fd >= 0 && fstat(fd, &st) == 0;

	if (!fine)
		ctl_fail("%s: %s", path, strerror(errno));
	end = fine ? (uint64_t)st.st_size / RECORD_ENTRY_BYTES : 0;
	if (n < end - first)
		end = first + n;
	while (fine && first < end) {
		size_t some = end - first < 4096 ? (size_t)(end - first) : 4096;

		fine = read_all(
			fd, entry, some * RECORD_ENTRY_BYTES, first * RECORD_ENTRY_BYTES, path);
		for (size_t i = 0; fine && i < some; i++)
			fine = take(context, first++, entry[i]);
	}
	if (fd >= 0)
		close(fd);
	return fine;
}

/* ---- orders ---- */

/* Sets *@number to that of the dataset called @name. */
static bool find_dataset(struct records *r, const char *name, uint64_t windows, uint32_t *number)
{
	size_t i = 0;

	while (i < r->datasets && strcmp(r->dataset[i].name, name) != 0)
		i++;
	if (i == r->datasets) {
		if (!ctl_grow((void **)&r->dataset, r->datasets, sizeof(*r->dataset)))
			return false;
		r->dataset[r->datasets++] = (struct record_dataset){name, windows};
	}
	*number = (uint32_t)i;
	return true;
}

static void free_order(struct record_order *o)
{
	cursor_free(&o->cursor);
	free(o->map);
	free(o->name);
}

/* Adds @o with its cursor, which the records then own. */
static bool add_order(struct records *r, struct record_order o)
{
	const struct cursor *c = &o.cursor;
	bool good = ctl_grow((void **)&r->order, r->orders, sizeof(*r->order));

	o.map = calloc(c->datasets, sizeof(const struct dataset *));
	o.name = calloc(c->datasets, sizeof(*o.name));
	if (good && (!o.map || !o.name))
		good = no_memory();
	for (uint32_t d = 0; d < c->datasets && good; d++)
		good = find_dataset(r, c->dataset[d].name, c->order[d].windows, &o.name[d]);
	if (!good) {
		free_order(&o);
		return false;
	}
	stream_map(r->s->stream, c, o.map);
	o.order = cursor_history(c);
	r->order[r->orders++] = o;
	return true;
}

/* Sets *@order to the number of the cursor that the @n @bytes of the record @path encode, which is
 * added if it is new. */
static bool find_order(
	struct records *r, const char *path, const void *bytes, size_t n, uint32_t *order)
{
	struct record_order o = {.checksum = order_checksum(bytes, n)};
	struct fault fault;
	bool good;

	for (size_t i = r->orders; i-- > 0;)
		if (r->order[i].checksum == o.checksum) {
			*order = (uint32_t)i;
			return true;
		}
	good = cursor_decode(&o.cursor, bytes, n, &fault);
	if (!good) {
		ctl_fail("%s: damaged: its cursor: %s: %s", path, fault.field, fault.text);
	} else {
		/* A dataset that only a past mix served may have left the config. */
		o.cursor.next = o.cursor.segment[o.cursor.segments - 1]->start;
		good = cursor_belongs(&o.cursor, &r->s->stream->begin, &fault);
		if (!good)
			ctl_fail("%s: recorded from another stream than %s: %s: %s", path,
				r->s->stream->config->name, fault.field, fault.text);
	}
	*order = (uint32_t)r->orders;
	if (good)
		return add_order(r, o);
	cursor_free(&o.cursor);
	return false;
}

/* ---- a file's sections ---- */

/* The state of the scan of a file. */
struct scan {
	struct records *records;
	const char *path;
	bool given; /* one cursor counts for all rows */
	uint32_t file;
	size_t before; /* number of sections of the files before it */
	/* a beginning without its marker */
	unsigned char bytes[(RECORD_WORDS + LIMIT_CURSOR_BYTES / RECORD_FRAME_BYTES + 1) *
			    RECORD_ENTRY_BYTES];
	size_t have, want; /* entries of it; want is 0 between beginnings */
	struct record_begin begin;
	unsigned kind;
	uint64_t latest; /* time of the last beginning */
	bool begun;	 /* there was a beginning */
	bool fresh;	 /* the last section is, or counts as, the first of its process */
};

static struct record_section *last_section(const struct scan *s)
{
	struct records *r = s->records;

	return r->sections > s->before ? &r->section[r->sections - 1] : NULL;
}

/*
 * Called when the last process has ended: drops its last section if that has no rows. A process
 * that took no rows thus leaves no section. If it took some, its last move stays if it was
 * backwards.
 */
static void end_process(struct scan *s)
{
	const struct record_section *last = last_section(s);

	if (last && last->rows == 0 && (s->fresh || last->begin.left >= last->begin.position))
		s->records->sections--;
	s->fresh = false;
}

/* Merges @b with a previous section of its process that has no rows: the process then counts as
 * begun at @b. */
static void follow(struct scan *s, struct record_begin *b)
{
	const struct record_section *last = last_section(s);

	if (last && s->fresh && last->rows == 0 && last->begin.peer == b->peer &&
		last->begin.position == b->left) {
		b->left = b->position;
		s->records->sections--;
		return;
	}
	if (s->fresh && last && last->rows > 0)
		s->fresh = false;
	if (!(s->kind & RECORD_FIRST))
		return;
	end_process(s);
	s->fresh = true;
}

static bool damaged(const struct scan *s, uint64_t entry)
{
	ctl_fail("%s: damaged: invalid beginning before entry %" PRIu64, s->path, entry + 1);
	return false;
}

/* Adds the section of the beginning that was read, whose last entry is number @entry. */
static bool add_section(struct scan *s, uint64_t entry)
{
	struct records *r = s->records;
	struct record_section section = {.begin = s->begin,
		.file = s->file,
		.entry = entry + 1,
		.again = s->kind & RECORD_PASS};
	struct record_begin *b = &section.begin;
	unsigned char cursor[LIMIT_CURSOR_BYTES];

	if (b->world < 1 || b->world > LIMIT_WORLD || b->rank >= b->world || b->micro_batch < 1 ||
		b->micro_batch > LIMIT_MICRO_BATCH)
		return damaged(s, entry);
	record_get_cursor(cursor, b->cursor_bytes, s->bytes + RECORD_WORDS * RECORD_ENTRY_BYTES);
	if (!s->given && !find_order(r, s->path, cursor, b->cursor_bytes, &section.order))
		return false;
	if (!s->given && b->position < r->order[section.order].order.segment[0]->start)
		return damaged(s, entry);
	if (b->time_ns < s->latest) /* a clock that was set back */
		b->time_ns = s->latest;
	s->latest = b->time_ns;
	follow(s, b);
	if (!ctl_grow((void **)&r->section, r->sections, sizeof(section)))
		return false;
	r->section[r->sections++] = section;
	s->begun = true;
	return true;
}

/* Takes an entry of a beginning, the one after its marker first. */
static bool scan_beginning(struct scan *s, uint64_t number, const uint64_t entry[2])
{
	memcpy(s->bytes + s->have++ * RECORD_ENTRY_BYTES, entry, RECORD_ENTRY_BYTES);
	if (s->have == RECORD_WORDS) {
		record_get_beginning(&s->begin, s->bytes);
		if (s->begin.cursor_bytes > LIMIT_CURSOR_BYTES)
			return damaged(s, number);
		s->want = record_begin_entries(s->begin.cursor_bytes) - 1;
	}
	if (s->have < s->want)
		return true;
	s->want = 0;
	return add_section(s, number);
}

static bool scan_entry(void *context, uint64_t number, const uint64_t entry[2])
{
	struct scan *s = context;
	uint64_t position = le64toh(entry[0]);

	if (record_is_beginning(entry, RECORD_ENTRY_BYTES)) {
		s->kind = le64toh(entry[1]) & (RECORD_FIRST | RECORD_PASS);
		s->have = 0; /* also within a beginning, which is then incomplete */
		s->want = RECORD_WORDS;
		return true;
	}
	if (s->want > 0)
		return scan_beginning(s, number, entry);
	if (position == RECORD_BEGIN || !s->begun) {
		ctl_fail("%s: not a record, of another version of tokend, or damaged at entry "
			 "%" PRIu64,
			s->path, number);
		return false;
	}

	struct record_section *section = &s->records->section[s->records->sections - 1];

	section->rows++;
	if (position >= section->top)
		section->top = position + 1;
	return true;
}

bool records_read(struct records *r, const struct ctl_stream *s, const struct cursor *cursor)
{
	struct record_order given = {0};

	r->s = s;
	drop_repeated(r);
	if (cursor && !(cursor_copy(&given.cursor, cursor) ? add_order(r, given) : no_memory()))
		return false;
	for (size_t i = 0; i < r->files; i++) {
		struct scan scan = {.records = r,
			.path = r->file[i].path,
			.given = cursor,
			.file = (uint32_t)i,
			.before = r->sections};

		if (!records_each(r, scan.file, 0, UINT64_MAX, scan_entry, &scan))
			return false;
		end_process(&scan);
	}
	if (r->sections == 0) {
		ctl_fail("%s%s: nothing was recorded", r->file[0].path,
			r->files > 1 ? " and the other records" : "");
		return false;
	}
	return records_judge(r);
}

void records_free(struct records *r)
{
	for (size_t i = 0; i < r->files; i++)
		free(r->file[i].path);
	for (size_t i = 0; i < r->orders; i++)
		free_order(&r->order[i]);
	for (size_t i = 0; i < r->peers; i++) {
		free(r->peer[i].generation);
		free(r->peer[i].force);
		free(r->peer[i].life);
	}
	free(r->order);
	free(r->dataset);
	free(r->file);
	free(r->section);
	free(r->peer);
	*r = (struct records){0};
}
