/* tokend(8). */
#include "client/ctl/man/page.h"
#include "client/ctl/man/roff.h"
#include "daemon/config/options.h"

#include <inttypes.h>

static const char ABOUT[] =
	"tokend reads token shards, shuffles and mixes them, and keeps batches ready in shared "
	"memory for each trainer process of this node. It opens all shards once and serves until "
	"SIGTERM or SIGINT.\n\n"
	"At SIGHUP it reads the config again, as `systemctl reload` asks it to: it checks the "
	"config, and executes itself with it, in the same process. Trainers attach again at their "
	"own position. A config that is refused, or that a live session does not fit, changes "
	"nothing, and the log, the status of the unit and a metric say so. socket and state_dir "
	"need a restart, and so does an upgrade: a reload keeps the version that runs.\n\n"
	"Trainers survive a restart: they go on with the batches that are ready, reconnect, and "
	"attach at their own position.\n\n"
	"Log lines go to stderr, one a line. Under systemd, tokend reports its state, takes the "
	"socket that systemd listens on, and answers the watchdog. A start that fails waits 5 "
	"seconds before it exits there.\n\n"
	"`tokend -c FILE --check` opens no socket and needs no daemon. Run it before a reload.";

static const struct ctl_example *const examples =
	CTL_EXAMPLES({"check a config and its shards", "tokend -c tokend.yaml --check"},
		{"serve at another socket, until nobody has used it for a second",
			"tokend -c tokend.yaml --socket \"$PWD/other.sock\" --linger 1"});

static const struct page_item statuses[] = {
	{"0", "Ended by SIGTERM, SIGINT or `--linger`; with `--check`, the config is valid."},
	{"1", "The config, a shard or the socket cannot be used. A message says why."},
	{"2", "Usage error."},
	{NULL, NULL},
};

static const struct page_item variables[] = {
	{"TOKEND_SOCKET",
		"Where to listen, unless `--socket` is given or systemd passes a socket."},
	{"XDG_RUNTIME_DIR", "Where the socket is if this user may not create the default one. See "
			    "PLACES in `tokctl`(1)."},
	{"STATE_DIRECTORY", "Set by systemd: state_dir if the config does not set it."},
	{"XDG_STATE_HOME, HOME",
		"Where state_dir is if this user may not write to the default one. "
		"See PLACES in `tokctl`(1)."},
	{"NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, LISTEN_FDS, LISTEN_FDNAMES, LISTEN_PID, "
	 "JOURNAL_STREAM",
		"Set by systemd. See `systemd.exec`(5) and `sd_notify`(3)."},
	{"SSL_CERT_FILE", "Certificates that connections to object stores trust."},
	{"AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION",
		"The server and region of object stores that the config gives none."},
	{"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, "
	 "AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE",
		"Credentials of object stores, as for AWS's own tools."},
	{"AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN, AWS_ROLE_SESSION_NAME, AWS_ENDPOINT_URL_STS",
		"A role that STS gives for a token, as EKS sets it."},
	{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, AWS_CONTAINER_CREDENTIALS_FULL_URI, "
	 "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, AWS_CONTAINER_AUTHORIZATION_TOKEN",
		"Credentials of a container, as ECS and EKS set them."},
	{"AWS_EC2_METADATA_DISABLED, AWS_EC2_METADATA_SERVICE_ENDPOINT, GCE_METADATA_HOST",
		"The metadata service of an instance: `true` switches it off; another address."},
	{NULL, NULL},
};

static const struct page_item files[] = {
	{"/etc/tokend/tokend.yaml", "The config of the systemd unit."},
	{"/run/tokend/tokend.sock",
		"The default socket. Next to it is its lock, tokend.sock.lock."},
	{"/var/lib/tokend", "The default state_dir: snapshots of cursors."},
	{NULL, NULL},
};

static void put_option(FILE *to, const struct option_row *o)
{
	char range[64] = "";

	if (o->least > 0)
		snprintf(range, sizeof(range), "%" PRIu64 " to %" PRIu64, o->least, o->most);
	page_option(to,
		&(struct page_option){o->letter, o->required, o->name, o->value, o->help, range});
}

void page_tokend(FILE *to)
{
	roff_begin(to, "tokend", 8, "serve token shards to the trainers of a node");
	roff_section(to, "SYNOPSIS");
	fputs(".B tokend\n\\fB\\-c\\fR \\fIFILE\\fR [\\fIOPTION\\fR...]\n", to);
	roff_section(to, "DESCRIPTION");
	roff_text(to, ABOUT);
	roff_section(to, "OPTIONS");
	for (unsigned i = 0; i < option_rows; i++)
		put_option(to, &option_table[i]);
	roff_section(to, "EXAMPLES");
	page_examples(to, examples);
	page_items(to, "EXIT STATUS", statuses);
	page_items(to, "ENVIRONMENT", variables);
	page_items(to, "FILES", files);
	roff_section(to, "SEE ALSO");
	fputs(".BR tokctl (1),\n.BR tokend.yaml (5)\n", to);
}
