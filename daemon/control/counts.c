#include "daemon/control/counts.h"

#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)

const uint64_t histogram_most_ns[COUNTS_BUCKETS] = {MS / 20, MS / 10, MS / 4, MS / 2, MS,
	MS * 5 / 2, MS * 5, MS * 10, MS * 25, MS * 50, MS * 100, MS * 250, MS * 500, MS * 1000,
	MS * 2500, MS * 10000, MS * 60000};

const char *const counts_kind[COUNTS_KINDS] = {
	"mix", "skip", "rescale", "checkpoint", "drain", "other"};

void histogram_add(struct histogram *h, uint64_t ns)
{
	unsigned i = 0;

	while (i < COUNTS_BUCKETS && ns > histogram_most_ns[i])
		i++;
	count_add(&h->bucket[i], 1);
	count_add(&h->sum_ns, ns);
}

static bool join_stream(struct counts *counts, struct stream *stream)
{
	struct stream_counts *s = calloc(1, sizeof(*s));

	stream->counts = s;
	if (!s)
		return false;
	SLIST_INSERT_HEAD(&counts->streams, s, next);
	s->samples = calloc(stream->config->datasets, sizeof(*s->samples));
	for (uint32_t i = 0; s->samples && i < stream->config->datasets; i++)
		stream->dataset[i].samples = &s->samples[i];
	return s->samples != NULL;
}

bool counts_join(struct counts *counts, const struct catalog *catalog)
{
	bool all = true;

	for (uint32_t i = 0; i < catalog->config->streams; i++)
		all &= join_stream(counts, &catalog->stream[i]);
	return all;
}

void counts_free(struct counts *counts)
{
	struct stream_counts *s;

	while ((s = SLIST_FIRST(&counts->streams))) {
		SLIST_REMOVE_HEAD(&counts->streams, next);
		free(s->samples);
		free(s);
	}
}

void counts_request(struct counts *counts, const char *kind, enum counts_outcome outcome)
{
	unsigned i = 0;

	while (i < COUNTS_KINDS - 1 && strcmp(kind, counts_kind[i]) != 0)
		i++;
	counts->requests[i][outcome]++;
}
