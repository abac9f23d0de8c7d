#include "client/ctl/online/socket.h"

#include "client/ctl/common/error.h"
#include "client/ctl/online/private.h"
#include "proto/phrases.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_set(const char *text)
{
	return text && *text;
}

static char *copy_of(const char *path)
{
	char *copy = strdup(path);

	if (!copy)
		ctl_fail(PHRASE_MEMORY);
	return copy;
}

/* Prints that no daemon listens at any of these places. */
static void refuse(const struct place *place, unsigned n)
{
	char tried[LIMIT_TEXT_BYTES];

	places_tell(place, n, tried);
	ctl_fail("no daemon at %s; " PHRASE_START, tried);
}

/* ---- the daemon of a config ---- */

static void add(struct ctl_candidates *c, enum place_from from, const char *path)
{
	for (unsigned i = 0; i < c->n; i++)
		if (strcmp(c->place[i].path, path) == 0)
			return;
	c->place[c->n++] = (struct place){from, path};
}

void ctl_candidates(struct ctl_candidates *c, const struct config *config)
{
	const char *socket = config && config->has_socket ? config->socket : NULL;

	c->n = 0;
	places_read(&c->named, NULL, socket);
	places_list(&c->unnamed,
		&(struct place_setting){
			.config = socket, .runtime = getenv("XDG_RUNTIME_DIR"), .uid = geteuid()});
	for (unsigned i = 0; i < c->named.n; i++)
		add(c, c->named.place[i].from, c->named.place[i].path);
	for (unsigned i = 0; i < c->unnamed.n; i++)
		add(c, c->unnamed.place[i].from, c->unnamed.place[i].path);
}

static bool add_private(struct ctl_candidates *c, const char *whole)
{
	unsigned n = private_sockets(whole, c->private);

	for (unsigned i = 0; i < n; i++)
		add(c, PLACE_PRIVATE, c->private[i]);
	return n > 0;
}

/* The first of @n places whose daemon serves the file @whole; NULL: none. */
static const char *find_serving(const struct place *place, unsigned n, const char *whole)
{
	char why[LIMIT_TEXT_BYTES];
	struct fault fault;
	int error;

	for (unsigned i = 0; i < n; i++)
		if (place_may_use(&place[i], why) && place_is_live(place[i].path, &error) &&
			private_ask(place[i].path, whole, PRIVATE_ASK_MS, -1, &fault) ==
				PRIVATE_SERVES)
			return place[i].path;
	return NULL;
}

/* ---- the daemons that run ---- */

/* Adds the socket at @path if a daemon listens there. False: out of memory. */
static bool take(struct ctl_sockets *s, enum place_from from, const char *path)
{
	char why[LIMIT_TEXT_BYTES];
	struct place place = {from, path}, *more;
	int error;

	for (unsigned i = 0; i < s->n; i++)
		if (strcmp(s->place[i].path, path) == 0)
			return true;
	if (!place_may_use(&place, why) || !place_is_live(path, &error))
		return true;
	more = realloc(s->place, (s->n + 1) * sizeof(*more));
	if (more)
		s->place = more;
	if (!more || !(place.path = copy_of(path)))
		return false;
	s->place[s->n++] = place;
	return true;
}

static bool take_all(struct ctl_sockets *s, enum place_from from, const char *pattern)
{
	glob_t found;
	bool done = true;

	if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0)
		return true;
	for (size_t i = 0; done && i < found.gl_pathc; i++)
		done = strlen(found.gl_pathv[i]) >= WIRE_SOCKET_BYTES ||
		       take(s, from, found.gl_pathv[i]);
	globfree(&found);
	return done;
}

/* Takes the daemons that listen at @places, and private ones next to them. False: out of memory. */
static bool take_listening(struct ctl_sockets *s, const struct places *places)
{
	char pattern[WIRE_SOCKET_BYTES];
	bool done = true;

	*s = (struct ctl_sockets){0};
	for (unsigned i = 0; done && i < places->n; i++)
		done = take(s, places->place[i].from, places->place[i].path);
	for (unsigned i = 0; done && i < places->n; i++) {
		const char *path = places->place[i].path;

		if (places->place[i].from != PLACE_OWN)
			continue;
		snprintf(pattern, sizeof(pattern), "%.*s/*.sock", (int)(strrchr(path, '/') - path),
			path);
		done = take_all(s, PLACE_PRIVATE, pattern);
	}
	/* tokend@USER */
	if (done && places->n > 1)
		done = take_all(s, PLACE_OWN, "/run/tokend-*/tokend.sock");
	return done;
}

bool ctl_sockets_find(struct ctl_sockets *s)
{
	struct places places;

	places_read(&places, NULL, NULL);

	bool done = take_listening(s, &places);

	if (!done)
		ctl_fail(PHRASE_MEMORY);
	else if (s->n == 0)
		refuse(places.place, places.n);
	if (done && s->n > 0)
		return true;
	ctl_sockets_free(s);
	return false;
}

void ctl_sockets_free(struct ctl_sockets *s)
{
	for (unsigned i = 0; i < s->n; i++)
		free((char *)s->place[i].path);
	free(s->place);
	*s = (struct ctl_sockets){0};
}

/*
 * The socket of a daemon that read the file @whole before it was edited: a private one has a name
 * made from the text that it read, and a broken file names no socket. NULL: there is none.
 */
static char *of_edited_config(const char *whole)
{
	struct ctl_sockets s;
	struct places places;
	const char *found = NULL;

	places_list(&places,
		&(struct place_setting){.runtime = getenv("XDG_RUNTIME_DIR"), .uid = geteuid()});
	if (take_listening(&s, &places))
		found = find_serving(s.place, s.n, whole);

	char *copy = found ? copy_of(found) : NULL;

	ctl_sockets_free(&s);
	return copy;
}

/*
 * The socket of the daemon that serves the file @whole. If none does, that of the one at the place
 * that was named, or at the default: it may have read the file under another path.
 */
static char *of_valid_config(const char *whole, const struct config *config)
{
	struct ctl_candidates c;
	const char *found;
	char *edited;
	int error;

	ctl_candidates(&c, config);
	if (!add_private(&c, whole))
		return NULL;
	found = find_serving(c.place, c.n, whole);
	if (!found && (edited = of_edited_config(whole)))
		return edited;
	if (!found && place_is_live(places_choose(&c.named), &error))
		found = places_choose(&c.named);
	if (found)
		return copy_of(found);
	refuse(c.place, c.n);
	return NULL;
}

/* The socket of the daemon that serves @path. */
static char *of_config(const char *path)
{
	char *whole = realpath(path, NULL), *found = NULL;
	struct fault fault;
	struct config *config = config_load(path, &fault);

	if (config && whole)
		found = of_valid_config(whole, config);
	else if (whole)
		found = of_edited_config(whole);
	if (!config && found)
		ctl_note("%s; its daemon still serves what it read before", fault.text);
	else if (!config || !whole)
		ctl_fail("%s", config ? PHRASE_MEMORY : fault.text);
	config_free(config);
	free(whole);
	return found;
}

/* The only daemon that is found, or of several the one that a trainer finds. */
static char *any(void)
{
	char tried[LIMIT_TEXT_BYTES] = "", *found = NULL;
	struct ctl_sockets s;
	struct places places;
	const char *usual;
	size_t used = 0;

	if (!ctl_sockets_find(&s))
		return NULL;
	places_read(&places, NULL, NULL);
	usual = places_choose(&places);
	for (unsigned i = 0; i < s.n && !found; i++)
		if (s.n == 1 || strcmp(s.place[i].path, usual) == 0)
			found = copy_of(s.place[i].path);
	for (unsigned i = 0; i < s.n && used < sizeof(tried); i++)
		used += (size_t)snprintf(
			tried + used, sizeof(tried) - used, "%s%s", i ? ", " : "", s.place[i].path);
	if (!found)
		ctl_fail("%u daemons run: %s; give one with --socket PATH or -c FILE", s.n, tried);
	ctl_sockets_free(&s);
	return found;
}

bool ctl_socket_named(const char *option, const char *config)
{
	return option || config || is_set(getenv("TOKEND_SOCKET"));
}

char *ctl_socket(const char *option, const char *config)
{
	struct places places;
	int error;

	if (option)
		return copy_of(option);
	if (config)
		return of_config(config);
	if (!ctl_socket_named(option, config))
		return any();
	places_read(&places, NULL, NULL);
	if (place_is_live(places.place[0].path, &error))
		return copy_of(places.place[0].path);
	refuse(places.place, places.n);
	return NULL;
}
