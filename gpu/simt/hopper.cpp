/* hopper.cpp: the table of hopper.h. */
#include "simt/scheduler.h"

namespace assay_simt_host {

const assay_simt_hopper hopper = {
    copy_begin,   copy_commit,    copy_arrives,    copy_arrive, mbarrier_init, mbarrier_arrive, mbarrier_wait,
    load_check,   bulk_load,      bulk_store,      bulk_commit, bulk_wait,     proxy_fence,     wgmma_address,
    wgmma_fence,  wgmma_issue,    wgmma_commit,    wgmma_wait,  cluster_rank,  cluster_size,    cluster_arrive,
    cluster_wait, cluster_shared, dependency_wait, registers,   poll,          named_barrier};

} /* namespace assay_simt_host */
