/* tokctl report: what a run was served, as one HTML file for people. */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/file.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/proof_range.h"
#include "client/ctl/offline/proof_verdict.h"
#include "client/ctl/offline/report_page.h"
#include "client/ctl/offline/run_cursor.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASSES = 16 }; /* passes and peers that the page has; all are verified */

struct job {
	struct report_page page;
	struct records records;
	unsigned passes; /* on the page */
	bool bad;
	char verdict[PROOF_VERDICT_BYTES]; /* of the first pass that is not exact, otherwise of the
					      last */
};

/* ---- the stream ---- */

/* The stream of @run: the only one, or the only one with a directory of that run; if none has one,
 * of a run whose name begins so. NULL after an error. The caller frees it. */
static char *find_stream(const char *config, const char *run)
{
	struct fault fault;
	struct config *c = config_load(config, &fault);
	char *name = NULL;
	unsigned found = 0;

	if (!c) {
		ctl_fail("%s", fault.text);
		return NULL;
	}
	for (uint32_t i = 0; i < 2 * c->streams; i++) {
		const char *stream = c->stream[i % c->streams].name;
		bool whole = i < c->streams;

		if (i == c->streams && found > 0)
			break;
		if (c->streams > 1 && !run_cursor_exists(c, stream, run, whole))
			continue;
		free(name);
		name = strdup(stream);
		found++;
	}
	if (found == 0)
		ctl_fail("run %s: %s has no such run of any stream; give its stream with --stream",
			run, c->state_dir);
	else if (found > 1)
		ctl_fail(
			"run %s: %u streams have such a run; choose one with --stream", run, found);
	else if (!name)
		ctl_fail(PHRASE_MEMORY);
	if (found > 1) {
		free(name);
		name = NULL;
	}
	config_free(c);
	return name;
}

/* ---- passes ---- */

static bool add_proof(struct job *j, struct proof *p, struct report_count *count)
{
	char verdict[sizeof(j->verdict)];

	if (!proof_run(p))
		return false;
	report_count_end(count);
	proof_verdict(p, verdict);
	if (!j->bad)
		memcpy(j->verdict, verdict, sizeof(verdict));
	j->bad = j->bad || proof_findings(p) > 0;
	return j->passes++ >= PASSES || report_page_pass(&j->page, p, count, verdict) ||
	       ctl_fail(PHRASE_MEMORY) == CTL_OK;
}

static bool add_pass(struct job *j, const struct record_peer *peer)
{
	struct proof_range range = {0};
	struct report_count count;
	struct proof p = {
		.records = &j->records, .peer = peer, .row = report_count_row, .context = &count};

	if (!proof_range_set(&range, &j->records, peer))
		return false;
	p.from = range.from;
	p.to = range.to;
	if (p.to > j->page.end)
		j->page.end = p.to;

	bool done = report_count_begin(&count, p.from, p.to, (uint32_t)j->records.datasets)
			    ? add_proof(j, &p, &count)
			    : ctl_fail(PHRASE_MEMORY) == CTL_OK;

	report_count_free(&count);
	proof_free(&p);
	return done;
}

static bool add_passes(struct job *j)
{
	for (size_t i = 0; i < j->records.peers; i++)
		if (!add_pass(j, &j->records.peer[i]))
			return false;
	if (j->passes > PASSES)
		fprintf(j->page.to, "<p>%u more passes and peers are not shown.</p>\n",
			j->passes - PASSES);
	return true;
}

/* ---- the page ---- */

static int write_page(struct job *j, const char *path)
{
	char *text = NULL;
	size_t n = 0;
	struct ctl_out out = {0};

	j->page.to = open_memstream(&text, &n);
	if (!j->page.to)
		return ctl_fail(PHRASE_MEMORY);
	report_page_begin(&j->page);

	bool done = add_passes(j);

	report_page_end(&j->page);
	if (fclose(j->page.to) != 0)
		done = ctl_fail(PHRASE_MEMORY) == CTL_OK;
	done = done && ctl_file_write(path, text, n, "the report");
	free(text);
	if (!done)
		return CTL_FAILED;
	ctl_put_left(&out, path, 0);
	ctl_put(&out, ": ");
	ctl_put_left(&out, j->passes > 0 ? j->verdict : "no records were given", 0);
	ctl_put(&out, "\n");
	return ctl_finish(&out, j->bad ? CTL_FAILED : CTL_OK);
}

static int report_stream(const char *config, const char *stream, const char *run, char **record,
	int records, const char *path)
{
	struct ctl_history history;
	struct ctl_stream s;
	struct job j = {.page = {.s = &s, .history = &history, .records = records > 0}};
	int status = CTL_FAILED;
	bool good = true;

	if (!ctl_stream_open(&s, config, stream))
		return CTL_FAILED;
	if (ctl_history_open(&history, &s, NULL, 0, run)) {
		for (int i = 0; good && i < records; i++)
			good = records_add(&j.records, record[i]);
		if (good && (records == 0 || records_read(&j.records, &s, NULL)))
			status = write_page(&j, path);
		records_free(&j.records);
		ctl_history_close(&history);
	}
	ctl_stream_close(&s);
	return status;
}

/* ---- the command line ---- */

enum { CONFIG, STREAM, OUTPUT };

static const struct ctl_option options[] = {
	[CONFIG] = CTL_CONFIG_REQUIRED,
	[STREAM] = {.name = "stream",
		.value = "STREAM",
		.help = "stream of the run; default: the only one that has such a run"},
	[OUTPUT] = {.name = "output",
		.letter = 'o',
		.required = true,
		.value = "FILE",
		.help = "file to write the page to; it is replaced"},
};

static int report(const struct ctl_arguments *a)
{
	const char *run = a->argument[0], *config = ctl_text(a, CONFIG);
	char *found = ctl_given(a, STREAM) ? NULL : find_stream(config, run);
	const char *stream = ctl_given(a, STREAM) ? ctl_text(a, STREAM) : found;
	int status = stream ? report_stream(config, stream, run, a->argument + 1, a->arguments - 1,
				      ctl_text(a, OUTPUT))
			    : CTL_FAILED;

	free(found);
	return status;
}

const struct ctl_command ctl_report = {
	.name = "report",
	.arguments = "RUN [RECORD...]",
	.least = 1,
	.most = CTL_ANY,
	.help = "write what a run was served as an HTML page",
	.about = "Writes one file that needs no network and no scripts, to read and to print: "
		 "what was served, the epochs of each dataset, the mix, restarts, and the verdict "
		 "of `tokctl verify` on the records. The mixes come from the run's last cursor in "
		 "state_dir. RECORD is a file, or a directory with *.record files, that the "
		 "trainers wrote; give those of all ranks and of all restarts. Without them, the "
		 "page has the mixes only.\n\n"
		 "The verdict is printed, too, and the exit status is 1 if any position was "
		 "repeated, lost or altered.",
	.examples = CTL_EXAMPLES({"a page about the run job",
		"tokctl report job records -c tokend.yaml -o report.html"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = report,
};
