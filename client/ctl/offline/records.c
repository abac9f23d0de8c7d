/* Record files: their sections, and the orders in which their rows were served. */
#include "client/ctl/offline/offline.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- files ---- */

static bool add_file(struct records *r, const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return ctl_error("%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return ctl_error("%s: not a regular file, so not a record", path);
	for (size_t i = 0; i < r->files; i++)
		if (r->file[i].device == st.st_dev && r->file[i].inode == st.st_ino)
			return true; /* it was named twice */
	if (!ctl_grow((void **)&r->file, r->files, sizeof(*r->file)))
		return false;

	char *copy = strdup(path);

	if (!copy)
		return ctl_error(PHRASE_MEMORY);
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
			done = ctl_error(PHRASE_MEMORY);
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
		good = ctl_error(PHRASE_MEMORY);
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
	size_t before;	 /* number of sections of the files before it */
	uint64_t latest; /* time of the last beginning */
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
static void follow(struct scan *s, unsigned kind, struct record_begin *b)
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
	if (!(kind & RECORD_FIRST))
		return;
	end_process(s);
	s->fresh = true;
}

/* Adds the section of beginning @b, with its cursor at @frames. @entry: number of the one after it.
 */
static bool add_section(
	struct scan *s, unsigned kind, struct record_begin *b, const void *frames, uint64_t entry)
{
	struct records *r = s->records;
	unsigned char cursor[LIMIT_CURSOR_BYTES];
	uint32_t order = 0;

	bool fine = b->world >= 1 && b->world <= LIMIT_WORLD && b->rank < b->world &&
		    b->micro_batch >= 1 && b->micro_batch <= LIMIT_MICRO_BATCH &&
		    b->cursor_bytes <= sizeof(cursor);

	if (fine && !s->given) {
		record_get_cursor(cursor, b->cursor_bytes, frames);
		if (!find_order(r, s->path, cursor, b->cursor_bytes, &order))
			return false;
		fine = b->position >= r->order[order].order.segment[0]->start;
	}
	if (!fine)
		return ctl_error(
			"%s: damaged: invalid beginning before entry %" PRIu64, s->path, entry);
	if (b->time_ns < s->latest) /* a clock that was set back */
		b->time_ns = s->latest;
	s->latest = b->time_ns;
	follow(s, kind, b);
	if (!ctl_grow((void **)&r->section, r->sections, sizeof(*r->section)))
		return false;
	r->section[r->sections++] = (struct record_section){.begin = *b,
		.file = s->file,
		.entry = entry,
		.order = order,
		.again = kind & RECORD_PASS};
	return true;
}

/* The first entry after @at that begins a beginning, at most @end. */
static uint64_t next_beginning(const uint64_t (*entry)[2], uint64_t at, uint64_t end)
{
	do
		at++;
	while (at < end && !record_is_beginning(entry[at], RECORD_ENTRY_BYTES));
	return at;
}

/* Adds the section of the beginning at @at, of @n entries. Sets *@after it. An incomplete one ends
 * at the next one. */
static bool scan_beginning(
	struct scan *s, const uint64_t (*entry)[2], uint64_t at, uint64_t n, uint64_t *after)
{
	struct record_begin begin = {0};
	uint64_t frames = at + 1 + RECORD_WORDS, end = frames;
	unsigned kind = le64toh(entry[at][1]) & (RECORD_FIRST | RECORD_PASS);

	if (frames <= n)
		record_get_beginning(&begin, entry[at + 1]);
	if (begin.cursor_bytes <= LIMIT_CURSOR_BYTES)
		end = at + record_begin_entries(begin.cursor_bytes);
	*after = next_beginning(entry, at, end < n ? end : n);
	return *after < end || add_section(s, kind, &begin, entry[frames], end);
}

static bool scan_entries(struct scan *s, const uint64_t (*entry)[2], uint64_t n)
{
	for (uint64_t i = 0; i < n;) {
		struct record_section *section = last_section(s);
		uint64_t position = le64toh(entry[i][0]);

		if (record_is_beginning(entry[i], RECORD_ENTRY_BYTES)) {
			if (!scan_beginning(s, entry, i, n, &i))
				return false;
			continue;
		}
		if (position == RECORD_BEGIN || !section)
			return ctl_error(
				"%s: not a record, of another version of tokend, or damaged at "
				"entry %" PRIu64,
				s->path, i);
		section->rows++;
		if (position >= section->top)
			section->top = position + 1;
		i++;
	}
	end_process(s);
	return true;
}

static bool scan_file(struct records *r, uint32_t file, bool given)
{
	struct scan scan = {.records = r,
		.path = r->file[file].path,
		.given = given,
		.file = file,
		.before = r->sections};
	size_t bytes;
	const void *mapped = ctl_map(scan.path, &bytes);
	bool done = mapped && scan_entries(&scan, mapped, bytes / RECORD_ENTRY_BYTES);

	if (mapped)
		ctl_unmap(mapped, bytes);
	return done;
}

bool records_read(struct records *r, const struct ctl_stream *s, const struct cursor *cursor)
{
	struct record_order given = {0};

	r->s = s;
	if (cursor && !(cursor_copy(&given.cursor, cursor) ? add_order(r, given)
							   : ctl_error(PHRASE_MEMORY)))
		return false;
	for (size_t i = 0; i < r->files; i++)
		if (!scan_file(r, (uint32_t)i, cursor))
			return false;
	if (r->sections == 0)
		return ctl_error("%s%s: nothing was recorded", r->file[0].path,
			r->files > 1 ? " and the other records" : "");
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
