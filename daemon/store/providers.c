#include "daemon/store/providers.h"

#include "daemon/store/profile.h"
#include "daemon/store/providers_own.h"
#include "daemon/store/secret.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 64 << 10 };

/* ---- what `stores:` names ---- */

/* Bytes of the text without white space at its ends; *@from: where they begin. */
static size_t bare(const char *text, const char **from)
{
	static const char blanks[] = " \t\r\n";
	size_t n;

	*from = text + strspn(text, blanks);
	n = strlen(*from);
	while (n > 0 && strchr(blanks, (*from)[n - 1]))
		n--;
	return n;
}

/* Reads the file, and uses it with @use. A file that is being replaced is there soon. */
static enum provided from_file(struct seek *search, const char *path, const char *right,
	bool (*use)(struct seek *search, const char *text, size_t n))
{
	char *text = secret_new(FILE_BYTES);
	const char *from;
	enum provided result = PROVIDED;

	if (!text)
		return seek_later(search, "out of memory");
	if (secret_read(path, text, FILE_BYTES, &search->fault) < 0) {
		result = PROVIDED_LATER;
	} else {
		size_t n = bare(text, &from);

		if (!use(search, from, n))
			result = seek_later(search, "%s: must contain %s", path, right);
	}
	secret_free(text, FILE_BYTES);
	return result;
}

static bool use_query(struct seek *search, const char *text, size_t n)
{
	if (n > 0 && text[0] == '?')
		text++, n--;
	if (!seek_fits(text, n, CREDENTIALS_QUERY_BYTES) || memchr(text, '#', n))
		return false;
	memcpy(search->to->query, text, n);
	search->to->query[n] = 0;
	search->to->kind = CREDENTIALS_QUERY;
	return true;
}

static enum provided from_token_file(struct seek *search)
{
	strcpy(search->provider, "token file");
	return from_file(search, search->store->token_file, "one bearer token and nothing else",
		seek_bearer);
}

static enum provided from_query_file(struct seek *search)
{
	strcpy(search->provider, "query file");
	return from_file(search, search->store->query_file,
		"one query, NAME=VALUE&…, and nothing else", use_query);
}

/* ---- environment ---- */

static enum provided from_environment(struct seek *search)
{
	const char *access = getenv("AWS_ACCESS_KEY_ID");
	const char *secret = getenv("AWS_SECRET_ACCESS_KEY");

	if (!access || !*access || !secret || !*secret)
		return PROVIDED_NOTHING;
	strcpy(search->provider, "environment");
	if (!seek_keys(search, access, secret, getenv("AWS_SESSION_TOKEN")))
		return seek_wrong(search,
			"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN has blanks "
			"or control characters, or is too long; set them again");
	return PROVIDED;
}

/* ---- shared files ---- */

static enum provided use_profile(struct seek *search, const struct profile *p)
{
	if (p->access[0] && p->secret[0]) {
		if (seek_keys(search, p->access, p->secret, p->token))
			return PROVIDED;
		return seek_wrong(search,
			"profile %s: its keys have blanks or control characters; write them again",
			p->name);
	}
	if (p->access[0] || p->secret[0])
		return seek_wrong(search,
			"profile %s has only one of aws_access_key_id and aws_secret_access_key; "
			"set both",
			p->name);
	if (p->process[0])
		return provide_process(search, p->process, p->name);
	if (p->token_file[0])
		return provide_web_identity(search, p->role, p->token_file, p->session);
	if (p->sso[0] || p->source[0])
		return seek_wrong(search,
			"profile %s uses %s, which is not supported; use credential_process = aws "
			"configure export-credentials --profile %s --format process in another "
			"profile",
			p->name, p->sso[0] ? "SSO" : "source_profile", p->name);
	return PROVIDED_NOTHING;
}

/* @named: by `stores:` or AWS_PROFILE, so it must exist. */
static enum provided read_profile(struct seek *search, const char *name, bool named)
{
	struct profile *profile = secret_new(sizeof(*profile));
	enum provided result;

	if (!profile)
		return seek_later(search, "out of memory");
	if (!profile_read(name, profile, &search->fault)) {
		result = PROVIDED_WRONG;
	} else {
		snprintf(
			search->provider, sizeof(search->provider), "profile %.50s", profile->name);
		result = use_profile(search, profile);
		if (result == PROVIDED_NOTHING && named)
			result = seek_wrong(search, "profile %s %s", profile->name,
				profile->found ? "has no credentials; set aws_access_key_id and "
						 "aws_secret_access_key, or credential_process"
					       : "is in none of the AWS files; add it, or name "
						 "another profile");
	}
	secret_free(profile, sizeof(*profile));
	return result;
}

static enum provided from_profile(struct seek *search)
{
	const char *given = getenv("AWS_PROFILE");

	return read_profile(search, NULL, given && *given);
}

static enum provided from_named_profile(struct seek *search)
{
	return read_profile(search, search->store->profile, true);
}

/* ---- the chain ---- */

static enum provided anonymous(struct seek *search)
{
	search->to->kind = CREDENTIALS_ANONYMOUS;
	strcpy(search->provider, "anonymous");
	return PROVIDED;
}

static enum provided nobody(struct seek *search)
{
	return seek_wrong(search,
		"no credentials: neither in the environment nor in the AWS files, and no role of "
		"this machine; set AWS_PROFILE or profile:, or anonymous: true for public data, "
		"in stores: %s",
		search->store		 ? search->store->name
		: search->kind == URL_GS ? "gs"
					 : "s3");
}

typedef enum provided provider(struct seek *search);

static provider *const chain_of_s3[] = {from_environment, from_profile,
	provide_web_identity_environment, provide_container, provide_instance, nobody, NULL};
static provider *const chain_of_gs[] = {
	from_environment, from_profile, provide_google, nobody, NULL};
static provider *const chain_of_https[] = {anonymous, NULL};

enum provided providers_search(struct seek *search)
{
	const struct config_store *store = search->store;
	provider *const *chain = search->kind == URL_HTTPS ? chain_of_https
				 : search->kind == URL_GS  ? chain_of_gs
							   : chain_of_s3;
	provider *only = !store		     ? NULL
			 : store->anonymous  ? anonymous
			 : store->token_file ? from_token_file
			 : store->query_file ? from_query_file
			 : store->profile    ? from_named_profile
					     : NULL;
	enum provided result = PROVIDED_NOTHING;

	memset(search->to, 0, sizeof(*search->to));
	search->expires = INT64_MAX;
	search->provider[0] = 0;
	if (only)
		return only(search);
	for (; result == PROVIDED_NOTHING && *chain; chain++)
		result = (*chain)(search);
	return result;
}
