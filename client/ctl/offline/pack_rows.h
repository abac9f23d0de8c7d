/*
 * Best-fit packing of documents into rows: largest first, each into the fullest row that it fits
 * (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The result depends only on the
 * documents' lengths. Needs 20 bytes of memory per document and 12 per row.
 */
#ifndef TOKEND_CTL_PACK_ROWS_H
#define TOKEND_CTL_PACK_ROWS_H

#include <stdbool.h>
#include <stdint.h>

/* Tokens of one document. */
struct pack_piece {
	uint32_t from, tokens;
};

struct pack_rows {
	uint32_t row_tokens;
	uint32_t rows, documents, cut; /* cut: documents longer than a row */
	uint32_t *first;	       /* [rows + 1] row r has pieces [first[r], first[r + 1]) */
	struct pack_piece *piece;      /* of each row one after another; owned, as first */
};

/*
 * Packs @documents documents, of which i has tokens [end[i - 1], end[i]); none is empty, and the
 * last ends before 2^31. One longer than a row becomes full rows, and a rest that is packed. Rows
 * are in the order in which their first documents come, and so are the documents in a row. False:
 * out of memory. Call pack_rows_free() either way.
 */
bool pack_rows_fill(
	struct pack_rows *r, uint32_t row_tokens, const uint32_t *end, uint32_t documents);
void pack_rows_free(struct pack_rows *r);

#endif
