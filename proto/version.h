/* The one place that says which release this is. */
#ifndef TOKEND_VERSION_H
#define TOKEND_VERSION_H

#define TOKEND_VERSION "0.1.0"

#endif
