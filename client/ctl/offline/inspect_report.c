#include "client/ctl/offline/inspect_report.h"

#include "proto/fault.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void report_problem(struct report *r, const char *text, ...)
{
	va_list args;

	if (r->problems == REPORT_PROBLEMS)
		return;
	char *problem = r->problem[r->problems++];

	va_start(args, text);
	vsnprintf(problem, sizeof(r->problem[0]), text, args);
	va_end(args);
	fault_line(problem);
}

void report_put_json(struct ctl_out *out, const struct report *r)
{
	ctl_put(out, "{\"path\":");
	ctl_put_string(out, r->path);
	ctl_put(out, ",\"format\":");
	r->format ? ctl_put_string(out, r->format) : ctl_put(out, "null");
	ctl_put(out, ",\"dtype\":");
	r->format ? ctl_put_string(out, shard_type_name(r->facts.type)) : ctl_put(out, "null");
	ctl_put(out, ",\"tokens\":");
	r->format ? ctl_put_number(out, r->facts.tokens) : ctl_put(out, "null");
	ctl_put(out, ",\"documents\":");
	bool counted = r->format && r->facts.documents != SHARD_UNKNOWN;

	counted ? ctl_put_number(out, r->facts.documents) : ctl_put(out, "null");
	if (r->format && r->facts.column[0]) {
		ctl_put(out, ",\"column\":");
		ctl_put_string(out, r->facts.column);
	}
	if (r->format && r->facts.sample_tokens > 0) {
		ctl_put(out, ",");
		ctl_put_pair(out, "sample_tokens", r->facts.sample_tokens);
	}
	if (r->format && r->facts.padding > 0) {
		ctl_put(out, ",");
		ctl_put_pair(out, "padding", r->facts.padding);
	}
	if (r->format && r->stream) {
		ctl_put(out, ",");
		ctl_put_pair(out, "windows", r->windows);
		ctl_put(out, ",");
		ctl_put_pair(out, "unserved", r->unserved);
	}
	if (r->scanned && r->facts.tokens > 0) {
		ctl_put(out, ",");
		ctl_put_pair(out, "max_token", r->most);
	}
	if (r->scanned && r->has_mask) {
		ctl_put(out, ",");
		ctl_put_pair(out, "masked", r->masked);
	}
	ctl_put(out, ",\"notes\":[");
	if (r->format && r->facts.note[0])
		ctl_put_string(out, r->facts.note);
	ctl_put(out, "],\"problems\":[");
	for (unsigned i = 0; i < r->problems; i++) {
		ctl_put(out, i ? "," : "");
		ctl_put_string(out, r->problem[i]);
	}
	ctl_put(out, "]}\n");
}

static void put_windows(struct ctl_out *out, const struct report *r)
{
	double share = r->facts.tokens ? 100.0 * (double)r->unserved / (double)r->facts.tokens : 0;
	char text[128];

	snprintf(text, sizeof(text),
		"  %" PRIu64 " windows of stream %s, %.3f %% of the tokens never served",
		r->windows, r->stream->name, share);
	ctl_put(out, text);
}

void report_put_text(struct ctl_out *out, const struct report *r)
{
	char text[64];

	if (r->format) {
		ctl_put_left(out, r->format, 10);
		ctl_put_left(out, shard_type_name(r->facts.type), 4);
		ctl_put_right(out, r->facts.tokens, 16);
		ctl_put(out, " tokens  ");
	} else {
		ctl_put_left(out, "unreadable", 10 + 4 + 16 + sizeof(" tokens  ") - 1);
	}
	if (r->format && r->facts.documents != SHARD_UNKNOWN) {
		ctl_put_right(out, r->facts.documents, 10);
		ctl_put(out, " documents  ");
	}
	ctl_put_left(out, r->path, 0);
	if (r->format && r->facts.column[0]) {
		ctl_put(out, "  column ");
		ctl_put_left(out, r->facts.column, 0);
	}
	if (r->format && r->stream)
		put_windows(out, r);
	if (r->format && r->facts.padding > 0) {
		snprintf(text, sizeof(text), "  %.3f %% padding in rows of %" PRIu64,
			100.0 * (double)r->facts.padding / (double)r->facts.tokens,
			r->facts.sample_tokens);
		ctl_put(out, text);
	}
	if (r->scanned && r->facts.tokens > 0) {
		snprintf(text, sizeof(text), "  largest token %" PRIu64, r->most);
		ctl_put(out, text);
	}
	if (r->scanned && r->has_mask) {
		snprintf(text, sizeof(text), "  %.3f %% masked",
			r->facts.tokens ? 100.0 * (double)r->masked / (double)r->facts.tokens : 0);
		ctl_put(out, text);
	}
	if (r->format && r->facts.note[0]) {
		ctl_put(out, " (");
		ctl_put_left(out, r->facts.note, 0);
		ctl_put(out, ")");
	}
	for (unsigned i = 0; i < r->problems; i++) {
		ctl_put(out, i ? "; " : ": ");
		ctl_put_left(out, r->problem[i], 0);
	}
	ctl_put(out, "\n");
}
