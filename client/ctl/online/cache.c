/*
 * tokctl cache: what a daemon's cache holds, removing a dataset from it, and filling it.
 *
 * `warm` is a session that reads a stream without training on it. So pieces are fetched in the
 * stream's order, as by a trainer, and the daemon needs no other way to fetch them. It ends before
 * the cache is full, because from then on pieces are evicted for later ones.
 */
#include "client/ctl/common/ctl.h"
#include "client/ctl/online/talk.h"
#include "client/lib/tokend.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

enum { SOCKET, CONFIG, JSON, FROM, TO };

enum { ROWS = 16, LOOK_MS = 250, FULL_PERCENT = 95 };

/* What the cache holds of a stream's datasets. */
struct cached {
	uint64_t pieces, all; /* of datasets that are read in pieces */
	uint64_t bytes, misses, evictions, used, size;
};

struct cache {
	const struct ctl_arguments *a;
	struct ctl_link link;
	struct emit e;
	struct tokend *t;
	const char *stream; /* of `warm` */
	int signals;
	bool interrupted;
	uint64_t to, looked_ms;
	struct cached before, now;
	struct ctl_progress progress;
};

/* Asks once, "ls" or to "drop" the dataset. The caller frees the reply. NULL after an error. */
static json_t *ask(struct cache *c, const char *kind)
{
	struct wire query = {.op = WIRE_CACHE};

	wire_set_text(&query, WIRE_KIND, kind);
	if (kind[0] == 'd')
		wire_set_text(&query, WIRE_DATASET, c->a->argument[0]);
	return ctl_ask(&c->link, &query, WIRE_CACHE, NULL, NULL) ? ctl_document(&c->link) : NULL;
}

/* ---- ls and drop ---- */

/* @name NULL: objects of no dataset. */
static void put_row(struct emit *e, const json_t *row, const char *name)
{
	emit_text(e, "dataset", NULL, name);
	emit_text(e, "url", NULL, name ? status_text(row, "url") : NULL);
	emit_text(e, NULL, "DATASET", name ? name : "(others)");
	emit_number(e, "objects", "OBJECTS", status_number(row, "objects"));
	emit_number(e, "pieces", "PIECES", status_number(row, "pieces"));
	emit_bytes(e, "bytes", "SIZE", status_number(row, "bytes"));
	emit_text(e, NULL, "URL", status_text(row, "url"));
	emit_row(e);
}

/* Each stream has a row for its dataset. Has a row before number @n its URL? */
static bool is_listed(const json_t *rows, size_t n)
{
	const char *url = status_text(json_array_get(rows, n), "url");

	while (n-- > 0)
		if (strcmp(status_text(json_array_get(rows, n), "url"), url) == 0)
			return true;
	return false;
}

static int list(struct cache *c)
{
	json_t *all = ask(c, "ls"), *rows = json_object_get(all, "datasets"),
	       *other = json_object_get(all, "other");

	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *row = json_array_get(rows, i);

		if (!is_listed(rows, i))
			put_row(&c->e, row, status_text(row, "dataset"));
	}
	if (status_number(other, "objects") > 0)
		put_row(&c->e, other, NULL);
	if (json_is_true(json_object_get(all, "more")))
		ctl_note("the list is not complete: it has too many datasets for one message");
	json_decref(all);
	return all ? CTL_OK : CTL_FAILED;
}

/* The daemon drops a part at a time, so that no reply takes long. */
static int drop(struct cache *c)
{
	uint64_t pieces = 0;

	for (bool more = true; more;) {
		json_t *all = ask(c, "drop");

		if (!all)
			return CTL_FAILED;
		pieces += status_number(all, "pieces");
		more = json_is_true(json_object_get(all, "more"));
		json_decref(all);
	}
	emit_text(&c->e, "dataset", NULL, c->a->argument[0]);
	emit_number(&c->e, "pieces", NULL, pieces);
	emit_line(&c->e, "dropped %" PRIu64 " pieces", pieces);
	return CTL_OK;
}

/* ---- warm ---- */

static bool look(struct cache *c)
{
	json_t *all = ask(c, "ls"), *cache = json_object_get(all, "cache"), *row;
	size_t i;

	c->now = (struct cached){.misses = status_number(cache, "misses"),
		.evictions = status_number(cache, "evictions"),
		.used = status_number(cache, "used_bytes"),
		.size = status_number(cache, "size_bytes")};
	json_array_foreach(json_object_get(all, "datasets"), i, row)
	{
		if (!status_number(row, "all") ||
			strcmp(status_text(row, "stream"), c->stream) != 0)
			continue;
		c->now.pieces += status_number(row, "pieces");
		c->now.all += status_number(row, "all");
		c->now.bytes += status_number(row, "bytes");
	}
	json_decref(all);
	c->looked_ms = ctl_clock_ms();
	return all;
}

/* Why to stop; NULL: go on. */
static const char *end(const struct cache *c)
{
	if (c->interrupted)
		return "interrupted";
	if (tokend_taken(c->t) >= c->to)
		return "reached";
	if (c->now.pieces >= c->now.all)
		return "all pieces are there";
	if (c->now.evictions > c->before.evictions ||
		c->now.used > c->now.size / 100 * FULL_PERCENT)
		return "the cache is full";
	return NULL;
}

/* NULL after an error. */
static const char *read_until_end(struct cache *c)
{
	uint64_t pieces = c->now.pieces;
	struct tokend_batch batch;
	const char *why;

	while (!(why = end(c))) {
		int got = tokend_next(c->t, &batch);

		if (got == TOKEND_EAGAIN)
			continue;
		if (got < 0)
			ctl_fail("%s", tokend_why(c->t));
		if (got <= 0)
			return got == 0 ? "the stream ends there" : NULL;
		tokend_release(c->t, &batch);
		if (ctl_clock_ms() - c->looked_ms < LOOK_MS)
			continue;
		if (!look(c))
			return NULL;
		if (c->now.pieces > pieces)
			ctl_progress_add(&c->progress, c->now.pieces - pieces);
		pieces = c->now.pieces;
	}
	return why;
}

static int read_stream(struct cache *c)
{
	const char *why;

	if (!look(c))
		return CTL_FAILED;
	if (c->now.all == 0)
		return ctl_fail("stream %s: none of its datasets is read in pieces; `tokend "
				"--check` says why",
			c->stream);
	ctl_progress_begin(&c->progress, "warming", "pieces", c->now.all - c->now.pieces);
	why = read_until_end(c);
	ctl_progress_end(&c->progress);
	if (!why || !look(c))
		return CTL_FAILED;
	emit_text(&c->e, "stream", NULL, c->stream);
	emit_number(&c->e, "pieces", NULL, c->now.pieces);
	emit_number(&c->e, "all", NULL, c->now.all);
	emit_number(&c->e, "bytes", NULL, c->now.bytes);
	emit_number(&c->e, "fetched", NULL, c->now.misses - c->before.misses);
	emit_number(&c->e, "position", NULL, tokend_taken(c->t));
	emit_text(&c->e, "end", NULL, why);
	emit_line(&c->e,
		"%" PRIu64 " of %" PRIu64 " pieces (%s) are in the cache, %" PRIu64
		" of them fetched now; position %" PRIu64 ": %s",
		c->now.pieces, c->now.all, si((double)c->now.bytes, "B").text,
		c->now.misses - c->before.misses, tokend_taken(c->t), why);
	return c->interrupted ? CTL_FAILED : CTL_OK;
}

/* Ends a wait of tokend_next() after a signal. */
static int idle(void *context)
{
	struct cache *c = context;
	struct pollfd p = {.fd = c->signals, .events = POLLIN};

	c->interrupted |= poll(&p, 1, 0) > 0;
	return c->interrupted;
}

static int warm(struct cache *c)
{
	const struct tokend_options session = {.size = sizeof(session),
		.socket = c->link.socket,
		.stream = c->stream,
		.run = "tokctl-warm",
		.world = 1,
		.micro_batch = ROWS,
		.position = ctl_number(c->a, FROM, 0),
		.start_at_position = 1,
		.idle = idle,
		.context = c};
	char why[1500];
	int status;

	c->signals = ctl_signals();
	c->to = ctl_number(c->a, TO, UINT64_MAX);
	if (!look(c)) /* before its ring fetches anything */
		return CTL_FAILED;
	c->before = c->now;
	if (tokend_attach(&c->t, &session, why, sizeof(why)) < 0)
		return c->interrupted ? CTL_FAILED : ctl_fail("%s", why);
	status = read_stream(c);
	tokend_detach(c->t);
	return status;
}

/* ---- the commands ---- */

static const struct ctl_command ls_command, drop_command;

static int run(const struct ctl_arguments *a)
{
	struct cache c = {.a = a,
		.stream = a->arguments ? a->argument[0] : NULL,
		.e.json = ctl_given(a, JSON)};
	int status;

	if (!ctl_connect(&c.link, a))
		return CTL_FAILED;
	status = a->command == &ls_command     ? list(&c)
		 : a->command == &drop_command ? drop(&c)
					       : warm(&c);
	ctl_disconnect(&c.link);
	return emit_end(&c.e, status);
}

#define COMMON                                                                                     \
	[SOCKET] = {CTL_SOCKET_OPTION}, [CONFIG] = {CTL_CONFIG_OPTION}, [JSON] = {CTL_JSON_OPTION}

static const struct ctl_option options[] = {COMMON};
static const struct ctl_option warm_options[] = {COMMON,
	[FROM] = {OPTION_NUMBER(
			  "from", "POSITION", 0, UINT64_MAX - 1, "position of the first sample"),
		.preset = "0"},
	[TO] = {OPTION_NUMBER("to", "POSITION", 0, UINT64_MAX - 1,
		"stop at this position; default: when all pieces of the stream are there")}};

static const struct ctl_command ls_command = {
	.name = "cache ls",
	.help = "print what the cache holds of each dataset",
	OPTIONS_ARE(options),
	.run = run,
};

static const struct ctl_command warm_command = {
	.name = "cache warm",
	.arguments = "STREAM",
	.help = "fetch the next pieces of a stream into the cache",
	OPTIONS_ARE(warm_options),
	.run = run,
};

static const struct ctl_command drop_command = {
	.name = "cache drop",
	.arguments = "DATASET",
	.help = "remove a dataset from the cache",
	OPTIONS_ARE(options),
	.run = run,
};

const struct ctl_command ctl_cache = {
	.name = "cache",
	.help = "print, fetch or remove what a daemon's cache holds",
	.subcommands = (const struct ctl_command *const[]){&ls_command, &warm_command,
		&drop_command, NULL},
};
