/* bench_peers.h: runs the scripts of bench/peers, which time kernels of others. */
#ifndef ASSAY_CONFORMANCE_CLI_BENCH_PEERS_H
#define ASSAY_CONFORMANCE_CLI_BENCH_PEERS_H

#include <stdbool.h>

#include "assay/status.h"

/* Runs bench/peers/SCRIPT with one argument. *absent: there is no python3, which is said, and is no failure. *wrong: it
 * ended with another status than 0. */
assay_status bench_peers_run(const char *script, const char *argument, bool *absent, bool *wrong, assay_error *error);

#endif
