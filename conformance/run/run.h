/* run.h: running many cases: workers, shards, interrupted runs, expected failures. This is the only header of this
 * folder that other folders include. */
#ifndef ASSAY_CONFORMANCE_RUN_RUN_H
#define ASSAY_CONFORMANCE_RUN_RUN_H

#include "campaign.h"
#include "execute.h"
#include "ledger.h"
#include "narrow.h"
#include "worker.h"

#endif
