/* How datasets in stores are read, by `fetch:`: by window, or in pieces through the cache. */
#ifndef TOKEND_DATASET_FETCH_H
#define TOKEND_DATASET_FETCH_H

#include "daemon/catalog/catalog.h"

/*
 * Decides for all datasets of the catalog, from config and manifests only: those with `fetch:
 * piece`, then those with `auto` in the config's order, while the cache has space. False: @fault,
 * as config_refuse().
 */
bool dataset_fetch_plan(struct catalog *catalog, struct fault *fault);
/* The space in a cache that the dataset needs so that a piece is fetched once an epoch, also of a
 * dataset on a disk. */
uint64_t dataset_fetch_needs(const struct dataset *dataset);
/* Writes how the dataset is read, and why: "by window: there is no cache". "": it is local. */
void dataset_fetch_reason(
	const struct config *config, const struct dataset *dataset, char *text, size_t text_bytes);

#endif
