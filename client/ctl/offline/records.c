/* Record files: their sections, the orders in which their rows were served, and which rows count.
 */
#include "client/ctl/offline/offline.h"
#include "proto/phrases.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
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
	r->file[r->files++] = (struct record_file){copy, st.st_dev, st.st_ino, 0, 0};
	return true;
}

static int is_record(const struct dirent *e)
{
	return e->d_name[0] != '.' && bytes_ends_in(e->d_name, ".record");
}

bool records_add(struct records *r, const char *path)
{
	struct dirent **entry = NULL;
	int n = scandir(path, &entry, is_record, alphasort);
	bool done = n > 0;

	if (n < 0 && errno == ENOTDIR)
		return add_file(r, path);
	if (n <= 0)
		ctl_fail("%s: %s", path, n < 0 ? strerror(errno) : "contains no *.record files");
	for (int i = 0; i < n; i++) {
		char whole[PATH_MAX];

		snprintf(whole, sizeof(whole), "%s/%s", path, entry[i]->d_name);
		done = done && add_file(r, whole);
		free(entry[i]);
	}
	free(entry);
	return done;
}

/* ---- a file's sections ---- */

/* The last section of the file that is read, or NULL. */
static struct record_section *last_section(const struct records *r)
{
	struct record_section *last = r->sections > 0 ? &r->section[r->sections - 1] : NULL;

	return last && last->file == r->reading ? last : NULL;
}

/* The order of the cursor that @n @bytes encode. NULL after an error. */
static const struct ctl_history *find_order(struct records *r, const void *bytes, size_t n)
{
	uint64_t checksum = order_checksum(bytes, n);
	struct record_order *o = r->order;
	struct fault fault;

	while (o && o->checksum != checksum)
		o = o->next;
	if (o)
		return &o->history;
	o = calloc(1, sizeof(*o));
	if (!o) {
		ctl_fail(PHRASE_MEMORY);
		return NULL;
	}
	o->checksum = checksum;
	o->next = r->order;
	r->order = o;
	if (!cursor_decode(&o->history.cursor, bytes, n, &fault)) {
		ctl_fail("%s: damaged: its cursor: %s: %s", r->reading->path, fault.field,
			fault.text);
		return NULL;
	}
	/* A dataset that only a past mix served may have left the config. */
	o->history.cursor.next = o->history.cursor.segment[o->history.cursor.segments - 1]->start;
	if (cursor_belongs(&o->history.cursor, &r->s->stream->begin, &fault))
		return ctl_history_map(&o->history, r->s) ? &o->history : NULL;
	ctl_fail("%s: recorded from another stream than %s: %s: %s", r->reading->path,
		r->s->stream->config->name, fault.field, fault.text);
	return NULL;
}

/* Called when the last process has ended: drops its last section if that has no rows, and does not
 * move forwards. */
static void end_process(struct records *r)
{
	const struct record_section *last = last_section(r);

	if (last && last->rows == 0 && last->begin.left >= last->begin.position)
		r->sections--;
}

/* Adds the section of beginning @b, with its cursor at @frames. @entry: number of the one after it.
 */
static bool add_section(struct records *r, unsigned kind, struct record_begin *b,
	const void *frames, uint64_t entry)
{
	unsigned char cursor[LIMIT_CURSOR_BYTES];
	const struct ctl_history *order = r->given;
	const struct record_section *last = last_section(r);

	bool fine = b->world >= 1 && b->world <= LIMIT_WORLD && b->rank < b->world &&
		    b->micro_batch >= 1 && b->micro_batch <= LIMIT_MICRO_BATCH &&
		    b->cursor_bytes <= sizeof(cursor);

	if (fine && !order) {
		record_get_cursor(cursor, b->cursor_bytes, frames);
		order = find_order(r, cursor, b->cursor_bytes);
		if (!order)
			return false;
		fine = b->position >= order->order.segment[0]->start;
	}
	if (!fine)
		return ctl_error("%s: damaged: invalid beginning before entry %" PRIu64,
			r->reading->path, entry);
	if (last && b->time_ns < last->begin.time_ns) /* a clock that was set back */
		b->time_ns = last->begin.time_ns;
	if (kind & RECORD_FIRST)
		end_process(r);
	if (!ctl_grow((void **)&r->section, r->sections, sizeof(*r->section)))
		return false;
	r->section[r->sections++] = (struct record_section){.begin = *b,
		.file = r->reading,
		.order = order,
		.entry = entry,
		.first = kind & RECORD_FIRST,
		.again = kind & RECORD_PASS};
	return true;
}

/* Adds the section of the beginning at *@at, of @n entries, and sets *@at after it. An incomplete
 * one ends at the next one. */
static bool scan_beginning(struct records *r, const uint64_t (*entry)[2], uint64_t *at, uint64_t n)
{
	struct record_begin begin = {0};
	uint64_t frames = *at + 1 + RECORD_WORDS, end = frames;
	unsigned kind = (unsigned)entry[*at][1];

	if (frames <= n)
		memcpy(&begin, entry[*at + 1], sizeof(begin));
	if (begin.cursor_bytes <= LIMIT_CURSOR_BYTES)
		end = *at + record_begin_entries(begin.cursor_bytes);
	do
		++*at;
	while (*at < end && *at < n && !record_is_beginning(entry[*at], RECORD_ENTRY_BYTES));
	return *at < end || add_section(r, kind, &begin, entry[frames], end);
}

static bool scan_entries(struct records *r, const uint64_t (*entry)[2], uint64_t n)
{
	for (uint64_t i = 0; i < n;) {
		struct record_section *section = last_section(r);
		uint64_t position = entry[i][0];

		if (record_is_beginning(entry[i], RECORD_ENTRY_BYTES)) {
			if (!scan_beginning(r, entry, &i, n))
				return false;
			continue;
		}
		if (position == RECORD_BEGIN || !section)
			return ctl_error(
				"%s: not a record, of another version of tokend, or damaged at "
				"entry %" PRIu64,
				r->reading->path, i);
		section->rows++;
		if (position >= section->top)
			section->top = position + 1;
		i++;
	}
	end_process(r);
	return true;
}

/* ---- which rows count, by the rules in proto/record.h ---- */

/* Of a peer and pass, by time; @ranks not NULL: of a generation and rank, by time. */
static int by_time(const void *a, const void *b, void *ranks)
{
	const struct record_section *const of[] = {a, b};
	uint64_t key[2][5];
	size_t n = 0;

	for (int i = 0; i < 2; i++) {
		key[i][0] = ranks ? (uintptr_t)of[i]->generation : of[i]->begin.peer;
		key[i][1] = ranks ? of[i]->begin.rank : of[i]->pass;
		key[i][2] = of[i]->begin.time_ns;
		key[i][3] = (uintptr_t)of[i]->file;
		key[i][4] = of[i]->entry;
	}
	while (n < 4 && key[0][n] == key[1][n])
		n++;
	return key[0][n] < key[1][n] ? -1 : key[0][n] > key[1][n];
}

/* ---- generations ---- */

static bool on_grid(const struct record_begin *at, const struct record_begin *b)
{
	uint64_t apart = b->position > at->position ? b->position - at->position
						    : at->position - b->position;

	return at->world == b->world && at->micro_batch == b->micro_batch &&
	       apart % (b->world * b->micro_batch) == 0;
}

static bool begin_alike(const struct record_begin *a, const struct record_begin *b)
{
	return a->position == b->position && a->world == b->world &&
	       a->micro_batch == b->micro_batch;
}

/* The older generation that section @s joins late, or NULL. */
static struct record_generation *find_late(
	const struct record_peer *p, const struct record_section *s)
{
	const struct record_begin *b = &s->begin;

	for (size_t i = p->generations; i-- > 0;) {
		struct record_generation *g = &p->generation[i];
		const struct record_section *member = p->section;

		if (!begin_alike(&g->begin, b))
			continue;
		while (member < s && (member->generation != g || member->begin.rank != b->rank))
			member++;
		return member < s ? NULL : g;
	}
	return NULL;
}

/* Sets the generation of section @s; all sections before it have theirs. */
static void place_section(struct record_peer *p, struct record_section *s)
{
	const struct record_begin *b = &s->begin;
	struct record_generation *next = &p->generation[p->generations],
				 *newest = p->generations ? next - 1 : NULL;

	if (newest && on_grid(&newest->begin, b)) {
		s->generation = newest;
		newest->begin.position = MIN(newest->begin.position, b->position);
		return;
	}
	s->generation = find_late(p, s);
	if (s->generation)
		return;
	/* It opens a generation. Sections since the newest one that were taken for late members of
	 * an older generation, but begin here, belong to it. */
	for (struct record_section *early = s; newest && --early > newest->opener;)
		if (early->generation != newest && begin_alike(&early->begin, b))
			early->generation = next;
	s->generation = next;
	*next = (struct record_generation){.begin = *b, .opener = s};
	p->generations++;
}

/* Sets the position from which on the rows of each section are void, and the end of those that
 * count. */
static void set_limits(struct record_peer *p)
{
	uint64_t limit = UINT64_MAX; /* a later generation makes rows from here on void */

	qsort_r(p->section, p->sections, sizeof(*p->section), by_time, p);
	for (size_t i = p->sections; i-- > 0;) {
		struct record_section *s = &p->section[i];
		const struct record_section *later = i + 1 < p->sections ? s + 1 : NULL;

		if (later && later->generation != s->generation)
			limit = MIN(limit, later->generation->begin.position);
		s->limit = limit;
		if (later && later->generation == s->generation &&
			later->begin.rank == s->begin.rank) {
			s->limit = MIN(s->limit, MIN(later->limit, later->begin.position));
			if (later->file != s->file && later->begin.position < s->begin.position &&
				later->top < s->top) {
				p->rewinding = later->file;
				p->voided = s->file;
			}
		}
		s->last = MIN(s->top, s->limit);
	}
}

/* ---- what the sections of a peer tell, by time ---- */

/* Section @s is the newest: adds its order to p->force. */
static void add_force(struct record_peer *p, const struct record_section *s)
{
	if (s->generation + 1 < p->generation + p->generations) /* a late member */
		return;
	while (p->forces > 0 && p->force[p->forces - 1].from >= s->begin.position)
		p->forces--;
	if (p->forces == 0 || p->force[p->forces - 1].order != s->order)
		p->force[p->forces++] = (struct record_force){s->begin.position, s->order};
}

const struct ctl_history *records_in_force(const struct record_peer *p, uint64_t position)
{
	const struct record_force *f = &p->force[p->forces - 1];

	while (f > p->force && f->from > position)
		f--;
	return f->order;
}

/* Section @s is the newest: adds it to the last life, or another one. *@reached: after the highest
 * position of those before it. */
static void add_life(struct record_peer *p, const struct record_section *s, uint64_t *reached)
{
	struct record_life *last = &p->life[p->lives];

	if (p->lives > 0 && begin_alike(&last[-1].begin, &s->begin) &&
		last[-1].ranks < s->begin.world)
		last--;
	else
		p->life[p->lives++] = (struct record_life){s->begin, *reached, 0};
	last->ranks++;
	if (s->top > *reached)
		*reached = s->top;
}

/* The sections are sorted by time. */
static void judge(struct record_peer *p)
{
	uint64_t reached = 0;

	for (size_t i = 0; i < p->sections; i++) {
		place_section(p, &p->section[i]);
		add_force(p, &p->section[i]);
		add_life(p, &p->section[i], &reached);
	}
	set_limits(p);
}

/* ---- passes ---- */

/*
 * The process of @s begins another pass. NULL: it is the next one. Otherwise the process resumed at
 * the end of the pass before, after its rank's last process had begun a pass and not completed it.
 * Returns a section of that pass, which begins again. A rank that is new goes by the section
 * before. The sections before @s, from @first on, have their passes.
 */
static const struct record_section *begun_before(
	const struct record_section *first, const struct record_section *s)
{
	uint64_t end = cursor_end(&s->order->cursor);
	const struct record_section *of = s;

	while (of > first && (of == s || of->begin.rank != s->begin.rank))
		of--;
	if (of->begin.rank != s->begin.rank)
		of = s - 1;
	if (of == s || of->pass == 0 || s->begin.left != end)
		return NULL;
	if (of == s - 1 && of->again && begin_alike(&of->begin, &s->begin) &&
		of->begin.rank != s->begin.rank)
		return of;

	uint64_t others = (of->begin.world - 1) * of->begin.micro_batch;

	return MAX(of->top, of->begin.position) < end - MIN(end, others) ? of : NULL;
}

/*
 * The sections are sorted by time for each peer. A later section of a process stays in that
 * process's pass, or begins the next one. The first section of a new process joins the last pass
 * that all ranks have begun. Passes are counted from 1 here; 0: none.
 */
static bool number_passes(struct records *r)
{
	uint64_t common = 0; /* the last pass that all ranks have begun */
	/* by pass: how often it was begun as another pass */
	uint64_t *joined = calloc(r->sections + 3, sizeof(*joined));
	const struct record_section *first = r->section, *again;

	if (!joined)
		return ctl_error(PHRASE_MEMORY);
	for (size_t i = 0; i < r->sections; i++) {
		struct record_section *s = &r->section[i];
		uint64_t pass = s->file->peer == s->begin.peer ? s->file->pass : 0;

		if (i == 0 || s->begin.peer != s[-1].begin.peer) {
			common = !s->again;
			first = s;
			memset(joined, 0, (r->sections + 3) * sizeof(*joined));
		}
		again = s->first && s->again ? begun_before(first, s) : NULL;
		pass = again ? again->pass : pass && !s->first ? pass : common;
		pass += s->again;
		pass = pass ? pass : 1;
		joined[pass] += s->again && !(again && again->begin.rank == s->begin.rank);
		while (s->again && joined[common + 1] >= s->begin.world)
			common++;
		s->file->peer = s->begin.peer;
		s->file->pass = pass;
		s->pass = pass - 1;
		if (pass > r->passes)
			r->passes = pass;
	}
	free(joined);
	return true;
}

/* Fills in r->passes, the peers, and limit and last of each section. */
static bool judge_records(struct records *r)
{
	qsort_r(r->section, r->sections, sizeof(*r->section), by_time, NULL);
	r->peer = calloc(r->sections, sizeof(*r->peer));
	r->generation = calloc(r->sections, sizeof(*r->generation));
	r->force = calloc(r->sections, sizeof(*r->force));
	r->life = calloc(r->sections, sizeof(*r->life));
	if (!r->peer || !r->generation || !r->force || !r->life)
		return ctl_error(PHRASE_MEMORY);
	if (!number_passes(r))
		return false;
	qsort_r(r->section, r->sections, sizeof(*r->section), by_time, NULL);
	for (size_t i = 0; i < r->sections; i++) {
		const struct record_section *s = &r->section[i];

		if (i == 0 || s->begin.peer != s[-1].begin.peer || s->pass != s[-1].pass)
			r->peer[r->peers++] = (struct record_peer){.peer = s->begin.peer,
				.pass = s->pass,
				.section = &r->section[i],
				.generation = &r->generation[i],
				.force = &r->force[i],
				.life = &r->life[i]};
		r->peer[r->peers - 1].sections++;
	}
	for (size_t i = 0; i < r->peers; i++)
		judge(&r->peer[i]);
	return true;
}

/* ---- all of it ---- */

bool records_read(struct records *r, const struct ctl_stream *s, const struct ctl_history *given)
{
	bool done = true;
	size_t bytes;

	r->s = s;
	r->given = given;
	for (r->reading = r->file; done && r->reading < r->file + r->files; r->reading++) {
		const void *mapped = ctl_map(r->reading->path, &bytes);

		done = mapped && scan_entries(r, mapped, bytes / RECORD_ENTRY_BYTES);
	}
	if (!done)
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
	for (struct record_order *o; (o = r->order);) {
		r->order = o->next;
		ctl_history_close(&o->history);
		free(o);
	}
	free(r->file);
	free(r->section);
	free(r->peer);
	free(r->generation);
	free(r->force);
	free(r->life);
	*r = (struct records){0};
}
