#include "client/ctl/offline/report_page.h"

#include "client/ctl/offline/proof_verdict.h"
#include "client/ctl/offline/report_lives.h"
#include "proto/version.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 200, MIX_NAMES = 12 }; /* rows of a table; datasets of a mix */

static const char style[] =
	"body{font:15px/1.45 system-ui,sans-serif;max-width:800px;margin:2em auto;padding:0 1em;"
	"color:#222;background:#fff}"
	"h1{font-size:1.5em}h2{font-size:1.15em;margin-top:1.8em;border-bottom:1px solid #ccc}"
	"table{border-collapse:collapse;margin:.6em 0}"
	"td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}"
	"th{border-bottom:1px solid #ccc;font-weight:600}"
	".n{text-align:right;font-variant-numeric:tabular-nums}"
	".ok,.bad{padding:.5em .8em;font-weight:600}"
	".ok{background:#e2f2e4}.bad{background:#fbdede}"
	"figure{margin:1.2em 0 .4em;break-inside:avoid}figcaption{font-weight:600}"
	"svg{width:100%;height:auto}svg text{font-size:11px;fill:#444}"
	".r{text-anchor:end}.m{text-anchor:middle}.g{stroke:#ddd}.k{stroke:#000;stroke-dasharray:2 "
	"3}"
	"polyline{fill:none;stroke-width:1.6}"
	".key{white-space:nowrap;margin-right:.8em}"
	".key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}"
	"*{print-color-adjust:exact}tr{break-inside:avoid}"
	"@media print{body{margin:0;max-width:none}}";

static void put_time(FILE *to, uint64_t seconds)
{
	time_t at = (time_t)seconds;
	char text[40];
	struct tm utc;

	strftime(text, sizeof(text), "%F %T UTC", gmtime_r(&at, &utc));
	fputs(text, to);
}

static void put_row(FILE *to, const char *name, uint64_t value, const char *about)
{
	fprintf(to, "<tr><td>%s<td class=n>%" PRIu64 "<td>%s\n", name, value, about);
}

/* ---- head ---- */

void report_page_begin(const struct report_page *p)
{
	const struct cursor *c = &p->history->cursor;
	FILE *to = p->to;

	fputs("<!DOCTYPE html>\n<html lang=en><meta charset=utf-8>\n"
	      "<meta http-equiv=\"Content-Security-Policy\" "
	      "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
	      "<meta name=viewport content=\"width=device-width\">\n<title>",
		to);
	html_text(to, p->history->run);
	fprintf(to, "</title>\n<style>%s</style>\n<h1>Run ", style);
	html_text(to, p->history->run);
	fputs(" of stream ", to);
	html_text(to, p->s->stream->config->name);
	fputs("</h1>\n<p>Windows of ", to);
	fprintf(to,
		"%" PRIu64 " + %" PRIu64 " tokens, seed %" PRIu64
		". Written by tokctl " TOKEND_VERSION " on ",
		c->seq_len, c->extra, c->seed);
	put_time(to, (uint64_t)time(NULL));
	fputs(".</p>\n", to);
	if (!p->records)
		fputs("<p>No records were given, so what was served is not known. "
		      "Give the files that trainers wrote with <code>record=</code>.</p>\n",
			to);
}

/* ---- what was served ---- */

static void put_served(const struct report_page *p, const struct proof *proof)
{
	FILE *to = p->to;

	fputs("<h2>Served</h2>\n<table>\n", to);
	put_row(to, "samples", proof->samples, "each position once");
	put_row(to, "tokens", proof->samples * p->history->cursor.seq_len, "samples × seq_len");
	put_row(to, "from", proof->from, "first position");
	put_row(to, "to", proof->to, "position after the last");
	put_row(to, "repeated", proof->found[REPEATED], "");
	put_row(to, "lost", proof->found[LOST], "");
	put_row(to, "altered", proof->found[ALTERED], "");
	put_row(to, "skipped", proof->skipped, "by request");
	put_row(to, "void", proof->voided, "rows undone by restarts");
	fputs("</table>\n", to);
	if (proof->skips > 0)
		fputs("<p>Skipped:", to);
	for (size_t i = 0; i < proof->skips && i < ROWS; i++)
		fprintf(to, "%s positions %" PRIu64 " to %" PRIu64, i ? "," : "",
			proof->skip[i].from, proof->skip[i].to - 1);
	if (proof->skips > ROWS)
		fprintf(to, " and %zu more", proof->skips - ROWS);
	fputs(proof->skips > 0 ? ".</p>\n" : "", to);
}

static void put_datasets(
	const struct report_page *p, const struct proof *proof, const struct report_count *count)
{
	const struct record_dataset *dataset = proof->records->dataset;
	FILE *to = p->to;

	fputs("<h2>Datasets</h2>\n<table><tr><th>dataset<th class=n>samples<th class=n>share"
	      "<th class=n>windows<th class=n>epochs served<th class=n>epochs begun\n",
		to);
	for (uint32_t i = 0; i < count->datasets; i++) {
		uint32_t d = count->rank[i];
		uint64_t windows = dataset[d].windows;

		fputs("<tr><td>", to);
		html_text(to, dataset[d].name);
		fprintf(to,
			"<td class=n>%" PRIu64 "<td class=n>%.1f %%<td class=n>%" PRIu64
			"<td class=n>%.2f<td class=n>%" PRIu64 "\n",
			count->total[d],
			proof->samples ? 100.0 * (double)count->total[d] / (double)proof->samples
				       : 0.0,
			windows, windows ? (double)count->total[d] / (double)windows : 0.0,
			count->epochs[d]);
	}
	fputs("</table>\n", to);
}

/* ---- charts ---- */

static void put_keys(
	const struct report_page *p, const struct proof *proof, const struct report_count *count)
{
	uint32_t n = report_coloured(count);

	fputs("<p>", p->to);
	for (uint32_t i = 0; i < n; i++)
		chart_key(p->to, i, proof->records->dataset[count->rank[i]].name);
	if (n < count->datasets)
		chart_key(p->to, n, "all others");
	fputs("</p>\n", p->to);
}

static void mark_mixes(const struct report_page *p, const struct chart *c)
{
	const struct order *order = &p->history->order;

	for (uint32_t i = 0; i < order->segments && i < ROWS; i++)
		if ((double)order->segment[i]->start > c->x0 &&
			(double)order->segment[i]->start < c->x1)
			chart_mark(c, (double)order->segment[i]->start);
}

/* The middle of each stretch, except that the first and the last reach the edges. */
static void set_middles(
	const struct report_count *count, const struct proof *proof, double *x, unsigned points)
{
	for (unsigned i = 0; i < points; i++)
		x[i] = (double)count->from + ((double)i + 0.5) * (double)count->step;
	x[0] = (double)proof->from;
	x[points - 1] = (double)proof->to;
}

static void draw_mix(
	const struct report_page *p, const struct proof *proof, const struct report_count *count)
{
	struct chart c = {p->to, (double)proof->from, (double)proof->to, 100};
	double x[CHART_POINTS], below[CHART_POINTS] = {0}, above[CHART_POINTS];
	uint32_t n = report_coloured(count), areas = n + (n < count->datasets);
	unsigned last = count->points - 1, points = last ? last + 1 : 2; /* one has two edges */

	set_middles(count, proof, x, points);
	chart_begin(&c, "Mix, % of the samples", "position");
	for (uint32_t i = 0; i < areas; i++) {
		for (unsigned at = 0; at < points; at++) {
			unsigned stretch = at < last ? at : last;
			double all = (double)report_served(count, stretch, 0, true);
			double own = (double)report_served(count, stretch, i, i == n);

			above[at] = below[at] + (all > 0 ? 100 * own / all : 0);
		}
		chart_area(&c, i, x, below, above, points);
		memcpy(below, above, sizeof(below));
	}
	mark_mixes(p, &c);
	chart_end(&c);
}

static double windows_of(const struct proof *p, const struct report_count *count, uint32_t i)
{
	uint64_t windows = p->records->dataset[count->rank[i]].windows;

	return windows > 0 ? (double)windows : 1;
}

static void draw_epochs(
	const struct report_page *p, const struct proof *proof, const struct report_count *count)
{
	struct chart c = {p->to, (double)proof->from, (double)proof->to, 0};
	double x[CHART_POINTS + 1], y[CHART_POINTS + 1];
	uint32_t n = report_coloured(count);

	for (uint32_t i = 0; i < n; i++) {
		double epochs = (double)count->total[count->rank[i]] / windows_of(proof, count, i);

		c.y1 = epochs > c.y1 ? epochs : c.y1;
	}
	chart_begin(&c, "Epochs served", "position");
	for (uint32_t i = 0; i < n; i++) {
		double sum = 0;

		x[0] = (double)proof->from;
		y[0] = 0;
		for (unsigned at = 0; at < count->points; at++) {
			uint64_t end = count->from + (at + 1) * count->step;

			sum += (double)report_served(count, at, i, false);
			x[at + 1] = (double)(end < proof->to ? end : proof->to);
			y[at + 1] = sum / windows_of(proof, count, i);
		}
		chart_line(&c, i, x, y, count->points + 1);
	}
	mark_mixes(p, &c);
	chart_end(&c);
}

/* ---- restarts ---- */

/* A line from where a life began to what was reached when the next one did. */
static void draw_lives(const struct report_page *p, const struct report_life *life, size_t n)
{
	double x[2 * CHART_POINTS], y[2 * CHART_POINTS];
	uint64_t begin = life[0].time_ns;
	double seconds = (double)(life[n - 1].time_ns - begin) / 1e9;
	double unit = seconds > 2 * 86400 ? 86400e9 : seconds > 2 * 3600 ? 3600e9 : 1e9;
	struct chart c = {p->to, 0, seconds * 1e9 / unit, 0};
	size_t points = 0, step = (n - 1) / CHART_POINTS + 1;

	if (c.x1 <= 0)
		return;
	for (size_t i = 0; i < n; i += step) {
		x[points] = x[points + 1] = (double)(life[i].time_ns - begin) / unit;
		y[points++] = (double)(i > 0 ? life[i].reached : life[i].position);
		y[points++] = (double)life[i].position;
	}
	for (size_t i = 0; i < points; i++)
		c.y1 = y[i] > c.y1 ? y[i] : c.y1;
	chart_begin(&c, "Positions reached when processes began",
		unit > 3600e9 ? "days"
		: unit > 1e9  ? "hours"
			      : "seconds");
	chart_line(&c, 0, x, y, points);
	chart_end(&c);
}

static void put_life(FILE *to, const struct report_life *l, const struct report_life *before)
{
	fputs("<tr><td>", to);
	put_time(to, l->time_ns / 1000000000);
	fprintf(to,
		"<td class=n>%" PRIu64 "<td class=n>%" PRIu64 "<td class=n>%" PRIu64
		"<td class=n>%" PRIu64 "<td>",
		l->position, l->world, l->micro_batch, l->ranks);
	if (!before)
		fputs("start", to);
	else if (l->position < l->reached)
		fprintf(to, "went back by %" PRIu64, l->reached - l->position);
	else if (l->position > l->left)
		fprintf(to, "skipped %" PRIu64, l->position - l->left);
	else
		fputs("went on", to);
	if (before && before->world != l->world)
		fputs(", another world", to);
	fputc('\n', to);
}

static bool put_lives(const struct report_page *p, const struct proof *proof)
{
	size_t n, back = 0;
	struct report_life *life = report_lives(proof->peer, &n);
	FILE *to = p->to;

	if (!life)
		return false;
	for (size_t i = 1; i < n; i++)
		back += life[i].position < life[i].reached;
	fprintf(to,
		"<h2>Restarts</h2>\n<p>Ranks began anew %zu time%s, %zu of them at a position that "
		"had been passed. Waits are not in records; the daemon's metrics have them.</p>\n",
		n - 1, n == 2 ? "" : "s", back);
	draw_lives(p, life, n);
	fputs("<table><tr><th>time<th class=n>position<th class=n>world<th class=n>micro_batch"
	      "<th class=n>ranks<th>\n",
		to);
	for (size_t i = 0; i < n && i < ROWS; i++)
		put_life(to, &life[i], i > 0 ? &life[i - 1] : NULL);
	fputs("</table>\n", to);
	if (n > ROWS)
		fprintf(to, "<p>… and %zu more.</p>\n", n - ROWS);
	free(life);
	return true;
}

bool report_page_pass(const struct report_page *p, const struct proof *proof,
	const struct report_count *count, const char *verdict)
{
	bool bad = proof_findings(proof) > 0;
	FILE *to = p->to;

	if (proof->records->passes > 1)
		fprintf(to, "<h2>Pass %" PRIu64 " over the stream</h2>\n", proof->peer->pass);
	if (proof->records->peers > proof->records->passes)
		fprintf(to, "<h2>Peer %" PRIu64 "</h2>\n", proof->peer->peer);
	fprintf(to, "<p class=%s>", bad ? "bad" : "ok");
	html_text(to, verdict);
	fputs("</p>\n", to);
	put_served(p, proof);
	put_datasets(p, proof, count);
	draw_mix(p, proof, count);
	draw_epochs(p, proof, count);
	put_keys(p, proof, count);
	return put_lives(p, proof);
}

/* ---- mixes ---- */

static void put_mix(FILE *to, const struct cursor *c, const struct order_segment *segment)
{
	unsigned named = 0;

	for (uint32_t d = 0; d < segment->datasets; d++) {
		if (segment->units[d] == 0 || ++named > MIX_NAMES)
			continue;
		fputs(named > 1 ? ", " : "", to);
		html_text(to, c->dataset[d].name);
		fprintf(to, " %.3g %%", 100.0 * (double)segment->units[d] / (double)ORDER_UNITS);
	}
	if (named > MIX_NAMES)
		fprintf(to, " and %u more", named - MIX_NAMES);
}

void report_page_end(const struct report_page *p)
{
	const struct order *order = &p->history->order;
	FILE *to = p->to;

	fputs("<h2>Mixes</h2>\n<table><tr><th class=n>from position<th>mix\n", to);
	for (uint32_t i = 0; i < order->segments && i < ROWS; i++) {
		fprintf(to, "<tr><td class=n>%" PRIu64 "<td>", order->segment[i]->start);
		put_mix(to, &p->history->cursor, order->segment[i]);
		if (p->end > 0 && order->segment[i]->start >= p->end)
			fputs(" (not reached)", to);
		fputc('\n', to);
	}
	fputs("</table>\n", to);
	if (order->segments > ROWS)
		fprintf(to, "<p>… and %u more.</p>\n", order->segments - ROWS);
	fputs("</html>\n", to);
}
