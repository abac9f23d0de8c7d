/*
 * Credentials of stores. A wallet belongs to a store (a scheme), once per process, and all
 * sessions share it. Its helper thread finds credentials (environment, shared files, web identity,
 * container, instance; or what `stores:` names) and renews them before they expire. It may block;
 * the functions below do not.
 *
 * Secrets are in no message. A process that has any leaves no core dump, and other processes of its
 * user cannot read its memory (PR_SET_DUMPABLE).
 */
#ifndef TOKEND_CREDENTIALS_H
#define TOKEND_CREDENTIALS_H

#include "daemon/config/config.h"
#include "daemon/store/sign.h"
#include "daemon/store/url.h"
#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wallets; /* of a process */
struct wallet;	/* of a store; owned by the wallets */

enum { CREDENTIALS_BEARER_BYTES = 8192, CREDENTIALS_QUERY_BYTES = 4096 };

enum credentials_kind {
	CREDENTIALS_ANONYMOUS, /* requests are sent as they are */
	CREDENTIALS_KEYS,      /* requests are signed with `keys` */
	CREDENTIALS_BEARER,    /* requests get the header `bearer` */
	CREDENTIALS_QUERY,     /* requests get `query` after their own */
};

/* A copy for one thread. Secret. */
struct credentials {
	uint64_t serial; /* 0: none yet. Other credentials have another one */
	enum credentials_kind kind;
	struct sign_keys keys;
	char bearer[CREDENTIALS_BEARER_BYTES]; /* "Authorization: Bearer …" */
	char query[CREDENTIALS_QUERY_BYTES];   /* encoded, without '?' */
};

/*
 * Checks the entries of `stores:` (profiles exist, files can be read, `ca` has certificates), and
 * starts no thread yet. @config may be NULL, and outlives the wallets. @news is called in
 * helper threads when wallet_get() may return something else. NULL: @fault.
 */
struct wallets *wallets_open(const struct config *config, void (*news)(void *context),
	void *context, struct fault *fault);
/* Ends the helper threads, within a second. NULL: does nothing. */
void wallets_close(struct wallets *wallets);
/*
 * The wallet for a bucket's store. The search begins with the first call. @log (or NULL) gets a
 * line if others could read the secrets: they go over the network unencrypted, or other users may
 * read their file. NULL: @fault.
 */
struct wallet *wallets_find(struct wallets *wallets, const struct url_place *place,
	void (*log)(void *context, const char *line), void *context, struct fault *fault);

enum wallet_state {
	WALLET_READY,
	WALLET_LATER, /* none yet, or they have expired and could not be renewed; news follow */
	WALLET_NONE,  /* @fault: there are none, or the config is wrong */
};

/*
 * Brings @mine up to date; nothing is copied if its serial is the current one. LATER sets @fault to
 * what is waited for ("credentials: …"), if anything failed. Any thread; @mine is the caller's.
 */
enum wallet_state wallet_get(struct wallet *wallet, struct credentials *mine, struct fault *fault);
/* A store rejected the credentials with this serial (expired, or unknown): they are found anew,
 * unless newer ones are there. Until then wallet_get() returns the same ones. */
void wallet_refused(struct wallet *wallet, uint64_t serial);
/* The server's clock minus ours, in seconds: expiry is judged by it. */
void wallet_clock(struct wallet *wallet, int64_t offset_s);
/* Fills the provider's name ("web identity"; "": none yet) and the seconds until the credentials
 * expire (INT64_MAX: never). */
void wallet_status(struct wallet *wallet, char provider[64], int64_t *expires_s);

#endif
