#include "client/ctl/doctor/doctor.h"

#include "client/ctl/common/error.h"
#include "client/ctl/doctor/report.h"
#include "client/ctl/online/talk.h"
#include "client/lib/link.h"
#include "proto/phrases.h"
#include "proto/version.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	RATE_MS = 500,	      /* for which the sessions are watched */
	USUAL_TRAINERS = 8,   /* of a node without sessions */
	USUAL_TOKENS = 90000, /* a second and trainer */
};

static void take_user(struct doctor *d, uid_t user)
{
	const struct passwd *entry = getpwuid(user);

	d->user = user;
	if (entry)
		snprintf(d->user_name, sizeof(d->user_name), "%s", entry->pw_name);
	else
		snprintf(d->user_name, sizeof(d->user_name), "uid %u", (unsigned)user);
}

/* Tokens that the sessions have taken so far. */
static uint64_t tokens_taken(struct ctl_link *link)
{
	json_t *status = ctl_ask_status(link, false, NULL, NULL), *s;
	uint64_t tokens = 0;
	size_t i;

	json_array_foreach(json_object_get(status, "sessions"), i, s) tokens +=
		status_number(s, "released") * status_number(s, "micro") *
		status_number(s, "seq_len");
	json_decref(status);
	return tokens;
}

static void measure(struct doctor *d, struct ctl_link *link)
{
	uint64_t before = tokens_taken(link), after;

	usleep(RATE_MS * 1000);
	after = tokens_taken(link);
	if (before == 0 || after <= before)
		return;
	d->tokens_needed = (after - before) * 1000 / RATE_MS;
	d->measured = true;
}

/* Returns the daemon's config if none was given. */
static struct config *look_at_daemon(struct doctor *d, const char *socket, const char *file)
{
	struct ctl_link *link = calloc(1, sizeof(*link));
	struct config *config = NULL;
	json_t *status = NULL;
	char why[LIMIT_TEXT_BYTES], process[32];
	struct stat owner;
	struct fault fault;

	ctl_keep_errors(why, sizeof(why));
	if (!link || !ctl_connect(link, socket, file)) {
		if (link && !socket && link->absent)
			doctor_skip(d, "daemon", "none runs yet");
		else
			doctor_fix(d, "daemon",
				"look at its log, and at the permissions of the socket", "%s",
				link ? why : PHRASE_MEMORY);
	} else if (!(status = ctl_ask_status(link, false, NULL, NULL))) {
		doctor_fix(d, "daemon", "look into its log", "%s: %s", link->socket, why);
	} else {
		const json_t *daemon = json_object_get(status, "daemon");

		snprintf(process, sizeof(process), "/proc/%" PRIu64, status_number(daemon, "pid"));
		if (stat(process, &owner) == 0)
			take_user(d, owner.st_uid);
		doctor_ok(d, "daemon", "%s answers: pid %" PRIu64 " of %s, %" PRIu64 " sessions",
			link->socket, status_number(daemon, "pid"), d->user_name,
			status_number(daemon, "sessions"));
		if (!d->config)
			/* This user may not be able to read it. */
			d->config = config = config_load(status_text(daemon, "config"), &fault);
		measure(d, link);
	}
	ctl_keep_errors(NULL, 0);
	json_decref(status);
	if (link)
		ctl_disconnect(link);
	free(link);
	return config;
}

/* ---- the command ---- */

enum { SOCKET, CONFIG, USER, JSON };

static const struct ctl_option options[] = {
	[SOCKET] = CTL_SOCKET_OPTION,
	[CONFIG] = CTL_CONFIG_OPTION,
	[USER] = {.name = "user",
		.value = "NAME",
		.help = "the daemon's user; default: that of "
			"the running daemon, otherwise yours"},
	[JSON] = CTL_JSON_OPTION,
};

static int run(struct doctor *d, const struct ctl_arguments *a)
{
	const char *file = ctl_text(a, CONFIG), *user = ctl_text(a, USER);
	const struct passwd *entry = user ? getpwnam(user) : NULL;
	struct config *config = NULL, *theirs;
	struct fault fault;

	if (user && !entry)
		return ctl_usage(a->command, "--user: there is no user %s on this node", user);
	if (file)
		config = config_load(file, &fault);
	d->config = config;
	d->tokens_needed = USUAL_TRAINERS * USUAL_TOKENS;
	take_user(d, geteuid());
	doctor_machine(d);
	if (file && !config)
		doctor_fix(d, "config", "mend it: a daemon cannot start with it", "%s", fault.text);
	theirs = look_at_daemon(d, ctl_text(a, SOCKET), file);
	if (entry)
		take_user(d, entry->pw_uid);
	doctor_shards(d);
	doctor_gpu(d);
	config_free(config);
	config_free(theirs);
	return ctl_finish(&d->out, d->fixes ? CTL_FAILED : CTL_OK);
}

static int doctor(const struct ctl_arguments *a)
{
	struct doctor *d = calloc(1, sizeof(*d));

	if (!d)
		return ctl_fail(PHRASE_MEMORY);
	d->json = ctl_given(a, JSON);

	int code = run(d, a);

	free(d);
	return code;
}

const struct ctl_command ctl_doctor = {
	.name = "doctor",
	.help = "check what a node needs, and say how to mend it",
	.about = "Prints a line for each: ok, skip with the reason, or fix with the remedy. The "
		 "exit status is 1 if there is anything to fix.\n\n"
		 "Shards are opened and read as the daemon's user. Only root can act as another "
		 "user. The speed of a disk is that of random windows, past the page cache, from 8 "
		 "threads; it is compared with what the running trainers take, otherwise with 8 "
		 "trainers of 90,000 tokens/s.",
	.examples = CTL_EXAMPLES({"print what to mend on this node",
		"tokctl doctor -c tokend.yaml | sed -n /^fix/p"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = doctor,
};
