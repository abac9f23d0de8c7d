#include "daemon/control/cached.h"

#include "daemon/control/control.h"
#include "daemon/control/log.h"
#include "daemon/control/status.h"
#include "daemon/store/store.h"
#include "daemon/store/sums.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	DROP_MOST = 4096,	/* pieces an answer: about a second of hole punching */
	REPLY_BYTES = 96 << 10, /* of the list, so that it fits a packet */
};

struct row {
	const struct dataset *dataset;
	uint64_t objects, pieces, bytes;
};

struct job {
	struct state_job job; /* first member */
	struct control *control;
	bool drop, more;
	uint64_t dropped;
	struct row other; /* objects of no dataset */
	unsigned rows;
	struct row row[]; /* datasets in stores, each URL once; for a drop, those to be removed */
};

/* Whether @url is below the dataset's directory. */
static bool is_of(const struct dataset *d, const char *url)
{
	size_t n = strlen(d->root);

	return strncmp(url, d->root, n) == 0 && url[n] == '/';
}

static void count(struct row *row, uint64_t pieces, uint64_t bytes)
{
	row->objects++;
	row->pieces += pieces;
	row->bytes += bytes;
}

static void add_object(void *context, const char *url, uint64_t pieces, uint64_t bytes)
{
	struct job *job = context;
	bool found = false;

	for (unsigned i = 0; i < job->rows; i++) {
		if (!is_of(job->row[i].dataset, url))
			continue;
		count(&job->row[i], pieces, bytes);
		found = true;
	}
	if (!found)
		count(&job->other, pieces, bytes);
}

static void drop_row(struct job *job, const struct row *row)
{
	char url[LIMIT_TEXT_BYTES];
	int n = snprintf(url, sizeof(url), "%s/", row->dataset->root);

	if (n > 0 && (size_t)n < sizeof(url) && job->dropped < DROP_MOST)
		job->dropped +=
			store_uncache(job->control->stores.stores, url, DROP_MOST - job->dropped);
}

/* In the pool. */
static void cached_work(struct state_job *work)
{
	struct job *job = (struct job *)work;

	if (!job->drop)
		store_cached(job->control->stores.stores, add_object, job);
	for (unsigned i = 0; job->drop && i < job->rows; i++)
		drop_row(job, &job->row[i]);
	job->more = job->dropped >= DROP_MOST;
}

/* Of a dataset that is read in pieces; otherwise 0. */
static uint64_t all_pieces(const struct dataset *d)
{
	uint64_t pieces = 0;

	for (uint64_t s = 0; d->piece > 0 && s < d->table.shards; s++)
		pieces += sums_pieces(d->sizes[s], d->piece);
	return pieces;
}

/* The streams that read the dataset's directory, and its pieces if one of them reads those. */
static void put_readers(json_t *object, const struct catalog *catalog, const char *root)
{
	json_t *streams = json_array();
	uint64_t all = 0;

	for (uint32_t s = 0; s < catalog->config->streams; s++) {
		const struct stream *stream = &catalog->stream[s];
		bool reads = false;

		for (uint32_t i = 0; i < stream->config->datasets; i++) {
			const struct dataset *d = &stream->dataset[i];

			if (!d->objects || strcmp(d->root, root) != 0)
				continue;
			reads = true;
			all = all > 0 ? all : all_pieces(d);
		}
		if (reads)
			json_array_append_new(streams, json_string(stream->config->name));
	}
	json_object_set_new(object, "all", json_integer((json_int_t)all));
	json_object_set_new(object, "streams", streams);
}

static json_t *put_row(const struct job *job, const struct row *row)
{
	json_t *object = json_pack("{s:I, s:I, s:I}", "objects", (json_int_t)row->objects, "pieces",
		(json_int_t)row->pieces, "bytes", (json_int_t)row->bytes);

	if (!row->dataset)
		return object;
	json_object_set_new(object, "dataset", json_string(row->dataset->config->name));
	json_object_set_new(object, "url", json_string(row->dataset->root));
	put_readers(object, job->control->catalog, row->dataset->root);
	return object;
}

static json_t *put_rows(struct job *job)
{
	json_t *list = json_array();
	size_t bytes = 0;

	for (unsigned i = 0; i < job->rows && !job->more; i++) {
		json_t *row = put_row(job, &job->row[i]);

		bytes += json_dumpb(row, NULL, 0, JSON_COMPACT) + 1;
		job->more = bytes > REPLY_BYTES;
		if (!job->more)
			json_array_append(list, row);
		json_decref(row);
	}
	return list;
}

static char *put_reply(struct job *job)
{
	json_t *all = job->drop ? json_pack("{s:I}", "pieces", (json_int_t)job->dropped)
				: json_pack("{s:o, s:o, s:o}", "datasets", put_rows(job), "other",
					  put_row(job, &job->other), "cache",
					  status_cache(&job->control->stores, false));
	char *text;

	json_object_set_new(all, "more", json_boolean(job->more));
	text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	return text;
}

static void reply(struct connection *c, struct job *job)
{
	struct wire out = {.op = WIRE_CACHE};
	char *text = put_reply(job);
	struct fault fault;

	if (!text) {
		fault_memory(&fault);
		connection_error(c, job->job.serial, &fault);
		return;
	}
	wire_set_text(&out, WIRE_KIND, job->drop ? "drop" : "ls");
	wire_set_text(&out, WIRE_ARGS, text);
	connection_send(c, job->job.serial, &out);
	free(text);
}

static void cached_done(struct state_job *work)
{
	struct job *job = (struct job *)work;
	struct connection *c = state_back(work);

	if (c)
		reply(c, job);
	free(job);
}

static void cached_late(struct connection *c, const struct state_job *job)
{
	struct fault fault;

	fault_set(&fault, FAULT_REQUEST, "cache",
		"the cache's disk has not answered for %d s; check its file system",
		STATE_DEADLINE_MS / 1000);
	connection_error(c, job->serial, &fault);
}

/* Adds the dataset to the job's rows, unless its directory is there already. */
static void add_row(struct job *job, const struct dataset *d)
{
	for (unsigned i = 0; i < job->rows; i++)
		if (strcmp(job->row[i].dataset->root, d->root) == 0)
			return;
	job->row[job->rows++].dataset = d;
}

/* Takes the datasets called @name; NULL: all. Returns how many there are, local ones included. */
static unsigned take_datasets(struct job *job, const struct catalog *catalog, const char *name)
{
	unsigned found = 0;

	for (uint32_t s = 0; s < catalog->config->streams; s++)
		for (uint32_t i = 0; i < catalog->stream[s].config->datasets; i++) {
			const struct dataset *d = &catalog->stream[s].dataset[i];

			if (name && strcmp(d->config->name, name) != 0)
				continue;
			found++;
			if (d->objects)
				add_row(job, d);
		}
	return found;
}

static struct job *job_new(struct connection *c)
{
	const struct catalog *catalog = c->control->catalog;
	size_t most = 0;
	struct job *job;

	for (uint32_t s = 0; s < catalog->config->streams; s++)
		most += catalog->stream[s].config->datasets;
	job = calloc(1, sizeof(*job) + most * sizeof(job->row[0]));
	if (!job)
		return NULL;
	job->job =
		(struct state_job){.work = cached_work, .done = cached_done, .late = cached_late};
	job->control = c->control;
	return job;
}

static bool may_drop(const struct connection *c, struct fault *fault)
{
	if (runs_privileged(c->control->config, c->uid))
		return true;
	return fault_set(fault, FAULT_REQUEST, "uid",
		"only root, the daemon's user and admin_uids may drop a dataset from the cache, "
		"not uid %u",
		(unsigned)c->uid);
}

static bool has_cache(const struct control *control)
{
	struct store_cache_status status;

	return control->stores.stores && store_cache_status(control->stores.stores, &status);
}

static bool read_query(
	struct connection *c, struct job *job, const struct wire *w, struct fault *fault)
{
	char kind[8], name[LIMIT_NAME_BYTES + 1];

	if (!has_cache(c->control))
		return fault_set(fault, FAULT_REQUEST, "cache",
			"this daemon has no cache; `cache:` in %s sets one",
			c->control->config->path);
	if (c->errand)
		return fault_set(fault, FAULT_REQUEST, "connection",
			"already waits for another reply; open another connection");
	if (!wire_text(w, WIRE_KIND, kind, sizeof(kind)) ||
		(strcmp(kind, "ls") != 0 && strcmp(kind, "drop") != 0))
		return fault_set(fault, FAULT_REQUEST, "kind", "must be ls or drop");
	job->drop = strcmp(kind, "drop") == 0;
	if (!job->drop) {
		take_datasets(job, job->control->catalog, NULL);
		return true;
	}
	if (!wire_text(w, WIRE_DATASET, name, sizeof(name)) || !wire_label_ok(name))
		return fault_set(fault, FAULT_REQUEST, "dataset", "must be the name of a dataset");
	if (!may_drop(c, fault))
		return false;
	if (take_datasets(job, job->control->catalog, name) == 0)
		return fault_set(fault, FAULT_REQUEST, "dataset",
			"%s has no dataset %s; `tokctl cache ls` lists those in stores",
			c->control->config->path, name);
	return job->rows > 0 || fault_set(fault, FAULT_REQUEST, "dataset",
					"%s is on the disk, and so not in the cache", name);
}

void cached_query(struct connection *c, const struct wire *w)
{
	uint64_t serial = wire_number(w, WIRE_SERIAL);
	struct job *job = job_new(c);
	struct fault fault;

	fault_memory(&fault);
	if (!job || !read_query(c, job, w, &fault)) {
		free(job);
		connection_error(c, serial, &fault);
		return;
	}
	if (job->drop)
		log_client(c->uid, LOG_NOTE, "uid %u (pid %d) drops dataset %s from the cache",
			(unsigned)c->uid, (int)c->pid, job->row[0].dataset->config->name);
	job->job.serial = serial;
	state_give(&c->control->cache_jobs, c, &job->job);
}
