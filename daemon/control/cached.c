/* `tokctl cache`: what is in the cache, by dataset, and removing a dataset from it. */
#include "daemon/control/control.h"
#include "daemon/store/store.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
	DROP_MOST = 4096,	/* pieces an answer: about a second */
	REPLY_BYTES = 96 << 10, /* of the list, so that it fits a packet */
};

struct row {
	const struct stream *stream;
	const struct dataset *dataset; /* NULL: objects of no dataset */
	uint64_t objects, pieces, bytes;
};

struct job {
	struct state_job job; /* first member */
	struct control *control;
	bool drop, more;
	uint64_t dropped;
	unsigned rows;
	struct row row[]; /* row 0 has no dataset; then those in stores */
};

static void add_object(void *context, const char *url, uint64_t pieces, uint64_t bytes)
{
	struct job *job = context;
	bool found = false;

	for (unsigned i = job->rows; i-- > 0;) {
		struct row *row = &job->row[i];
		const char *root = i ? row->dataset->list.root : "";
		size_t n = strlen(root);

		if (i ? strncmp(url, root, n) != 0 || url[n] != '/' : found)
			continue;
		row->objects++;
		row->pieces += pieces;
		row->bytes += bytes;
		found = true;
	}
}

/* In the pool. */
static void cached_work(struct state_job *work)
{
	struct job *job = (struct job *)work;
	struct stores *stores = job->control->options->stores;
	char url[LIMIT_TEXT_BYTES];

	if (!job->drop)
		store_cached(stores, add_object, job);
	for (unsigned i = 1; job->drop && i < job->rows && job->dropped < DROP_MOST; i++) {
		int n = snprintf(url, sizeof(url), "%s/", job->row[i].dataset->list.root);

		if (n > 0 && (size_t)n < sizeof(url))
			job->dropped += store_uncache(stores, url, DROP_MOST - job->dropped);
	}
	job->more = job->dropped >= DROP_MOST;
}

/* Of a dataset that is read in pieces; otherwise 0. */
static uint64_t all_pieces(const struct dataset *d)
{
	uint64_t pieces = 0;

	for (uint64_t s = 0; d->piece > 0 && s < d->table.shards; s++)
		pieces += (d->entry[s].file.bytes + d->piece - 1) / d->piece;
	return pieces;
}

static json_t *put_row(const struct row *row)
{
	const struct dataset *d = row->dataset;
	json_t *object = json_pack("{s:I, s:I, s:I}", "objects", (json_int_t)row->objects, "pieces",
		(json_int_t)row->pieces, "bytes", (json_int_t)row->bytes);

	if (d) {
		json_object_set_new(object, "stream", json_string(row->stream->config->name));
		json_object_set_new(object, "dataset", json_string(d->config->name));
		json_object_set_new(object, "url", json_string(d->list.root));
		json_object_set_new(object, "all", json_integer((json_int_t)all_pieces(d)));
	}
	return object;
}

static json_t *put_rows(struct job *job)
{
	json_t *list = json_array();
	size_t bytes = 0;

	for (unsigned i = 1; i < job->rows && !job->more; i++) {
		json_t *row = put_row(&job->row[i]);

		bytes += json_dumpb(row, NULL, 0, JSON_COMPACT) + 1;
		job->more = bytes > REPLY_BYTES;
		if (!job->more)
			json_array_append(list, row);
		json_decref(row);
	}
	return list;
}

static void reply(struct connection *c, struct job *job)
{
	struct wire out = {.op = WIRE_CACHE};
	json_t *all = job->drop ? json_pack("{s:I}", "pieces", (json_int_t)job->dropped)
				: json_pack("{s:o, s:o, s:o}", "datasets", put_rows(job), "other",
					  put_row(&job->row[0]), "cache",
					  status_cache(job->control, false));
	char *text;
	struct fault fault;

	json_object_set_new(all, "more", json_boolean(job->more));
	text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	if (text) {
		wire_set_text(&out, WIRE_KIND, job->drop ? "drop" : "ls");
		wire_set_text(&out, WIRE_ARGS, text);
		connection_send(c, job->job.serial, &out);
	} else {
		fault_memory(&fault);
		connection_error(c, job->job.serial, &fault);
	}
	free(text);
}

static void cached_done(struct state_job *work)
{
	if (work->connection)
		reply(work->connection, (struct job *)work);
	free(work);
}

/* A job for the datasets called @name; NULL: for all. NULL with @fault: there is none to drop. */
static struct job *job_new(struct control *control, const char *name, struct fault *fault)
{
	const struct config *config = control->config;
	struct job *job;
	size_t most = 1;

	for (uint32_t s = 0; s < config->streams; s++)
		most += config->stream[s].datasets;
	job = calloc(1, sizeof(*job) + most * sizeof(job->row[0]));
	if (!job) {
		fault_memory(fault);
		return NULL;
	}
	job->job.work = cached_work;
	job->job.done = cached_done;
	job->control = control;
	job->drop = name;
	job->rows = 1;
	for (uint32_t s = 0; s < config->streams; s++)
		for (uint32_t i = 0; i < config->stream[s].datasets; i++) {
			const struct stream *stream = &control->catalog->stream[s];
			const struct dataset *d = &stream->dataset[i];

			if (d->objects && (!name || strcmp(d->config->name, name) == 0))
				job->row[job->rows++] = (struct row){stream, d, 0, 0, 0};
		}
	if (!name || job->rows > 1)
		return job;
	free(job);
	fault_set(fault, FAULT_REQUEST, "dataset",
		"%s has no dataset %s in a store; `tokctl cache ls` lists them", config->path,
		name);
	return NULL;
}

void cached_query(struct connection *c, const struct wire *w)
{
	struct stores *stores = c->control->options->stores;
	const struct config *config = c->control->config;
	char kind[8] = "", name[LIMIT_NAME_BYTES + 1] = "";
	struct store_cache_status status;
	bool drop = wire_text(w, WIRE_KIND, kind, sizeof(kind)) && strcmp(kind, "drop") == 0;
	struct job *job = NULL;
	struct fault fault;

	if (!stores || !store_cache_status(stores, &status))
		fault_set(&fault, FAULT_REQUEST, "cache",
			"this daemon has no cache; `cache:` in %s sets one", config->path);
	else if (!drop && strcmp(kind, "ls") != 0)
		fault_set(&fault, FAULT_REQUEST, "kind", "must be ls or drop");
	else if (drop && (!wire_text(w, WIRE_DATASET, name, sizeof(name)) || !wire_label_ok(name)))
		fault_set(&fault, FAULT_REQUEST, "dataset", "must be the name of a dataset");
	else if (drop && !runs_privileged(config, c->uid))
		fault_set(&fault, FAULT_REQUEST, "uid",
			"only root, the daemon's user and admin_uids may drop a dataset from the "
			"cache, not uid %u",
			(unsigned)c->uid);
	else
		job = job_new(c->control, drop ? name : NULL, &fault);
	if (!job) {
		connection_error(c, wire_number(w, WIRE_SERIAL), &fault);
		return;
	}
	if (drop)
		log_client(c->uid, LOG_NOTE, "uid %u (pid %d) drops dataset %s from the cache",
			(unsigned)c->uid, (int)c->pid, name);
	job->job.serial = wire_number(w, WIRE_SERIAL);
	state_give(&c->control->cache_jobs, c, &job->job);
}
