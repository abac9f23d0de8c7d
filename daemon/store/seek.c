#include "daemon/store/seek.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum provided seek_wrong(struct seek *search, const char *text, ...)
{
	va_list args;

	fault_set(&search->fault, FAULT_PERMISSION, "", "%s", "");
	va_start(args, text);
	vsnprintf(search->fault.text, sizeof(search->fault.text), text, args);
	va_end(args);
	fault_line(search->fault.text);
	return PROVIDED_WRONG;
}

enum provided seek_later(struct seek *search, const char *text, ...)
{
	va_list args;

	fault_set(&search->fault, FAULT_IO, "", "%s", "");
	va_start(args, text);
	vsnprintf(search->fault.text, sizeof(search->fault.text), text, args);
	va_end(args);
	fault_line(search->fault.text);
	return PROVIDED_LATER;
}

bool seek_fits(const char *text, size_t n, size_t bytes)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)text[i] <= 0x20 || (unsigned char)text[i] >= 0x7f)
			return false;
	return n > 0 && n < bytes;
}

bool seek_keys(struct seek *search, const char *access, const char *secret, const char *token)
{
	struct sign_keys *keys = &search->to->keys;

	memset(keys, 0, sizeof(*keys));
	if (!seek_fits(access, strlen(access), sizeof(keys->access)) ||
		!seek_fits(secret, strlen(secret), sizeof(keys->secret)) ||
		(token && *token && !seek_fits(token, strlen(token), SIGN_TOKEN_BYTES)))
		return false;
	strcpy(keys->access, access);
	strcpy(keys->secret, secret);
	if (token && *token)
		stpcpy(stpcpy(keys->token_header, SIGN_TOKEN_HEADER), token);
	search->to->kind = CREDENTIALS_KEYS;
	return true;
}

bool seek_bearer(struct seek *search, const char *token, size_t n)
{
	char *to = search->to->bearer;

	if (!seek_fits(token, n, CREDENTIALS_BEARER_BYTES - sizeof("Authorization: Bearer ")))
		return false;
	to = stpcpy(to, "Authorization: Bearer ");
	memcpy(to, token, n);
	to[n] = 0;
	search->to->kind = CREDENTIALS_BEARER;
	return true;
}
