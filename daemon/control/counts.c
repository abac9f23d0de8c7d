#include "daemon/control/control.h"

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

bool counts_join(struct counts *counts, const struct catalog *catalog)
{
	uint32_t datasets = 0;

	for (uint32_t i = 0; i < catalog->config->streams; i++)
		datasets += catalog->config->stream[i].datasets;
	counts->streams = calloc(catalog->config->streams, sizeof(*counts->streams));
	counts->samples = calloc(datasets, sizeof(*counts->samples));
	if (!counts->streams || !counts->samples)
		return false;
	for (uint32_t i = catalog->config->streams; i-- > 0;) {
		struct stream *stream = &catalog->stream[i];

		stream->counts = &counts->streams[i];
		for (uint32_t d = stream->config->datasets; d-- > 0;)
			stream->dataset[d].samples = &counts->samples[--datasets];
	}
	return true;
}

void counts_free(struct counts *counts)
{
	free(counts->streams);
	free(counts->samples);
}

void counts_request(struct counts *counts, const char *kind, enum counts_outcome outcome)
{
	unsigned i = 0;

	while (i < COUNTS_KINDS - 1 && strcmp(kind, counts_kind[i]) != 0)
		i++;
	counts->requests[i][outcome]++;
}
