/*
 * Sections of the shared AWS files: $AWS_SHARED_CREDENTIALS_FILE and $AWS_CONFIG_FILE, otherwise
 * ~/.aws/credentials and ~/.aws/config.
 */
#ifndef TOKEND_STORE_PROFILE_H
#define TOKEND_STORE_PROFILE_H

#include "daemon/store/sign.h"
#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>

enum { PROFILE_FILE_BYTES = 1 << 20, PROFILE_TEXT_BYTES = 4096, PROFILE_NAME_BYTES = 128 };

/* What a section says; "": nothing. Secret: in memory of secret_new(). */
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
 * Reads a section of both files; the credentials file comes before the other. @name NULL:
 * $AWS_PROFILE or "default". A missing file has no sections. False: @fault, without any of the
 * file's text.
 */
bool profile_read(const char *name, struct profile *profile, struct fault *fault);
/* Parses a file's text, which is changed. @prefixed: sections are "[profile NAME]". For
 * profile_read() and the fuzzer. @number: of the line that is wrong. */
bool profile_parse(char *text, bool prefixed, struct profile *profile, int *number);
/* Fills @region if the section has one. */
bool profile_region(const char *name, char *region, size_t region_bytes);
/* The path of a file: @given, or below ~/.aws. False: there is no home. */
bool profile_path(const char *given, const char *file, char *path, size_t path_bytes);

#endif
