#include "client/ctl/doctor/doctor.h"

#include "client/ctl/common/ctl.h"
#include "client/ctl/online/talk.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SOCKET, CONFIG, USER, JSON };

void doctor_line(struct doctor *d, const char *result, const char *check, const char *fix,
	const char *text, ...)
{
	char line[2 * LIMIT_TEXT_BYTES];
	va_list arguments;

	va_start(arguments, text);
	vsnprintf(line, sizeof(line), text, arguments);
	va_end(arguments);
	emit_text(&d->e, "check", NULL, check);
	emit_text(&d->e, "result", NULL, result);
	emit_text(&d->e, "text", NULL, line);
	emit_text(&d->e, "fix", NULL, fix);
	emit_line(&d->e, "%-4s %-8s %s%s%s", result, check, line, fix ? "; " : "", fix ? fix : "");
	emit_end(&d->e, CTL_OK); /* a check may take long */
	d->fixes += fix != NULL;
}

static void take_user(struct doctor *d, uid_t user)
{
	const struct passwd *entry = getpwuid(user);

	d->user = user;
	if (entry)
		snprintf(d->user_name, sizeof(d->user_name), "%s", entry->pw_name);
	else
		snprintf(d->user_name, sizeof(d->user_name), "uid %u", (unsigned)user);
}

/* Returns the daemon's config if none was given. */
static struct config *look_at_daemon(struct doctor *d, const struct ctl_arguments *a)
{
	struct ctl_link link = {.fd = -1, .quiet = true};
	struct config *config = NULL;
	json_t *status = NULL;
	char process[32];
	struct stat owner;
	struct fault fault;

	if (ctl_connect(&link, a))
		status = ctl_ask_status(&link, false, NULL, NULL);
	if (status) {
		const json_t *daemon = json_object_get(status, "daemon");

		snprintf(process, sizeof(process), "/proc/%" PRIu64, status_number(daemon, "pid"));
		if (stat(process, &owner) == 0)
			take_user(d, owner.st_uid);
		doctor_ok(d, "daemon", "%s answers: pid %" PRIu64 " of %s, %" PRIu64 " sessions",
			link.socket, status_number(daemon, "pid"), d->user_name,
			status_number(daemon, "sessions"));
		if (!d->config)
			/* This user may not be able to read it. */
			d->config = config = config_load(status_text(daemon, "config"), &fault);
	} else if (link.absent && !ctl_given(a, SOCKET)) {
		doctor_skip(d, "daemon", "none runs yet");
	} else {
		doctor_fix(d, "daemon", "look at its log, and at the permissions of the socket",
			"%s", link.why);
	}
	json_decref(status);
	ctl_disconnect(&link);
	return config;
}

/* ---- the command ---- */

static const struct ctl_option options[] = {
	[SOCKET] = {CTL_SOCKET_OPTION},
	[CONFIG] = {CTL_CONFIG_OPTION},
	[USER] = {OPTION_TEXT("user", "NAME",
		"the daemon's user; default: that of the running daemon, otherwise yours")},
	[JSON] = {CTL_JSON_OPTION},
};

static int doctor(const struct ctl_arguments *a)
{
	const char *file = ctl_text(a, CONFIG), *user = ctl_text(a, USER);
	const struct passwd *entry = user ? getpwnam(user) : NULL;
	struct doctor d = {.e.json = ctl_given(a, JSON)};
	struct config *config, *theirs;
	struct fault fault;

	if (user && !entry)
		return ctl_usage(a->command, "--user: there is no user %s on this node", user);
	config = file ? config_load(file, &fault) : NULL;
	d.config = config;
	take_user(&d, geteuid());
	doctor_machine(&d);
	if (file && !config)
		doctor_fix(
			&d, "config", "mend it: a daemon cannot start with it", "%s", fault.text);
	theirs = look_at_daemon(&d, a);
	if (entry)
		take_user(&d, entry->pw_uid);
	doctor_shards(&d);
	doctor_gpu(&d);
	config_free(config);
	config_free(theirs);
	return emit_end(&d.e, d.fixes ? CTL_FAILED : CTL_OK);
}

const struct ctl_command ctl_doctor = {
	.name = "doctor",
	.help = "check what a node needs, and say how to mend it",
	OPTIONS_ARE(options),
	.run = doctor,
};
