#include "client/ctl/offline/proof_report.h"

#include "client/ctl/common/error.h"

#include <inttypes.h>

static const char *const finding_name[FINDINGS] = {"repeated", "lost", "altered"};

static void put_field(struct ctl_out *out, const char *name, uint64_t value, const char *about)
{
	ctl_put_left(out, name, 12);
	ctl_put_right(out, value, 20);
	ctl_put(out, about ? "  " : "");
	ctl_put(out, about ? about : "");
	ctl_put(out, "\n");
}

struct place_text {
	bool known;
	const char *dataset, *shard;
	uint64_t offset;
};

static struct place_text describe(const struct proof *p, uint64_t position)
{
	const struct ctl_history *h = p->history;
	struct place_text text = {0};
	struct order_place place;
	uint64_t shard;

	if (!proof_place(p, position, &place))
		return text;

	const struct dataset *dataset = p->map[place.dataset];

	text.dataset = h->widest->dataset[place.dataset].name;
	if (!dataset)
		return text;
	table_locate(&dataset->table, &h->widest->order[place.dataset], h->widest->seed,
		place.epoch, place.window, &shard, &text.offset);
	text.shard = dataset_shard_name(dataset, shard);
	text.known = true;
	return text;
}

static void put_where(struct ctl_out *out, const char *before, uint64_t value)
{
	ctl_put(out, before);
	ctl_put_number(out, value);
}

static void put_finding(
	struct ctl_out *out, const struct proof *p, enum finding_kind kind, const struct finding *f)
{
	struct place_text text = describe(p, f->position);
	const struct record_generation *g = proof_generation(p, f->position);

	ctl_put(out, finding_name[kind]);
	put_where(out, ": position ", f->position);
	if (text.known) {
		ctl_put(out, "  dataset ");
		ctl_put_left(out, text.dataset, 0);
		ctl_put(out, "  shard ");
		ctl_put_left(out, text.shard, 0);
		put_where(out, "  offset ", text.offset);
	} else if (text.dataset) {
		ctl_put(out, "  dataset ");
		ctl_put_left(out, text.dataset, 0);
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

void proof_put_text(struct ctl_out *out, const struct proof *p)
{
	if (p->records->peers > 1)
		put_field(out, "peer", p->peer->peer, NULL);
	if (p->records->passes > 1)
		put_field(out, "pass", p->peer->pass, "over the stream");
	put_field(out, "samples", p->samples, NULL);
	put_field(out, "repeated", p->found[REPEATED], NULL);
	put_field(out, "lost", p->found[LOST], NULL);
	put_field(out, "altered", p->found[ALTERED], NULL);
	put_field(out, "skipped", p->skipped, "by request");
	put_field(out, "void", p->voided, "undone by restarts");
	put_field(out, "outside", p->outside, "not in the range from..to");
	put_field(out, "generations", p->peer->generations, NULL);
	put_field(out, "from", p->from, NULL);
	put_field(out, "to", p->to, NULL);
	put_field(out, "sum", p->sum, NULL);
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
}

static void put_json_finding(
	struct ctl_out *out, const struct proof *p, enum finding_kind kind, const struct finding *f)
{
	struct place_text text = describe(p, f->position);
	const struct record_generation *g = proof_generation(p, f->position);

	ctl_put(out, "{\"fault\":");
	ctl_put_string(out, finding_name[kind]);
	ctl_put(out, ",");
	ctl_put_pair(out, "position", f->position);
	ctl_put(out, ",");
	ctl_put_pair(out, "count", f->count);
	if (text.known) {
		ctl_put(out, ",\"dataset\":");
		ctl_put_string(out, text.dataset);
		ctl_put(out, ",\"shard\":");
		ctl_put_string(out, text.shard);
		ctl_put(out, ",");
		ctl_put_pair(out, "offset", text.offset);
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

void proof_put_json(struct ctl_out *out, const struct proof *p)
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
	};
	uint64_t whole = proof_whole_to(p);

	for (size_t i = 0; i < sizeof(pair) / sizeof(pair[0]); i++) {
		ctl_put(out, i ? "," : "{");
		ctl_put_pair(out, pair[i].name, pair[i].value);
	}
	if (whole > p->from) {
		ctl_put(out, ",");
		ctl_put_pair(out, "whole_to", whole);
	}
	put_json_lists(out, p);
	ctl_put(out, "}\n");
}

void proof_hint(const struct proof *p, bool mixes_given)
{
	uint64_t whole = proof_whole_to(p);

	if (whole > p->from)
		ctl_fail("rank %" PRIu64 " of %" PRIu64 " recorded nothing from position %" PRIu64
			 " on; if the run was stopped there, add --to %" PRIu64
			 " to end the range at the last complete step",
			proof_rank(proof_generation(p, p->finding[LOST][0].position),
				p->finding[LOST][0].position),
			proof_generation(p, p->finding[LOST][0].position)->world,
			p->finding[LOST][0].position, whole);
	else if (p->found[LOST] > 0)
		ctl_fail("lost positions were never taken, or their records were not given");
	if (p->found[ALTERED] > 0 && !mixes_given)
		ctl_fail("the rows were compared with the config's mix; if the run's mix was "
			 "changed, add --run RUN or --cursor FILE");
}
