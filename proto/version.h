/* The number of the release. */
#ifndef TOKEND_VERSION_H
#define TOKEND_VERSION_H

#define TOKEND_VERSION "0.2.0"

#endif
