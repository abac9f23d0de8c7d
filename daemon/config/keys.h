/* The keys of tokend.yaml, for its man page. */
#ifndef TOKEND_KEYS_H
#define TOKEND_KEYS_H

#include "daemon/config/schema.h"

extern const struct schema_table config_table;	/* the file */
extern const struct schema_table stream_table;	/* an entry of `streams:` */
extern const struct schema_table dataset_table; /* an entry of a stream's `datasets:` */
extern const struct schema_table step_table;	/* an entry of a stream's `schedule:` */
extern const struct schema_table store_table;	/* an entry of `stores:` */
extern const struct schema_table cache_table;	/* `cache:` */

#endif
