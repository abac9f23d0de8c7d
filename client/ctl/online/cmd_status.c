/* tokctl status: the sessions of a daemon, its stores and its cache; with --watch again and again.
 */
#include "client/ctl/online/talk.h"
#include "proto/phrases.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct listing {
	struct emit e;
	struct ctl_link link;
	const struct ctl_arguments *a;
	json_t *before; /* of each daemon: batches that its sessions had released, and when */
};

static json_t *get(const json_t *item, const char *name)
{
	return json_object_get(item, name);
}

static double real(const json_t *item, const char *name)
{
	return json_number_value(get(item, name));
}

/* ---- the order of sessions, and their rates ---- */

/* Members by which --sort orders; '-': the highest is first. */
static const char *const keys[] = {
	"stream", "run", "rank", "-position", "-tokens_per_s", "ready", "-full_ms"};

static int compare(const void *a, const void *b, void *by)
{
	const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
	bool down = *(const char *)by == '-';
	const char *key = (const char *)by + down;
	int order = strcmp(status_text(x, key), status_text(y, key));
	double p = real(x, key), q = real(y, key);

	order = order ? order : (p > q) - (p < q);
	if (order)
		return down ? -order : order;
	return real(x, "session") < real(y, "session") ? -1 : 1;
}

static void sort(json_t *sessions, const char *key)
{
	size_t n = json_array_size(sessions), i;
	json_t **all = calloc(n + 1, sizeof(*all)), *session;

	json_array_foreach(sessions, i, session) if (all) all[i] = json_incref(session);
	if (all)
		qsort_r(all, n, sizeof(*all), compare, (void *)key);
	for (i = 0; all && i < n; i++)
		json_array_set_new(sessions, i, all[i]);
	free(all);
}

/* Sets how many tokens each session took per second since the update before, if it was there. */
static void set_rates(struct listing *l, const json_t *status)
{
	double ms = real(get(status, "daemon"), "uptime_ms");
	const json_t *before = get(l->before, l->link.socket);
	double s = (ms - real(before, "ms")) / 1000;
	json_t *released = json_object(), *session;
	size_t i;

	json_array_foreach(get(status, "sessions"), i, session)
	{
		char name[40];

		snprintf(name, sizeof(name), "%.0f %.0f", real(session, "session"),
			real(session, "pid"));
		const json_t *then = get(get(before, "released"), name);
		double batches = real(session, "released") - json_number_value(then);

		json_object_set_new(session, "tokens_per_s",
			json_real(then && batches >= 0 && s > 0
					  ? batches * real(session, "micro") *
						    real(session, "seq_len") / s
					  : 0));
		json_object_set_new(released, name, json_real(real(session, "released")));
	}
	json_object_set_new_nocheck(
		l->before, l->link.socket, json_pack("{s:f, s:o}", "ms", ms, "released", released));
}

/* ---- sessions ---- */

/* Puts the members of @item; only in JSON. Numbers have no sign. */
static void put_members(struct emit *e, json_t *item)
{
	const char *name;
	json_t *value;

	json_object_foreach(item, name, value)
	{
		const size_t flags = JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY;

		if (json_is_integer(value)) {
			emit_number(e, name, NULL, status_number(item, name));
		} else if (json_is_string(value)) { /* need not be UTF-8 */
			emit_text(e, name, NULL, json_string_value(value));
		} else if (e->json) {
			char *text = json_dumps(value, flags | JSON_REAL_PRECISION(9));

			emit_json(e, name, text ? text : "null");
			free(text);
		}
	}
}

/* An operator waits for a request, a read for a store, a trainer for a batch, or tokend for a
 * release. */
static void put_waits(struct emit *e, const json_t *s)
{
	double store_s = real(s, "store_wait_ms") / 1000, full_s = real(s, "full_ms") / 1000;
	char text[64] = "";

	if (real(s, "request") > 0)
		snprintf(text, sizeof(text), "request");
	else if (store_s > 0)
		snprintf(text, sizeof(text), "store %.0f s", store_s);
	else if (real(s, "ready") == 0)
		snprintf(text, sizeof(text), "trainer");
	else if (full_s >= 1)
		snprintf(text, sizeof(text), "tokend %.0f s", full_s);
	emit_text(e, NULL, "WAITS", text);
}

static void put_session(struct listing *l, json_t *s)
{
	struct emit *e = &l->e;

	json_object_update_missing_new(s, json_pack("{s:n, s:s, s:n, s:s}", "slow_ms", "slow_shard",
						  "", "store_wait_ms", "store_wait", ""));
	put_members(e, s);
	emit_text(e, "daemon", NULL, l->link.socket);
	emit_text(e, NULL, "STREAM", status_text(s, "stream"));
	emit_text(e, NULL, "RUN", status_text(s, "run"));
	emit_cell(e, "RANK of WORLD", "%.0f of %.0f", real(s, "rank"), real(s, "world"));
	emit_number(e, NULL, "MICRO", status_number(s, "micro"));
	emit_number(e, NULL, "POSITION", status_number(s, "position"));
	if (ctl_given(l->a, "watch"))
		emit_decimal(e, NULL, "TOKENS/S", real(s, "tokens_per_s"), 0);
	emit_cell(e, "READY", "%.0f of %.0f", real(s, "ready"), real(s, "slots"));
	put_waits(e, s);
	emit_number(e, NULL, "PID", status_number(s, "pid"));
	emit_row(e);
	if (real(s, "store_wait_ms") > 0)
		emit_line(e, "  waiting %.0f s for %s", real(s, "store_wait_ms") / 1000,
			status_text(s, "store_wait"));
}

/* ---- stores and the cache ---- */

static void add_last(struct emit *e, const json_t *item)
{
	if (json_is_number(get(item, "last_ago_s")))
		emit_more(e, "  last: %s, %.0f s ago", status_text(item, "last"),
			real(item, "last_ago_s"));
}

static void put_store(struct emit *e, const json_t *s)
{
	const char *provider = status_text(s, "provider");

	emit_line(e, "%s  %.1f GET/s %.1f MB/s  %.0f of %.0f in flight", status_text(s, "store"),
		real(s, "get_per_s"), real(s, "bytes_per_s") / 1e6, real(s, "in_flight"),
		real(s, "limit"));
	if (json_is_number(get(s, "p50_ms")))
		emit_more(e, "  p50 %.0f p99 %.0f ms", real(s, "p50_ms"), real(s, "p99_ms"));
	emit_more(e, "  retried %.1f %%", 100 * real(s, "retried"));
	if (provider[0])
		emit_more(e, "  credentials: %s", provider);
	if (provider[0] && json_is_number(get(s, "credentials_s")))
		emit_more(e, ", %.0f s left", real(s, "credentials_s"));
	add_last(e, s);
}

static void put_cache(struct emit *e, const json_t *c)
{
	double hits = real(c, "hits"), pieces = hits + real(c, "misses");

	emit_line(e, "cache %s  %s of %s, hit %.2f, evicted %.0f, mismatches %.0f",
		status_text(c, "dir"), si(real(c, "used_bytes"), "B").text,
		si(real(c, "size_bytes"), "B").text, pieces > 0 ? hits / pieces : 0,
		real(c, "evictions"), real(c, "mismatches"));
	if (real(c, "failing_s") > 0)
		emit_more(e, "  not written: tried again in %.0f s", real(c, "failing_s"));
	add_last(e, c);
}

/* ---- the daemon ---- */

/* The datasets of each stream, with their digests. */
static json_t *streams_of(const json_t *status)
{
	json_t *streams = json_array(), *last = NULL, *d;
	size_t i;

	json_array_foreach(get(status, "datasets"), i, d)
	{
		const char *stream = status_text(d, "stream");

		if (!last || strcmp(status_text(last, "stream"), stream) != 0) {
			last = json_pack("{s:s, s:[]}", "stream", stream, "datasets");
			json_array_append_new(streams, last);
		}
		json_array_append_new(get(last, "datasets"),
			json_pack("{s:s, s:s}", "dataset", status_text(d, "dataset"), "digest",
				status_text(d, "digest")));
	}
	return streams;
}

static void put_total(struct listing *l, const json_t *status)
{
	json_t *d = get(status, "daemon"), *slow = NULL, *stream, *store;
	json_t *stores = get(status, "stores"), *cache = get(status, "cache");
	struct emit *e = &l->e;
	size_t i;

	json_array_foreach(stores, i, store)
	{
		put_store(e, store);
		json_object_del(store, "first_byte");
	}
	if (json_is_object(cache))
		put_cache(e, cache);
	json_object_del(cache, "failing");
	json_array_foreach(get(status, "streams"), i, stream)
	{
		if (real(stream, "slow_ms") > real(slow, "slow_ms"))
			slow = stream;
	}
	json_object_update_missing_new(
		d, json_pack("{s:O?, s:s, s:s, s:O?, s:O?, s:o}", "slow_ms", get(slow, "slow_ms"),
			   "slow_shard", status_text(slow, "slow_shard"), "config_digest",
			   status_text(get(status, "config"), "digest"), "stores",
			   json_array_size(stores) ? stores : NULL, "cache",
			   json_array_size(stores) ? cache : NULL, "streams", streams_of(status)));
	put_members(e, d);
	emit_text(e, "socket", NULL, l->link.socket);
	emit_line(e, "tokend at %s, pid %.0f, up %.0f s, io %s", l->link.socket, real(d, "pid"),
		real(d, "uptime_ms") / 1000, status_text(d, "io"));
	emit_more(e, ", %.0f session%s, %.0f of %.0f bytes of memory", real(d, "sessions"),
		real(d, "sessions") == 1 ? "" : "s", real(d, "memory_bytes"),
		real(d, "limit_bytes"));
	if (slow)
		emit_line(e, "  stream %s waits for %s: its storage has not answered for %.0f s",
			status_text(slow, "stream"), status_text(slow, "slow_shard"),
			real(slow, "slow_ms") / 1000);
	emit_row(e);
}

/* Puts the daemon at @path. @heading: it is one of several. */
static bool put_daemon(struct listing *l, const char *path, const struct ctl_daemon *heading)
{
	json_t *status = ctl_status_at(&l->link, path, false), *session;
	size_t i;

	if (!status)
		return false;
	if (heading)
		emit_line(&l->e, "%s%s, serves %s", path,
			heading->from == PLACE_PRIVATE ? ", private" : "",
			status_text(get(status, "daemon"), "config"));
	emit_table(&l->e); /* the lines so far are above the heads */
	if (ctl_given(l->a, "watch"))
		set_rates(l, status);
	if (ctl_given(l->a, "sort")) /* otherwise by their numbers */
		sort(get(status, "sessions"), keys[ctl_number(l->a, "sort", 0)]);
	json_array_foreach(get(status, "sessions"), i, session) put_session(l, session);
	put_total(l, status);
	emit_table(&l->e);
	json_decref(status);
	return true;
}

/* Puts all daemons that are meant. False after an error. */
static bool put_all(struct listing *l)
{
	struct ctl_daemons found = {.n = 0};
	bool ok = true;

	if (!ctl_given(l->a, "socket") && !ctl_given(l->a, "config"))
		ctl_daemons_look(&l->link, &found, NULL, NULL);
	if (found.n == 0)
		return ctl_choose(&l->link, l->a, NULL, NULL) &&
		       put_daemon(l, l->link.socket, NULL);
	for (unsigned i = 0; i < found.n; i++) {
		if (i > 0)
			emit_line(&l->e, "%s", "");
		ok = put_daemon(l, found.daemon[i].path, found.n > 1 ? &found.daemon[i] : NULL) &&
		     ok;
	}
	return ok;
}

/* ---- again and again ---- */

/* Shows the lines of @text that fit on the terminal, which cuts those that are too long. */
static void show(const char *text)
{
	struct winsize size = {0};

	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	fputs("\033[H\033[?7l", stdout);
	for (unsigned row = 1; *text && (row < size.ws_row || size.ws_row == 0); row++) {
		int n = (int)strcspn(text, "\n");

		printf("\033[K%.*s\n", n, text);
		text += n + 1;
	}
	fputs("\033[J\033[?7h", stdout);
}

/* Until a signal, or an error of the first update: a daemon may stop and start meanwhile. */
static bool watch(struct listing *l, uint64_t interval_ms)
{
	struct pollfd signals = {ctl_signals(), POLLIN, 0};
	bool ok, terminal = isatty(STDOUT_FILENO) && !l->e.json;
	uint64_t now, next;

	l->link.quiet = terminal;
	for (bool first = true;; first = false) {
		char *text = NULL;
		size_t bytes;

		next = ctl_clock_ms() + interval_ms;
		l->e.to = open_memstream(&text, &bytes);
		if (!l->e.to)
			return ctl_error(PHRASE_MEMORY);
		ok = put_all(l);
		emit_end(&l->e, CTL_OK);
		fclose(l->e.to);
		if (terminal)
			show(text);
		else
			printf("%s%s", first || l->e.json ? "" : "\n", text);
		free(text);
		if (fflush(stdout) != 0)
			return ctl_error("stdout: %s", strerror(errno));
		if (!ok && terminal)
			ctl_fail("%s", l->link.why);
		if (first && !ok)
			return false;
		now = ctl_clock_ms();
		if (poll(&signals, 1, now < next ? (int)(next - now) : 0) > 0)
			return true;
	}
}

static const struct ctl_option options[] = {
	{OPTION_TEXT("socket", "PATH",
		"the daemon's socket; default: that of -c, otherwise those of all daemons that are "
		"found")},
	{CTL_CONFIG_OPTION},
	{OPTION_DECIMAL("watch", "SECONDS", 0.1, 86400,
		 "print it again and again, with rates, until Ctrl-C; time between "
		 "updates"),
		.optional = true, .preset = "1"},
	{OPTION_CHOICE("sort", "stream|run|rank|position|tokens|ready|waits",
		"the column to sort by; the highest position, rate and wait are first")},
	{CTL_JSON_OPTION},
};

static int status(const struct ctl_arguments *a)
{
	struct listing l = {.a = a, .e.json = ctl_given(a, "json"), .before = json_object()};
	bool ok;

	if (ctl_given(a, "watch"))
		ok = watch(&l, (uint64_t)(ctl_value(a, "watch")->decimal * 1000));
	else
		ok = emit_end(&l.e, put_all(&l) ? CTL_OK : CTL_FAILED) == CTL_OK;
	json_decref(l.before);
	return ok ? CTL_OK : CTL_FAILED;
}

const struct ctl_command ctl_status = {
	.name = "status",
	.head = "On a node:",
	.help = "print where each trainer is, how many batches are ready, and what it waits for",
	OPTIONS_ARE(options),
	.run = status,
};
