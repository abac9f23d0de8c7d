/* Prints the result of a proof: the verdict, then its numbers, what was skipped, and the faults. */
#include "client/ctl/offline/offline.h"

#include <inttypes.h>

static const char *const finding_name[FINDINGS] = {"repeated", "lost", "altered"};

static void put_number(struct emit *e, const char *name, uint64_t value, const char *about)
{
	emit_number(e, name, name, value);
	if (about)
		emit_more(e, "  %s", about);
}

static void put_numbers(struct emit *e, const struct proof *p)
{
	const struct records *r = p->records;
	uint64_t whole = proof_whole_to(p);

	emit_fields(e);
	emit_number(e, "peer", r->peers > 1 ? "peer" : NULL, p->peer->peer);
	emit_number(e, "pass", r->passes > 1 ? "pass" : NULL, p->peer->pass);
	put_number(e, "samples", p->samples, NULL);
	for (int kind = 0; kind < FINDINGS; kind++)
		put_number(e, finding_name[kind], p->found[kind], NULL);
	put_number(e, "skipped", p->skipped, "by request");
	put_number(e, "void", p->voided, "undone by restarts");
	put_number(e, "outside", p->outside, "not in the range from..to");
	put_number(e, "generations", p->peer->generations, NULL);
	emit_number(e, "records", NULL, r->files);
	put_number(e, "from", p->from, NULL);
	put_number(e, "to", p->to, NULL);
	put_number(e, "sum", p->sum, NULL);
	emit_number(e, "seq_len", NULL, r->s->stream->begin.seq_len);
	if (whole > p->from)
		emit_number(e, "whole_to", NULL, whole);
	emit_table(e);
}

static void put_skips(struct emit *e, const struct proof *p)
{
	emit_open(e, "skips", '[');
	for (size_t i = 0; i < p->skips; i++) {
		emit_open(e, "", '[');
		emit_number(e, "", NULL, p->skip[i].from);
		emit_number(e, "", NULL, p->skip[i].to);
		emit_close(e, ']');
		emit_line(e, "skipped: positions %" PRIu64 " to %" PRIu64, p->skip[i].from,
			p->skip[i].to - 1);
	}
	emit_close(e, ']');
}

/* Where the tokens should have been taken from. */
static void put_source(struct emit *e, const struct proof *p, uint64_t position)
{
	struct proof_source source = proof_source(p, position);

	if (source.shard) {
		emit_text(e, "dataset", NULL, source.dataset);
		emit_text(e, "shard", NULL, source.shard);
		emit_number(e, "offset", NULL, source.offset);
		emit_more(e, "  dataset %s  shard %s  offset %" PRIu64, source.dataset,
			source.shard, source.offset);
	} else if (source.dataset) {
		emit_more(e, "  dataset %s, which is no longer in the config", source.dataset);
	} else {
		emit_more(e, "  past the end of the stream");
	}
}

static void put_finding(
	struct emit *e, const struct proof *p, enum finding_kind kind, const struct finding *f)
{
	const struct record_generation *g = proof_generation(p, f->position);

	emit_line(e, "%s: position %" PRIu64, finding_name[kind], f->position);
	emit_open(e, "", '{');
	emit_text(e, "fault", NULL, finding_name[kind]);
	emit_number(e, "position", NULL, f->position);
	emit_number(e, "count", NULL, f->count);
	put_source(e, p, f->position);
	if (kind != LOST) {
		emit_text(e, "record", NULL, p->records->file[f->file].path);
		emit_more(e, "  in %s", p->records->file[f->file].path);
	} else if (g) {
		emit_number(e, "rank", NULL, proof_rank(g, f->position));
		emit_number(e, "world", NULL, g->world);
		emit_more(e, "  of rank %" PRIu64 " of %" PRIu64, proof_rank(g, f->position),
			g->world);
	}
	if (f->count > 1)
		emit_more(e, "  and %" PRIu64 " more after it", f->count - 1);
	emit_close(e, '}');
}

static void put_findings(struct emit *e, const struct proof *p)
{
	emit_open(e, "faults", '[');
	for (int kind = 0; kind < FINDINGS; kind++) {
		uint64_t shown = 0;

		for (unsigned i = 0; i < p->shown[kind]; i++) {
			put_finding(e, p, (enum finding_kind)kind, &p->finding[kind][i]);
			shown += p->finding[kind][i].count;
		}
		if (p->found[kind] > shown)
			emit_line(e, "%s: and %" PRIu64 " more", finding_name[kind],
				p->found[kind] - shown);
	}
	emit_close(e, ']');
}

static void put_datasets(struct emit *e, const struct proof *p)
{
	emit_open(e, "datasets", '[');
	for (size_t i = 0; i < p->records->datasets; i++) {
		emit_open(e, "", '{');
		emit_text(e, "name", NULL, p->records->dataset[i].name);
		emit_number(e, "samples", NULL, p->served[i].samples);
		emit_number(e, "epochs", NULL, p->served[i].epochs);
		emit_number(e, "windows", NULL, p->records->dataset[i].windows);
		emit_close(e, '}');
	}
	emit_close(e, ']');
}

static void put_mix(
	struct emit *e, uint64_t from, const struct record_order *o, const struct order_segment *s)
{
	emit_open(e, "", '{');
	emit_number(e, "from", NULL, from);
	emit_open(e, "shares", '{');
	for (uint32_t d = 0; d < s->datasets; d++)
		if (s->units[d] > 0)
			emit_share(e, o->cursor.dataset[d].name, NULL, ctl_fraction(s, d));
	emit_close(e, '}');
	emit_close(e, '}');
}

/* The mixes that were in force in the range. */
static void put_mixes(struct emit *e, const struct proof *p)
{
	const struct order_segment *last = NULL;
	uint64_t at = p->from;

	emit_open(e, "mixes", '[');
	for (size_t f = 0; f < p->peer->forces && at < p->to; f++) {
		const struct record_order *o = &p->records->order[p->peer->force[f].order];
		uint64_t end = f + 1 < p->peer->forces ? p->peer->force[f + 1].from : p->to;

		for (uint32_t i = 0; i < o->order.segments; i++) {
			const struct order_segment *s = o->order.segment[i];
			uint64_t to = i + 1 < o->order.segments ? o->order.segment[i + 1]->start
								: UINT64_MAX;

			if (to <= at || at >= end || at >= p->to || s->start > at)
				continue;
			if (!last || !ctl_same_segment(last, s))
				put_mix(e, at, o, s);
			last = s;
			at = to < end ? to : end;
		}
	}
	emit_close(e, ']');
}

static void put_lives(struct emit *e, const struct proof *p)
{
	emit_open(e, "lives", '[');
	for (size_t i = 0; i < p->peer->lives; i++) {
		const struct record_life *l = &p->peer->life[i];

		emit_open(e, "", '{');
		emit_number(e, "time_ns", NULL, l->begin.time_ns);
		emit_number(e, "position", NULL, l->begin.position);
		emit_number(e, "left", NULL, l->begin.left);
		emit_number(e, "world", NULL, l->begin.world);
		emit_number(e, "micro_batch", NULL, l->begin.micro_batch);
		emit_number(e, "ranks", NULL, l->ranks);
		emit_number(e, "reached", NULL, l->reached);
		emit_close(e, '}');
	}
	emit_close(e, ']');
}

void proof_put(struct emit *e, const struct proof *p)
{
	char verdict[PROOF_VERDICT_BYTES];

	proof_verdict(p, verdict);
	emit_line(e, "%s", verdict);
	put_numbers(e, p);
	put_skips(e, p);
	put_findings(e, p);
	put_datasets(e, p);
	put_mixes(e, p);
	put_lives(e, p);
	emit_text(e, "verdict", NULL, verdict);
	emit_row(e);
}
