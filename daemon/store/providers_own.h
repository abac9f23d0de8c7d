/* The providers that ask another program or server. For providers.c. */
#ifndef TOKEND_STORE_PROVIDERS_OWN_H
#define TOKEND_STORE_PROVIDERS_OWN_H

#include "daemon/store/seek.h"

/* Uses the JSON object of a program or server, whose members have AWS's names. @who: for messages.
 * @token: the member with the session token. */
enum provided provide_json(
	struct seek *search, const char *text, size_t n, const char *token, const char *who);
/* Reads "2026-01-01T00:00:00Z". False: it is something else. */
bool provide_time(const char *text, int64_t *seconds);

/* Runs the command of a profile. */
enum provided provide_process(struct seek *search, const char *command, const char *profile);
/* A role of the tokens in a file. The strings may be NULL or "": not given. */
enum provided provide_web_identity(
	struct seek *search, const char *role, const char *file, const char *session);
enum provided provide_web_identity_environment(struct seek *search);
enum provided provide_container(struct seek *search);
enum provided provide_instance(struct seek *search);
enum provided provide_google(struct seek *search);

#endif
