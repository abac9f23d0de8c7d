#include "client/ctl/offline/cost_report.h"

#include "client/ctl/common/columns.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const mode_name[COST_MODES] = {"window", "piece"};

struct printing {
	struct ctl_out out;
	struct ctl_columns table;
	const struct cost_prices *prices;
	double tokens; /* of the range */
	bool json;
};

static double dollars(const struct printing *p, const struct cost *c)
{
	return (double)c->gets / 1000 * p->prices->get + (double)c->bytes / 1e9 * p->prices->byte;
}

static double per_second(const struct printing *p, const struct cost *c)
{
	return p->tokens > 0 ? (double)c->gets * p->prices->rate / p->tokens : 0;
}

static double waste(const struct cost *c)
{
	return c->used > 0 ? (double)c->bytes / (double)c->used : 1;
}

static void put_json_decimal(struct ctl_out *out, const char *key, double value)
{
	char text[64];

	snprintf(text, sizeof(text), ",\"%s\":%.9g", key, value);
	ctl_put(out, text);
}

static void put_json_number(struct ctl_out *out, const char *key, uint64_t value)
{
	ctl_put(out, ",");
	ctl_put_pair(out, key, value);
}

/* @dataset NULL: the sum of all. */
static void put_json(
	struct printing *p, const char *dataset, enum cost_mode mode, const struct cost *c)
{
	struct ctl_out *out = &p->out;

	ctl_put(out, "{\"dataset\":");
	dataset ? ctl_put_string(out, dataset) : ctl_put(out, "null");
	ctl_put(out, ",\"mode\":");
	ctl_put_string(out, mode_name[mode]);
	put_json_number(out, "gets", c->gets);
	if (p->prices->rate > 0)
		put_json_decimal(out, "gets_per_second", per_second(p, c));
	else
		ctl_put(out, ",\"gets_per_second\":null");
	put_json_number(out, "bytes", c->bytes);
	put_json_decimal(out, "read_per_used", waste(c));
	put_json_decimal(out, "dollars", dollars(p, c));
	put_json_number(out, "cache_bytes", c->cache);
	ctl_put(out, c->exact ? ",\"exact\":true" : ",\"exact\":false");
	ctl_put(out, c->chosen ? ",\"chosen\":true}\n" : ",\"chosen\":false}\n");
}

/* "1.4 TB" */
static void add_bytes(struct ctl_columns *table, uint64_t bytes)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
	double n = (double)bytes;
	unsigned unit = 0;

	for (; n >= 999.5 && unit < 6; unit++)
		n /= 1000;
	ctl_columns_add(table, "%.*f %s", unit > 0 && n < 99.95 ? 1 : 0, n, units[unit]);
}

static void add_row(
	struct printing *p, const char *dataset, enum cost_mode mode, const struct cost *c)
{
	struct ctl_columns *table = &p->table;

	ctl_columns_add(table, "%s", dataset ? dataset : "all");
	ctl_columns_add(table, "%s%s", mode_name[mode], c->chosen ? " *" : "");
	ctl_columns_add(table, "%s%" PRIu64, c->exact ? "" : "~", c->gets);
	if (p->prices->rate > 0)
		ctl_columns_add(table, "%.3g", per_second(p, c));
	else
		ctl_columns_add(table, "-");
	add_bytes(table, c->bytes);
	ctl_columns_add(table, "%.2f", waste(c));
	ctl_columns_add(table, "%.2f", dollars(p, c));
	if (c->cache > 0)
		add_bytes(table, c->cache);
	else
		ctl_columns_add(table, "-");
}

static void add(struct cost *sum, const struct cost *c)
{
	sum->gets += c->gets;
	sum->bytes += c->bytes;
	sum->used += c->used;
	sum->cache += c->cache;
	sum->exact &= c->exact;
}

static int print(struct printing *p, const struct cursor *cursor, struct cost (*cost)[COST_MODES])
{
	struct cost sum[COST_MODES];
	bool good = true;

	for (int mode = 0; mode < COST_MODES; mode++) {
		sum[mode] = (struct cost){.exact = true};
		for (uint32_t d = 0; d < cursor->datasets; d++)
			add(&sum[mode], &cost[d][mode]);
	}
	for (uint32_t d = 0; d <= cursor->datasets; d++)
		for (enum cost_mode mode = 0; mode < COST_MODES; mode++) {
			bool all = d == cursor->datasets;

			if (all && cursor->datasets == 1)
				continue;
			(p->json ? put_json : add_row)(p, all ? NULL : cursor->dataset[d].name,
				mode, all ? &sum[mode] : &cost[d][mode]);
		}
	if (!p->json)
		good = ctl_columns_put(&p->table, &p->out);
	return ctl_finish(&p->out, good ? CTL_OK : CTL_FAILED);
}

int cost_report(const struct ctl_history *h, const struct dataset *const *map, uint64_t from,
	double tokens, uint64_t nodes, const struct cost_prices *prices, bool json)
{
	static const struct ctl_column columns[] = {{"dataset", false}, {"mode", false},
		{"GETs", true}, {"GET/s", true}, {"bytes", true}, {"read/used", true},
		{"dollars", true}, {"cache per node", true}};
	const struct cursor *cursor = &h->cursor;
	struct cost(*cost)[COST_MODES] = calloc(cursor->datasets, sizeof(*cost));
	struct printing *p = calloc(1, sizeof(*p));
	double samples = ceil(tokens / (double)cursor->seq_len),
	       left = (double)(cursor_end(cursor) - from);
	struct cost_query q = {.from = from, .nodes = nodes};
	int status = CTL_FAILED;

	q.to = samples < left ? from + (uint64_t)samples : cursor_end(cursor);
	if (!cost || !p || !cost_compute(h, map, &q, cost)) {
		ctl_fail(PHRASE_MEMORY);
	} else {
		p->table = (struct ctl_columns){
			.column = columns, .n = sizeof(columns) / sizeof(columns[0])};
		p->prices = prices;
		p->tokens = (double)(q.to - from) * (double)cursor->seq_len;
		p->json = json;
		status = print(p, cursor, cost);
	}
	free(cost);
	free(p);
	return status;
}
