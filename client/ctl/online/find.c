/*
 * Which daemon a command means. All that listen where this user's clients look are listed. If that
 * leaves a choice, each is asked for its status once: which file it serves, and which runs.
 */
#include "client/ctl/online/talk.h"
#include "proto/phrases.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHICH "add -c FILE, or the --socket of one that `tokctl status` lists"

/* ---- the name of a private daemon's socket ---- */

/* The mount that has an absolute path, or 0 for others: in another container it may have other
 * data. It does not depend on the files: those that are replaced must meet the daemon that has read
 * them. */
static uint64_t mounted_at(const char *path)
{
	char part[PATH_MAX], whole[PATH_MAX];
	struct statx st = {0};

	if (!path || path[0] != '/')
		return 0;
	snprintf(part, sizeof(part), "%s", path);
	for (bool end = false; !end; *strrchr(part, '/') = 0) {
		end = !part[0];
		if (end)
			strcpy(part, "/");
		/* It may be a pattern, or not exist. */
		if (!realpath(part, whole) || statx(0, whole, 0, STATX_INO, &st) != 0)
			continue;
		strcpy(part, whole);
		end |= (st.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
	}
	return order_derive(st.stx_dev_major, st.stx_dev_minor, st.stx_ino);
}

/* The same of all that @config names. */
static uint64_t mounted(const struct config *config)
{
	uint64_t all = 0;

	for (uint32_t s = 0; s < config->streams; s++)
		for (uint32_t d = 0; d < config->stream[s].datasets; d++) {
			const struct config_dataset *dataset = &config->stream[s].dataset[d];

			all = order_derive(all, mounted_at(dataset->path),
				mounted_at(dataset->manifest), mounted_at(dataset->label_mask));
		}
	return all;
}

void ctl_private_socket(
	const struct config *config, const char *whole, bool exists, char path[WIRE_SOCKET_BYTES])
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char name[40], view[16] = "*";

	if (!exists)
		snprintf(view, sizeof(view), "%08" PRIx32, (uint32_t)mounted(config));
	snprintf(name, sizeof(name), "%016" PRIx64 "%s.sock",
		order_derive(order_name_hash(whole, strlen(whole)), config->digest), view);
	if (!runtime || access(runtime, W_OK | X_OK) < 0 ||
		!place_own(runtime, getuid(), name, path))
		place_own(NULL, getuid(), name, path);
}

/* ---- the daemons that listen ---- */

/* Adds the daemon at @path, if one listens there. */
static void add(struct ctl_daemons *found, enum place_from from, const char *path)
{
	const struct place place = {from, path};
	char why[LIMIT_TEXT_BYTES];
	int error;

	for (unsigned i = 0; i < found->n; i++)
		if (strcmp(found->daemon[i].path, path) == 0)
			return;
	if (found->n == CTL_DAEMONS || strlen(path) >= WIRE_SOCKET_BYTES ||
		!place_may_use(&place, why) || !place_is_live(path, &error))
		return;
	struct ctl_daemon *d = &found->daemon[found->n++];

	*d = (struct ctl_daemon){.from = from};
	strcpy(d->path, path);
}

static void add_places(struct ctl_daemons *found, const struct places *places)
{
	for (unsigned i = 0; i < places->n; i++)
		add(found, places->place[i].from, places->place[i].path);
}

static void add_all(struct ctl_daemons *found, enum place_from from, const char *pattern)
{
	glob_t paths;

	if (glob(pattern, GLOB_NOSORT, NULL, &paths) != 0)
		return;
	for (size_t i = 0; i < paths.gl_pathc; i++)
		add(found, from, paths.gl_pathv[i]);
	globfree(&paths);
}

void ctl_daemons_look(struct ctl_link *l, struct ctl_daemons *found, const struct config *config,
	const char *whole)
{
	const char *socket = config && config->has_socket ? config->socket : NULL;
	const struct place_setting unnamed = {
		.runtime = getenv("XDG_RUNTIME_DIR"), .uid = geteuid()};
	char path[WIRE_SOCKET_BYTES], own[WIRE_SOCKET_BYTES], pattern[WIRE_SOCKET_BYTES + 8];
	struct places places;

	*found = (struct ctl_daemons){.digest = config ? config->digest : 0};
	places_read(&found->named, NULL, socket);
	places_list(&places, &unnamed);
	add_places(found, &found->named);
	found->usual = found->n > 0;
	if (whole) {
		if (socket)
			add(found, PLACE_CONFIG, socket);
		add_places(found, &places);
	}
	l->absent = found->n == 0;
	for (unsigned i = 0; i < found->named.n; i++)
		l->absent &= access(found->named.place[i].path, F_OK) < 0 && errno == ENOENT;
	found->shared = found->n;
	if (!whole && found->named.place[0].from == PLACE_ENVIRONMENT)
		return;
	if (whole && config) {
		ctl_private_socket(config, whole, true, path);
		add_all(found, PLACE_PRIVATE, path);
	}
	/* The first of several is its own view's. Otherwise no data is looked at: it may hang. */
	if (found->n > found->shared + 1) {
		found->n = found->shared;
		ctl_private_socket(config, whole, false, own);
		add(found, PLACE_PRIVATE, own);
		add_all(found, PLACE_PRIVATE, path);
	}
	for (unsigned i = 0; i < places.n; i++) {
		snprintf(pattern, sizeof(pattern), "%.*s/*.sock",
			(int)(strrchr(places.place[i].path, '/') - places.place[i].path),
			places.place[i].path);
		if (places.place[i].from == PLACE_OWN)
			add_all(found, PLACE_PRIVATE, pattern);
	}
	add_all(found, PLACE_OWN, "/run/tokend-*/tokend.sock"); /* of the service tokend@USER */
}

/* ---- what they serve ---- */

bool ctl_daemon_has(struct ctl_link *l, const struct ctl_daemons *found, unsigned daemon,
	const char *whole, const char *stream, const char *run)
{
	bool quiet = l->quiet, has = false;
	char served[PATH_MAX], digest[17];
	json_t *status, *s;
	size_t i;

	l->quiet = true; /* one that does not answer has nothing */
	status = ctl_status_at(l, found->daemon[daemon].path, false);
	l->quiet = quiet;
	if (whole)
		has = config_whole(
			      status_text(json_object_get(status, "daemon"), "config"), served) &&
		      strcmp(served, whole) == 0;
	else
		json_array_foreach(json_object_get(status, "sessions"), i, s)
		{
			has |= strcmp(status_text(s, "stream"), stream) == 0 &&
			       (!run || strcmp(status_text(s, "run"), run) == 0);
		}
	snprintf(digest, sizeof(digest), "%016" PRIx64, found->digest);
	l->edited = found->digest != 0 &&
		    strcmp(status_text(json_object_get(status, "config"), "digest"), digest) != 0;
	json_decref(status);
	return has;
}

/* ---- the daemon that is meant ---- */

/* Without a file the only daemon, or of several the only one with the request's run. True if one is
 * meant, which is the first of @found then; false after an error. */
static bool find_unnamed(
	struct ctl_link *l, struct ctl_daemons *found, const char *stream, const char *run)
{
	unsigned fit = 0;

	if (found->n == 1 || (!stream && found->usual))
		return true;
	for (unsigned i = 0; stream && i < found->n; i++)
		if (ctl_daemon_has(l, found, i, NULL, stream, run) && fit++ == 0)
			found->daemon[0] = found->daemon[i];
	if (fit == 1)
		return true;
	if (!stream)
		return ctl_link_fail(l, "%u daemons run; " WHICH, found->n);
	return ctl_link_fail(l, "%u of %u daemons have sessions of %s%s%sstream %s; " WHICH, fit,
		found->n, run ? "run " : "", run ? run : "", run ? " of " : "", stream);
}

/* The first daemon that serves the file, also if it read that before it was edited or broken: a
 * private one is named after the text that it read, and a broken file names no socket. Never one of
 * another file, whose streams may have the same names. */
static bool find_server(struct ctl_link *l, struct ctl_daemons *found, const char *file,
	const char *whole, const char *broken)
{
	for (unsigned i = 0; i < found->n; i++)
		if (ctl_daemon_has(l, found, i, whole, NULL, NULL)) {
			found->daemon[0] = found->daemon[i];
			if (broken && !l->quiet)
				ctl_note("%s; its daemon still serves what it read before", broken);
			else if (l->edited && i < found->shared && !l->quiet)
				ctl_note(EDITED, file, found->daemon[0].path);
			return true;
		}
	if (broken)
		return ctl_link_fail(l, "%s", broken);
	/* The one that a trainer finds may serve it, but not answer. */
	if (found->usual && !ctl_open(l, found->daemon[0].path))
		return false;
	ctl_disconnect(l);
	return ctl_link_fail(l,
		"no daemon serves %s; start one with tokend -c FILE, or add the --socket of one "
		"that `tokctl status` lists",
		file);
}

static bool find(struct ctl_link *l, const char *file, const char *stream, const char *run)
{
	char real[PATH_MAX], tried[LIMIT_TEXT_BYTES];
	/* One that does not exist is not served. */
	const char *whole = file && config_whole(file, real) ? real : file;
	struct fault fault;
	struct config *config = file ? config_load(file, &fault) : NULL;
	const char *broken = file && !config ? fault.text : NULL;
	struct ctl_daemons found;
	bool done;

	ctl_daemons_look(l, &found, config, whole);
	if (file && (broken || found.n > 0))
		done = find_server(l, &found, file, whole, broken);
	else if (found.n > 0)
		done = find_unnamed(l, &found, stream, run);
	else {
		places_tell(found.named.place, found.named.n, tried);
		done = ctl_link_fail(l, "no daemon at %s; " PHRASE_START, tried);
	}
	if (done)
		snprintf(l->socket, sizeof(l->socket), "%s", found.daemon[0].path);
	config_free(config);
	return done;
}

bool ctl_choose(
	struct ctl_link *l, const struct ctl_arguments *a, const char *stream, const char *run)
{
	const char *socket = ctl_text(a, "socket");

	if (!socket)
		return find(l, ctl_text(a, "config"), stream, run);
	if (strlen(socket) >= sizeof(l->socket))
		return ctl_link_fail(l,
			"--socket: %s has %zu bytes; a socket's path has at most %zu", socket,
			strlen(socket), sizeof(l->socket) - 1);
	strcpy(l->socket, socket);
	return true;
}
