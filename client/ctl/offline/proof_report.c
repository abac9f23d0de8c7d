#include "client/ctl/offline/proof_report.h"

#include "client/ctl/common/columns.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/share.h"
#include "client/ctl/offline/history.h"
#include "client/ctl/offline/proof_lives.h"
#include "client/ctl/offline/proof_verdict.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const finding_name[FINDINGS] = {"repeated", "lost", "altered"};

static void put_where(struct ctl_out *out, const char *before, uint64_t value)
{
	ctl_put(out, before);
	ctl_put_number(out, value);
}

static void put_finding(
	struct ctl_out *out, const struct proof *p, enum finding_kind kind, const struct finding *f)
{
	struct proof_source source = proof_source(p, f->position);
	const struct record_generation *g = proof_generation(p, f->position);

	ctl_put(out, finding_name[kind]);
	put_where(out, ": position ", f->position);
	if (source.shard) {
		ctl_put(out, "  dataset ");
		ctl_put_left(out, source.dataset, 0);
		ctl_put(out, "  shard ");
		ctl_put_left(out, source.shard, 0);
		put_where(out, "  offset ", source.offset);
	} else if (source.dataset) {
		ctl_put(out, "  dataset ");
		ctl_put_left(out, source.dataset, 0);
		ctl_put(out, ", which is no longer in the config");
	} else {
		ctl_put(out, "  past the end of the stream");
	}
	if (kind != LOST) {
		ctl_put(out, "  in ");
		ctl_put_left(out, p->records->file[f->file].path, 0);
	} else if (g) {
		put_where(out, "  of rank ", proof_rank(g, f->position));
		put_where(out, " of ", g->world);
	}
	if (f->count > 1) {
		put_where(out, "  and ", f->count - 1);
		ctl_put(out, " more after it");
	}
	ctl_put(out, "\n");
}

static void add_field(
	struct ctl_columns *table, const char *name, uint64_t value, const char *about)
{
	ctl_columns_add(table, "%s", name);
	ctl_columns_add(table, "%" PRIu64, value);
	ctl_columns_add(table, "%s", about);
}

static bool put_table(struct ctl_out *out, const struct proof *p)
{
	static const struct ctl_column columns[] = {{NULL, false}, {NULL, true}, {NULL, false}};
	struct ctl_columns table = {.column = columns, .n = sizeof(columns) / sizeof(columns[0])};

	if (p->records->peers > 1)
		add_field(&table, "peer", p->peer->peer, "");
	if (p->records->passes > 1)
		add_field(&table, "pass", p->peer->pass, "over the stream");
	add_field(&table, "samples", p->samples, "");
	add_field(&table, "repeated", p->found[REPEATED], "");
	add_field(&table, "lost", p->found[LOST], "");
	add_field(&table, "altered", p->found[ALTERED], "");
	add_field(&table, "skipped", p->skipped, "by request");
	add_field(&table, "void", p->voided, "undone by restarts");
	add_field(&table, "outside", p->outside, "not in the range from..to");
	add_field(&table, "generations", p->peer->generations, "");
	add_field(&table, "from", p->from, "");
	add_field(&table, "to", p->to, "");
	add_field(&table, "sum", p->sum, "");
	return ctl_columns_put(&table, out);
}

bool proof_put_text(struct ctl_out *out, const struct proof *p)
{
	char verdict[PROOF_VERDICT_BYTES];

	proof_verdict(p, verdict);
	ctl_put_left(out, verdict, 0);
	ctl_put(out, "\n");
	if (!put_table(out, p))
		return false;
	for (size_t i = 0; i < p->skips; i++) {
		put_where(out, "skipped: positions ", p->skip[i].from);
		put_where(out, " to ", p->skip[i].to - 1);
		ctl_put(out, "\n");
	}
	for (int kind = 0; kind < FINDINGS; kind++) {
		uint64_t shown = 0;

		for (unsigned i = 0; i < p->shown[kind]; i++) {
			put_finding(out, p, (enum finding_kind)kind, &p->finding[kind][i]);
			shown += p->finding[kind][i].count;
		}
		if (p->found[kind] > shown) {
			ctl_put(out, finding_name[kind]);
			put_where(out, ": and ", p->found[kind] - shown);
			ctl_put(out, " more\n");
		}
	}
	return true;
}

static void put_json_finding(
	struct ctl_out *out, const struct proof *p, enum finding_kind kind, const struct finding *f)
{
	struct proof_source source = proof_source(p, f->position);
	const struct record_generation *g = proof_generation(p, f->position);

	ctl_put(out, "{\"fault\":");
	ctl_put_string(out, finding_name[kind]);
	ctl_put(out, ",");
	ctl_put_pair(out, "position", f->position);
	ctl_put(out, ",");
	ctl_put_pair(out, "count", f->count);
	if (source.shard) {
		ctl_put(out, ",\"dataset\":");
		ctl_put_string(out, source.dataset);
		ctl_put(out, ",\"shard\":");
		ctl_put_string(out, source.shard);
		ctl_put(out, ",");
		ctl_put_pair(out, "offset", source.offset);
	}
	if (kind != LOST) {
		ctl_put(out, ",\"record\":");
		ctl_put_string(out, p->records->file[f->file].path);
	} else if (g) {
		ctl_put(out, ",");
		ctl_put_pair(out, "rank", proof_rank(g, f->position));
		ctl_put(out, ",");
		ctl_put_pair(out, "world", g->world);
	}
	ctl_put(out, "}");
}

static void put_json_lists(struct ctl_out *out, const struct proof *p)
{
	const char *comma = "";

	ctl_put(out, ",\"skips\":[");
	for (size_t i = 0; i < p->skips; i++) {
		put_where(out, i ? ",[" : "[", p->skip[i].from);
		put_where(out, ",", p->skip[i].to);
		ctl_put(out, "]");
	}
	ctl_put(out, "],\"faults\":[");
	for (int kind = 0; kind < FINDINGS; kind++)
		for (unsigned i = 0; i < p->shown[kind]; i++) {
			ctl_put(out, comma);
			put_json_finding(out, p, (enum finding_kind)kind, &p->finding[kind][i]);
			comma = ",";
		}
	ctl_put(out, "]");
}

static void put_json_datasets(struct ctl_out *out, const struct proof *p)
{
	for (size_t i = 0; i < p->records->datasets; i++) {
		const struct record_dataset *d = &p->records->dataset[i];

		ctl_put(out, i ? ",{\"name\":" : ",\"datasets\":[{\"name\":");
		ctl_put_string(out, d->name);
		ctl_put(out, ",");
		ctl_put_pair(out, "samples", p->served[i].samples);
		ctl_put(out, ",");
		ctl_put_pair(out, "epochs", p->served[i].epochs);
		ctl_put(out, ",");
		ctl_put_pair(out, "windows", d->windows);
		ctl_put(out, "}");
	}
	ctl_put(out, "]");
}

static void put_json_mix(
	struct ctl_out *out, const struct record_order *o, const struct order_segment *s)
{
	const char *comma = "";
	char share[32];

	ctl_put(out, ",\"shares\":{");
	for (uint32_t d = 0; d < s->datasets; d++) {
		if (s->units[d] == 0)
			continue;
		ctl_put(out, comma);
		ctl_put_string(out, o->cursor.dataset[d].name);
		snprintf(share, sizeof(share), ":%.9g", ctl_fraction(s, d));
		ctl_put(out, share);
		comma = ",";
	}
	ctl_put(out, "}}");
}

/* The mixes that were in force in the range. */
static void put_json_mixes(struct ctl_out *out, const struct proof *p)
{
	const struct order_segment *last = NULL;
	uint64_t at = p->from;

	ctl_put(out, ",\"mixes\":[");
	for (size_t f = 0; f < p->peer->forces && at < p->to; f++) {
		const struct record_order *o = &p->records->order[p->peer->force[f].order];
		uint64_t end = f + 1 < p->peer->forces ? p->peer->force[f + 1].from : p->to;

		for (uint32_t i = 0; i < o->order.segments; i++) {
			const struct order_segment *s = o->order.segment[i];
			uint64_t to = i + 1 < o->order.segments ? o->order.segment[i + 1]->start
								: UINT64_MAX;

			if (to <= at || at >= end || at >= p->to || s->start > at)
				continue;
			if (!last || !ctl_same_segment(last, s)) {
				ctl_put(out, last ? ",{" : "{");
				ctl_put_pair(out, "from", at);
				put_json_mix(out, o, s);
			}
			last = s;
			at = to < end ? to : end;
		}
	}
	ctl_put(out, "]");
}

static bool put_json_lives(struct ctl_out *out, const struct proof *p)
{
	size_t n;
	struct proof_life *life = proof_lives(p->peer, &n);

	for (size_t i = 0; life && i < n; i++) {
		const struct {
			const char *name;
			uint64_t value;
		} pair[] = {
			{"time_ns", life[i].time_ns},
			{"position", life[i].position},
			{"left", life[i].left},
			{"world", life[i].world},
			{"micro_batch", life[i].micro_batch},
			{"ranks", life[i].ranks},
			{"reached", life[i].reached},
		};

		ctl_put(out, i ? "},{" : ",\"lives\":[{");
		for (size_t m = 0; m < sizeof(pair) / sizeof(pair[0]); m++) {
			ctl_put(out, m ? "," : "");
			ctl_put_pair(out, pair[m].name, pair[m].value);
		}
	}
	ctl_put(out, life ? "}]" : "");
	free(life);
	return life || ctl_fail(PHRASE_MEMORY) == CTL_OK;
}

bool proof_put_json(struct ctl_out *out, const struct proof *p)
{
	const struct {
		const char *name;
		uint64_t value;
	} pair[] = {
		{"peer", p->peer->peer},
		{"pass", p->peer->pass},
		{"samples", p->samples},
		{"repeated", p->found[REPEATED]},
		{"lost", p->found[LOST]},
		{"altered", p->found[ALTERED]},
		{"skipped", p->skipped},
		{"void", p->voided},
		{"outside", p->outside},
		{"generations", p->peer->generations},
		{"records", p->records->files},
		{"from", p->from},
		{"to", p->to},
		{"sum", p->sum},
		{"seq_len", p->records->s->stream->begin.seq_len},
	};
	uint64_t whole = proof_whole_to(p);
	char verdict[PROOF_VERDICT_BYTES];

	proof_verdict(p, verdict);
	for (size_t i = 0; i < sizeof(pair) / sizeof(pair[0]); i++) {
		ctl_put(out, i ? "," : "{");
		ctl_put_pair(out, pair[i].name, pair[i].value);
	}
	if (whole > p->from) {
		ctl_put(out, ",");
		ctl_put_pair(out, "whole_to", whole);
	}
	put_json_lists(out, p);
	put_json_datasets(out, p);
	put_json_mixes(out, p);
	if (!put_json_lives(out, p))
		return false;
	ctl_put(out, ",\"verdict\":");
	ctl_put_string(out, verdict);
	ctl_put(out, "}\n");
	return true;
}
