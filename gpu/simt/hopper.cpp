/* hopper.cpp: the table of hopper.h. */
#include "simt/scheduler.h"

namespace assay_simt_host {

const assay_simt_hopper hopper = {copy_begin, copy_commit, copy_arrives, named_barrier};

} /* namespace assay_simt_host */
