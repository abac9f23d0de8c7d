/*
 * tokctl cache: what a daemon's cache holds, removing a dataset from it, and filling it.
 *
 * The daemon says where its cache is, and which datasets it may hold, by which manifests. The files
 * are counted and removed here: they name their objects (daemon/store/cache.c), and who reads a
 * piece that is removed reads on. So only those who may read the directory can use these commands.
 *
 * `warm` is a session that reads a stream without training on it. So pieces are fetched in the
 * stream's order, as by a trainer, and the daemon needs no other way to fetch them. It ends before
 * the cache is full, because from then on pieces are evicted for later ones.
 */
#include "client/ctl/online/talk.h"
#include "client/lib/tokend.h"
#include "proto/phrases.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	ROWS = 16,
	LOOK_MS = 250,
	LOOK_SHARE = 10, /* of the time, if the cache has many files */
	FULL_PERCENT = 95,
};

/* What the cache holds of a stream's dataset. */
struct held {
	const char *stream, *name, *url; /* the status's; NULL: of no dataset */
	uint64_t all;			 /* pieces of its shards; 0: it is not read in pieces */
	uint64_t shards, sides;		 /* pieces of shards; of side files */
	uint64_t bytes;			 /* of both */
	const json_t *listed;		 /* its manifest, of struct cache */
};

struct cache {
	const struct ctl_arguments *a;
	struct ctl_link link;
	struct emit e;
	const char *drop;   /* the dataset to remove, or NULL */
	const char *stream; /* of `warm`, or NULL */

	json_t *manifests; /* as read_manifest(), by path */
	json_t *status;
	struct held *held; /* those of the command, then that of no dataset */
	size_t n;	   /* without the last */
	struct held sum;   /* of those that are read in pieces */
	uint64_t bytes;	   /* of all files */
	uint64_t dropped;  /* pieces */
	uint64_t next_ms;  /* when `warm` looks again */
};

/* ---- the files: DIR/HASH.NUMBER is a piece; its last 4 KiB begin with URL and ETag ---- */

enum { HASH_DIGITS = 32, TAIL_BYTES = 4096 };

/* The ETag of each shard, and [SIZE, ETAG] of each side file, by path or URL. null: it cannot be
 * read here. */
static json_t *read_manifest(const char *path)
{
	FILE *file = fopen(path, "re");
	json_t *listed = file ? json_object() : json_null(), *line, *side;
	const char *name;

	while (file && (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL))) {
		json_object_set(listed, status_text(line, "path"), json_object_get(line, "etag"));
		json_object_foreach(json_object_get(line, "side"), name, side)
			json_object_set(listed, name, side);
		json_decref(line);
	}
	if (file)
		fclose(file);
	return listed;
}

/* The entry of the dataset's manifest for the object at this URL, after which its ETag is; null if
 * the manifest is null; NULL: it is not one of the dataset. Objects that were replaced are dropped
 * with it, but not counted. */
static const json_t *find_entry(const struct cache *c, const struct held *h, const char *url)
{
	size_t n = strlen(h->url);
	bool below = strncmp(url, h->url, n) == 0 && url[n] == '/';
	const json_t *entry = json_object_get(h->listed, below ? url + n + 1 : url);
	const char *etag =
		json_string_value(json_is_array(entry) ? json_array_get(entry, 1) : entry);

	if (json_is_null(h->listed))
		return below ? h->listed : NULL;
	return etag && (c->drop || strcmp(etag, url + strlen(url) + 1) == 0) ? entry : NULL;
}

/* Counts a piece, and removes it if it is one of the dataset to drop. False with errno. */
static bool take_piece(struct cache *c, int dir, const char *file)
{
	struct held *others = &c->held[c->n], *of = others;
	int fd = openat(dir, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	char url[TAIL_BYTES + 1] = "";
	const json_t *entry = NULL;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return errno == ENOENT && fd < 0;
	/* A damaged one belongs to others. */
	if (pread(fd, url, TAIL_BYTES - 1, st.st_size - TAIL_BYTES) < 0)
		url[0] = 0;
	close(fd);
	for (struct held *h = c->held; h < others && !entry; h++)
		if ((entry = find_entry(c, h, url)))
			of = h;
	*(json_is_array(entry) ? &of->sides : &of->shards) += 1;
	of->bytes += (uint64_t)st.st_blocks * 512;
	c->bytes += (uint64_t)st.st_blocks * 512;
	if (!c->drop || of == others)
		return true;
	c->dropped++;
	return unlinkat(dir, file, 0) == 0 || errno == ENOENT;
}

/* Counts the files, and removes those of the dataset to drop. Follows no links: the cache may
 * belong to somebody else. False after an error. */
static bool take_files(struct cache *c, const char *path)
{
	DIR *files = opendir(path);
	bool fine = files;
	struct dirent *f;

	while (fine && (errno = 0, f = readdir(files)))
		if (strspn(f->d_name, "0123456789abcdef") == HASH_DIGITS)
			fine = take_piece(c, dirfd(files), f->d_name);
	fine = fine && errno == 0; /* at the end */
	if (!fine)
		ctl_fail("%s, the daemon's cache: uid %u cannot %s it: %s; run this command where "
			 "the daemon runs, as its user or as root",
			path, (unsigned)geteuid(), c->drop ? "remove pieces from" : "read",
			strerror(errno));
	if (files)
		closedir(files);
	return fine;
}

/* ---- the status ---- */

static uint64_t count(const struct cache *c, const char *name)
{
	return status_number(json_object_get(c->status, "cache"), name);
}

/* Is this dataset one of the command? Several streams may have it: `ls` lists the first. */
static bool is_meant(const struct cache *c, const struct held *h)
{
	if (h->url[0] == 0)
		return false;
	if (c->drop)
		return strcmp(h->name, c->drop) == 0;
	if (c->stream)
		return strcmp(h->stream, c->stream) == 0;
	for (const struct held *other = c->held; other < c->held + c->n; other++)
		if (strcmp(other->url, h->url) == 0)
			return false;
	return true;
}

static void forget(struct cache *c)
{
	json_decref(c->status);
	free(c->held);
	c->held = NULL;
	c->n = c->bytes = 0;
}

/* Asks where the cache is, and looks into it. Connects each time, because a daemon closes a
 * connection that is silent for long. False after an error. */
static bool look(struct cache *c)
{
	uint64_t begun_ms = ctl_clock_ms();
	json_t *datasets, *row;
	const char *dir, *manifest;
	size_t i;

	forget(c);
	c->status = ctl_status_at(&c->link, c->link.socket, false);
	if (!c->status)
		return false;
	dir = status_text(json_object_get(c->status, "cache"), "dir");
	datasets = json_object_get(c->status, "datasets");
	c->held = calloc(json_array_size(datasets) + 1, sizeof(*c->held));
	if (!dir[0] || !c->held)
		return ctl_fail(
			       c->held ? "this daemon has no cache; `cache:` in its config sets one"
				       : PHRASE_MEMORY) == 0;
	json_array_foreach(datasets, i, row)
	{
		struct held h = {status_text(row, "stream"), status_text(row, "dataset"),
			status_text(row, "url"), status_number(row, "pieces"), 0, 0, 0, NULL};

		if (!is_meant(c, &h))
			continue;
		manifest = status_text(row, "manifest");
		if (!json_object_get(c->manifests, manifest))
			json_object_set_new(c->manifests, manifest, read_manifest(manifest));
		h.listed = json_object_get(c->manifests, manifest);
		c->held[c->n++] = h;
	}
	if (!take_files(c, dir))
		return false;
	c->sum = (struct held){0};
	for (const struct held *h = c->held; h < c->held + c->n; h++)
		if (h->all > 0) {
			c->sum.all += h->all;
			c->sum.shards += h->shards;
			c->sum.bytes += h->bytes;
		}
	c->next_ms = ctl_clock_ms() + LOOK_MS + LOOK_SHARE * (ctl_clock_ms() - begun_ms);
	return true;
}

/* ---- ls and drop ---- */

static int list(struct cache *c)
{
	if (!look(c))
		return CTL_FAILED;
	for (size_t i = 0; i <= c->n; i++) {
		const struct held *h = &c->held[i];

		if (i == c->n && h->shards == 0)
			break;
		emit_text(&c->e, "dataset", NULL, h->name);
		emit_text(&c->e, "url", NULL, h->url);
		emit_text(&c->e, NULL, "DATASET", h->name ? h->name : "(others)");
		emit_number(&c->e, "pieces", "PIECES", h->shards + h->sides);
		emit_bytes(&c->e, "bytes", "SIZE", h->bytes);
		emit_text(&c->e, NULL, "URL", h->url ? h->url : "");
		emit_row(&c->e);
	}
	return CTL_OK;
}

static int drop(struct cache *c)
{
	c->drop = c->a->argument[0];
	if (!look(c))
		return CTL_FAILED;
	if (c->n == 0)
		return ctl_fail("the daemon has no dataset %s in a store; `tokctl cache ls` lists "
				"them",
			c->drop);
	emit_text(&c->e, "dataset", NULL, c->drop);
	emit_number(&c->e, "pieces", NULL, c->dropped);
	emit_line(&c->e, "dropped %" PRIu64 " pieces", c->dropped);
	return CTL_OK;
}

/* ---- warm ---- */

/* Reads until there is a reason to stop, and returns it. NULL after an error. */
static const char *read_stream(struct cache *c, struct tokend *t, uint64_t evictions)
{
	uint64_t to = ctl_number(c->a, "to", UINT64_MAX), pieces;
	struct tokend_batch batch;
	int got;

	for (;;) {
		if (tokend_taken(t) >= to)
			return "reached";
		if (c->sum.shards >= c->sum.all)
			return "all pieces are there";
		if (count(c, "evictions") > evictions ||
			c->bytes > count(c, "size_bytes") / 100 * FULL_PERCENT)
			return "the cache is full";
		got = tokend_next(t, &batch);
		if (got == 0)
			return "the stream ends there";
		if (got < 0) {
			ctl_fail("%s", tokend_why(t));
			return NULL;
		}
		tokend_release(t, &batch);
		if (ctl_clock_ms() < c->next_ms)
			continue;
		pieces = c->sum.shards;
		if (!look(c))
			return NULL;
		ctl_progress_add(c->sum.shards > pieces ? c->sum.shards - pieces : 0);
	}
}

static int warm(struct cache *c)
{
	const struct tokend_options session = {.size = sizeof(session),
		.socket = c->link.socket,
		.stream = c->stream,
		.run = "tokctl-warm",
		.world = 1,
		.micro_batch = ROWS,
		.position = ctl_number(c->a, "from", 0),
		.start_at_position = 1};
	uint64_t misses, evictions, position;
	const char *end = NULL;
	struct tokend *t;
	char why[1500];

	if (!look(c)) /* before its ring fetches anything */
		return CTL_FAILED;
	misses = count(c, "misses");
	evictions = count(c, "evictions");
	if (tokend_attach(&t, &session, why, sizeof(why)) < 0)
		return ctl_fail("%s", why);
	ctl_progress_begin("warming", "pieces", c->sum.all - c->sum.shards);
	if (c->sum.all == 0)
		ctl_fail("stream %s: none of its datasets is read in pieces; `tokend --check` says "
			 "why",
			c->stream);
	else
		end = read_stream(c, t, evictions);
	ctl_progress_end();
	position = tokend_taken(t);
	tokend_detach(t);
	if (!end || !look(c))
		return CTL_FAILED;
	misses = count(c, "misses") - misses;
	emit_text(&c->e, "stream", NULL, c->stream);
	emit_number(&c->e, "pieces", NULL, c->sum.shards);
	emit_number(&c->e, "all", NULL, c->sum.all);
	emit_number(&c->e, "bytes", NULL, c->sum.bytes);
	emit_number(&c->e, "fetched", NULL, misses);
	emit_number(&c->e, "position", NULL, position);
	emit_text(&c->e, "end", NULL, end);
	emit_line(&c->e,
		"%" PRIu64 " of %" PRIu64 " pieces (%s) are in the cache, %" PRIu64
		" of them fetched now; position %" PRIu64 ": %s",
		c->sum.shards, c->sum.all, si((double)c->sum.bytes, "B").text, misses, position,
		end);
	return CTL_OK;
}

/* ---- the commands ---- */

static const struct ctl_command ls_command, drop_command, warm_command;

static int run(const struct ctl_arguments *a)
{
	struct cache c = {.a = a,
		.manifests = json_object(),
		.stream = a->command == &warm_command ? a->argument[0] : NULL,
		.e.json = ctl_given(a, "json")};
	int status;

	if (!ctl_choose(&c.link, a, NULL, NULL))
		return CTL_FAILED;
	status = a->command == &ls_command     ? list(&c)
		 : a->command == &drop_command ? drop(&c)
					       : warm(&c);
	forget(&c);
	json_decref(c.manifests);
	return emit_end(&c.e, status);
}

static const struct ctl_option options[] = {
	{CTL_SOCKET_OPTION}, {CTL_CONFIG_OPTION}, {CTL_JSON_OPTION}};
static const struct ctl_option warm_options[] = {{CTL_SOCKET_OPTION}, {CTL_CONFIG_OPTION},
	{CTL_JSON_OPTION},
	{OPTION_NUMBER("from", "POSITION", 0, UINT64_MAX - 1, "position of the first sample"),
		.preset = "0"},
	{OPTION_NUMBER("to", "POSITION", 0, UINT64_MAX - 1,
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
