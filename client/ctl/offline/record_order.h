/* The orders in which recorded rows were served. Errors are printed. */
#ifndef TOKEND_CTL_RECORD_ORDER_H
#define TOKEND_CTL_RECORD_ORDER_H

#include "client/ctl/offline/records.h"

/* Sets *@order to the number of the cursor that the @n @bytes encode, which is added if it is new.
 * False after an error: the record at @path is damaged, or of another stream. */
bool records_order_find(
	struct records *r, const char *path, const void *bytes, size_t n, uint32_t *order);
/* Adds the order of @cursor, which belongs to the stream. */
bool records_order_add(struct records *r, const struct cursor *cursor);
void records_orders_free(struct records *r);
/* Fills in p->force. The sections are sorted by time, with their generations. */
bool records_force(struct record_peer *p);
/* The order in which @position should have been served. */
const struct record_force *records_in_force(const struct record_peer *p, uint64_t position);

#endif
