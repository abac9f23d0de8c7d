/* Record files: their sections, the orders in which their rows were served, and which rows count.
 */
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

/* ---- which rows count, by the rules in proto/record.h ---- */

/* Compares by the first of the @n numbers that differ. */
static int compare(const uint64_t *x, const uint64_t *y, size_t n)
{
	size_t i = 0;

	while (i + 1 < n && x[i] == y[i])
		i++;
	return x[i] < y[i] ? -1 : x[i] > y[i];
}

/* Of a peer and pass, by time. */
static int by_time(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;

	return compare((uint64_t[]){x->begin.peer, x->pass, x->begin.time_ns, x->file, x->entry},
		(uint64_t[]){y->begin.peer, y->pass, y->begin.time_ns, y->file, y->entry}, 5);
}

/* Of a rank of a generation, by time. */
static int by_rank(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;
	int order = compare((uint64_t[]){x->generation, x->begin.rank},
		(uint64_t[]){y->generation, y->begin.rank}, 2);

	return order ? order : by_time(a, b);
}

static int by_place(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;

	return compare((uint64_t[]){x->file, x->entry}, (uint64_t[]){y->file, y->entry}, 2);
}

/* ---- generations ---- */

static bool on_grid(const struct record_generation *g, const struct record_begin *b)
{
	uint64_t apart =
		b->position > g->position ? b->position - g->position : g->position - b->position;

	return g->world == b->world && g->micro_batch == b->micro_batch &&
	       apart % (g->world * g->micro_batch) == 0;
}

/* Is @rank in generation @g, according to the first @n sections? */
static bool is_member(const struct record_peer *p, size_t n, size_t g, uint64_t rank)
{
	for (size_t i = 0; i < n; i++)
		if (p->section[i].generation == g && p->section[i].begin.rank == rank)
			return true;
	return false;
}

/* The older generation that section @i joins late; p->generations if there is none. */
static size_t find_late(const struct record_peer *p, size_t i)
{
	const struct record_begin *b = &p->section[i].begin;

	for (size_t g = p->generations; g-- > 0;)
		if (p->generation[g].world == b->world &&
			p->generation[g].micro_batch == b->micro_batch &&
			p->generation[g].position == b->position)
			return is_member(p, i, g, b->rank) ? p->generations : g;
	return p->generations;
}

/*
 * Section @i opens a generation at @b's position. Earlier sections at that position may have been
 * taken for late members of an older generation. If they are newer than the newest generation, they
 * belong to this one: moves them.
 */
static void gather_early(struct record_peer *p, size_t i, const struct record_begin *b)
{
	size_t newest = p->generations - 1;

	for (size_t s = i; p->generations > 0 && s-- > p->generation[newest].opener + 1;) {
		const struct record_begin *early = &p->section[s].begin;

		if (p->section[s].generation != newest && early->position == b->position &&
			early->world == b->world && early->micro_batch == b->micro_batch)
			p->section[s].generation = (uint32_t)p->generations;
	}
}

/* Sets the generation of section @i; all sections before it have theirs. */
static bool place_section(struct record_peer *p, size_t i)
{
	const struct record_begin *b = &p->section[i].begin;
	struct record_generation *newest =
		p->generations ? &p->generation[p->generations - 1] : NULL;
	size_t g;

	if (newest && on_grid(newest, b)) {
		p->section[i].generation = (uint32_t)(p->generations - 1);
		if (b->position < newest->position)
			newest->position = b->position;
		return true;
	}
	g = find_late(p, i);
	p->section[i].generation = (uint32_t)g;
	if (g < p->generations)
		return true;
	if (!ctl_grow((void **)&p->generation, p->generations, sizeof(*p->generation)))
		return false;
	gather_early(p, i, b);
	p->generation[p->generations++] = (struct record_generation){.position = b->position,
		.world = b->world,
		.micro_batch = b->micro_batch,
		.opener = i};
	return true;
}

/* Sets the position from which on the rows of each section are void, and the end of those that
 * count.
 */
static void set_limits(struct record_peer *p)
{
	uint64_t limit = UINT64_MAX;

	for (size_t g = p->generations; g-- > 0;) {
		p->generation[g].limit = limit;
		if (p->generation[g].position < limit)
			limit = p->generation[g].position;
	}
	qsort(p->section, p->sections, sizeof(*p->section), by_rank);
	for (size_t i = p->sections; i-- > 0;) {
		struct record_section *s = &p->section[i], *later = s + 1;

		s->limit = p->generation[s->generation].limit;
		if (i + 1 == p->sections || later->generation != s->generation ||
			later->begin.rank != s->begin.rank)
			continue;
		if (later->file != s->file && later->begin.position < s->begin.position &&
			later->top < s->top) {
			p->rewound = true;
			p->rewinding = later->file;
			p->voided = s->file;
		}
		if (later->limit < s->limit)
			s->limit = later->limit;
		if (later->begin.position < s->limit)
			s->limit = later->begin.position;
	}
	for (size_t i = 0; i < p->sections; i++) {
		struct record_section *s = &p->section[i];

		s->last = s->top < s->limit ? s->top : s->limit;
	}
	qsort(p->section, p->sections, sizeof(*p->section), by_place);
}

/* ---- what the sections of a peer tell, by time ---- */

/* Section @i is the newest: adds its order to p->force. */
static bool add_force(struct record_peer *p, size_t i)
{
	const struct record_section *s = &p->section[i];

	if (s->generation + UINT64_C(1) < p->generations) /* a late member */
		return true;
	while (p->forces > 0 && p->force[p->forces - 1].from >= s->begin.position)
		p->forces--;
	if (p->forces > 0 && p->force[p->forces - 1].order == s->order)
		return true;
	if (!ctl_grow((void **)&p->force, p->forces, sizeof(*p->force)))
		return false;
	p->force[p->forces++] = (struct record_force){s->begin.position, s->order, s->file};
	return true;
}

const struct record_force *records_in_force(const struct record_peer *p, uint64_t position)
{
	size_t lo = 0, hi = p->forces;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (p->force[mid].from <= position)
			lo = mid;
		else
			hi = mid;
	}
	return &p->force[lo];
}

/* Section @i is the newest: adds it to the last life, or another one. *@reached: after the highest
 * position of those before it. */
static bool add_life(struct record_peer *p, size_t i, uint64_t *reached)
{
	const struct record_begin *b = &p->section[i].begin;
	struct record_life *last = p->lives ? &p->life[p->lives - 1] : NULL;

	if (!last || last->begin.position != b->position || last->begin.world != b->world ||
		last->begin.micro_batch != b->micro_batch || last->ranks == b->world) {
		if (!ctl_grow((void **)&p->life, p->lives, sizeof(*p->life)))
			return false;
		last = &p->life[p->lives++];
		*last = (struct record_life){*b, *reached, 0};
	}
	last->ranks++;
	if (p->section[i].top > *reached)
		*reached = p->section[i].top;
	return true;
}

/* The sections are sorted by time. */
static bool judge(struct record_peer *p)
{
	uint64_t reached = 0;

	for (size_t i = 0; i < p->sections; i++)
		if (!place_section(p, i) || !add_force(p, i) || !add_life(p, i, &reached))
			return false;
	set_limits(p);
	return true;
}

/* ---- passes ---- */

/* The last pass that all ranks have begun. -1: none, and the first section begins a pass. */
struct common {
	int64_t pass;
	uint64_t *joined; /* by pass: how often it was begun as another pass */
};

static uint64_t number_pass(struct common *c, const struct record_section *s, uint64_t former)
{
	int64_t pass = former ? (int64_t)former - 1 : c->pass;

	pass += s->again;
	if (pass < 0)
		pass = 0;
	if (s->again)
		c->joined[pass]++;
	while (c->joined[c->pass + 1] >= s->begin.world)
		c->pass++;
	return (uint64_t)pass;
}

/*
 * The sections are sorted by time for each peer. A later section of a file stays in that file's
 * pass, or begins the next one. The first section of a new process joins the last pass that all
 * ranks have begun.
 */
static bool number_passes(struct records *r)
{
	/* by file: its current pass + 1; 0: none yet */
	uint64_t *of_file = calloc(r->files + 1, sizeof(*of_file));
	struct common common = {.joined = calloc(r->sections + 2, sizeof(*common.joined))};

	for (size_t i = 0; of_file && common.joined && i < r->sections; i++) {
		struct record_section *s = &r->section[i];

		if (i == 0 || s->begin.peer != s[-1].begin.peer) {
			common.pass = s->again ? -1 : 0;
			memset(common.joined, 0, (r->sections + 2) * sizeof(*common.joined));
			memset(of_file, 0, r->files * sizeof(*of_file));
		}
		s->pass = number_pass(&common, s, of_file[s->file]);
		of_file[s->file] = s->pass + 1;
		if (s->pass >= r->passes)
			r->passes = s->pass + 1;
	}

	bool numbered = of_file && common.joined;

	free(of_file);
	free(common.joined);
	return numbered || ctl_error(PHRASE_MEMORY);
}

static bool split_peers(struct records *r)
{
	qsort(r->section, r->sections, sizeof(*r->section), by_time);
	if (!number_passes(r))
		return false;
	qsort(r->section, r->sections, sizeof(*r->section), by_time);
	for (size_t i = 0; i < r->sections; i++) {
		struct record_section *s = &r->section[i];
		const struct record_peer *last = r->peers ? &r->peer[r->peers - 1] : NULL;

		if (!last || last->peer != s->begin.peer || last->pass != s->pass) {
			if (!ctl_grow((void **)&r->peer, r->peers, sizeof(*r->peer)))
				return false;
			r->peer[r->peers++] = (struct record_peer){
				.peer = s->begin.peer, .pass = s->pass, .section = s};
		}
		r->peer[r->peers - 1].sections++;
	}
	return true;
}

/* Fills in r->passes, the peers, and limit and last of each section. */
static bool judge_records(struct records *r)
{
	if (!split_peers(r))
		return false;
	for (size_t i = 0; i < r->peers; i++)
		if (!judge(&r->peer[i]))
			return false;
	return true;
}

/* ---- all of it ---- */

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
	return judge_records(r);
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
