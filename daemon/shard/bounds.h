/*
 * Lists of document bounds: side files of shards whose format does not keep documents. The list of
 * NAME.npy or NAME.bin is NAME.csv.gz, as dolma and OLMo write it: gzipped CSV without a heading.
 * The first column is the index of a document's first token, the second that after its last token,
 * both without quotes; other columns are ignored. Documents ascend and do not overlap. Tokens
 * between two documents belong to neither.
 *
 * A list by `tokctl pack --fit` says in its gzip comment (BOUNDS_ROWS) that the shard is rows, each
 * of whole documents and then padding, which is outside documents.
 */
#ifndef TOKEND_SHARD_BOUNDS_H
#define TOKEND_SHARD_BOUNDS_H

#include "daemon/shard/bytes.h"

#define BOUNDS_ENDING ".csv.gz"
#define BOUNDS_ROWS   "tokend: rows of %" PRIu64 " tokens, %" PRIu64 " of padding"

struct map;

/*
 * Sets *@id to the bytes_id() of the shard's list, without opening it; 0: there is none. @objects:
 * NULL, or where it is. On failure returns false and @fault; a later call may succeed.
 */
bool bounds_side_id(
	const struct objects *objects, const char *shard, uint32_t *id, struct fault *fault);
/*
 * Sets *@row_tokens to the length of the shard's rows and *@padding to the tokens outside its
 * documents, as the list's first bytes say; 0: it has no rows. False: @fault.
 */
bool bounds_rows(const struct bytes *shard, uint64_t tokens, uint64_t *row_tokens,
	uint64_t *padding, struct fault *fault);
/*
 * Reads and checks the whole list, and adds its documents and the gaps between them to @map, which
 * is empty. *@documents: their number, empty ones included. *@id: bytes_id() of the list; 0: there
 * is none. On failure returns false; @fault gives file, row, field, value and limit.
 */
bool bounds_read(const struct bytes *shard, uint64_t tokens, struct map *map, uint64_t *documents,
	uint32_t *id, struct fault *fault);

#endif
