/*
 * Where credentials come from: the environment, the shared AWS files, programs and servers. A
 * search may block. No message contains a secret.
 */
#ifndef TOKEND_STORE_PROVIDERS_H
#define TOKEND_STORE_PROVIDERS_H

#include "daemon/store/credentials.h"

#include <stdatomic.h>

enum provided {
	PROVIDED,	  /* the credentials are in `found` */
	PROVIDED_NOTHING, /* this one is not set up here; the next one is asked */
	PROVIDED_LATER,	  /* it is set up, and failed with `fault`; asked again later */
	PROVIDED_WRONG,	  /* it is set up wrong, `fault`; nothing but a change helps */
};

struct seek {
	/* Of what. */
	const struct config_store *store; /* NULL: no entry */
	enum url_kind kind;
	char region[URL_REGION_BYTES];
	const atomic_bool *stop; /* the search must end */
	/* The result. */
	struct credentials found; /* without its serial */
	int64_t expires;	  /* INT64_MAX: never */
	char provider[64];
	struct fault fault;
	/* The search's own. */
	bool met; /* an earlier search found the instance's metadata */
	struct seek_work *work;
};

/* Asks the providers of the store in turn. Never PROVIDED_NOTHING. */
enum provided providers_search(struct seek *seek);
/* Uses the JSON object of a program or server, whose members have AWS's names. @token: the member
 * with the session token. @who: for messages. */
enum provided provide_json(struct seek *seek, const char *text, const char *token, const char *who);

/* ---- profile.c: sections of the shared AWS files ---- */

enum { PROFILE_TEXT_BYTES = 4096, PROFILE_NAME_BYTES = 128 };

/* What a section says; "": nothing. Secret. */
struct profile {
	bool found; /* in one of the files */
	char name[PROFILE_NAME_BYTES];
	char access[SIGN_ACCESS_BYTES], secret[SIGN_SECRET_BYTES], token[SIGN_TOKEN_BYTES];
	char region[SIGN_REGION_BYTES];
	char process[PROFILE_TEXT_BYTES];    /* credential_process */
	char role[PROFILE_TEXT_BYTES];	     /* role_arn */
	char token_file[PROFILE_TEXT_BYTES]; /* web_identity_token_file */
	char session[PROFILE_NAME_BYTES];    /* role_session_name */
	char source[PROFILE_NAME_BYTES];     /* source_profile, which is not supported */
	char sso[PROFILE_NAME_BYTES];	     /* sso_session or sso_start_url: the same */
};

/*
 * Reads a section of $AWS_SHARED_CREDENTIALS_FILE and then $AWS_CONFIG_FILE, otherwise of
 * ~/.aws/credentials and ~/.aws/config; the first that has a setting counts. @name NULL:
 * $AWS_PROFILE or "default". A missing file has no sections. False: @fault, without any of the
 * file's text.
 */
bool profile_read(const char *name, struct profile *profile, struct fault *fault);
/* Parses a file's text, which is changed. @prefixed: sections are "[profile NAME]". Returns 0, or
 * the number of the line that is wrong. */
int profile_parse(char *text, bool prefixed, struct profile *profile);
/* The path of a file: @given, or below ~/.aws. False: there is no home. */
bool profile_path(const char *given, const char *file, char *path, size_t path_bytes);
/* Reads a file of fewer than @bytes into @text, with a zero after it. False: @fault. */
bool profile_text(const char *path, char *text, size_t bytes, struct fault *fault);
/* Cuts blanks off both ends of the @n bytes at @text, and ends it. Returns the new beginning. */
char *profile_trim(char *text, size_t n);

#endif
