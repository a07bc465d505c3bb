"""flashinfer_modules.py DIR: builds the modules of FlashInfer that the bind files name, and copies them to DIR."""
import os
import shutil
import sys

import torch
from flashinfer.jit import core
from flashinfer.jit.activation import gen_act_and_mul_module
from flashinfer.jit.attention.modules import gen_batch_decode_module, gen_batch_mla_module, gen_batch_prefill_module
from flashinfer.jit.cascade import gen_cascade_module
from flashinfer.jit.gdn import gen_gdn_prefill_sm90_module
from flashinfer.jit.norm import gen_norm_module
from flashinfer.jit.page import gen_page_module
from flashinfer.jit.rope import gen_rope_module

half, ids = torch.bfloat16, torch.int32
attention = (half, half, half, ids, 128, 128, 0, False, False)
specs = {
    "norm": gen_norm_module(),
    "rope": gen_rope_module(),
    "page": gen_page_module(),
    "cascade": gen_cascade_module(),
    "silu": gen_act_and_mul_module("silu"),
    "decode": gen_batch_decode_module(*attention),
    "prefill": gen_batch_prefill_module("fa2", *attention, False),
    "prefill_sm90": gen_batch_prefill_module("fa3", *attention, False),
    "mla": gen_batch_mla_module("fa2", half, half, half, ids, 512, 64, False),
    "gdn_prefill": gen_gdn_prefill_sm90_module(),
    "mla_sm90": gen_batch_mla_module("fa3", half, half, half, ids, 512, 64, False),
}
os.makedirs(sys.argv[1], exist_ok=True)
core.build_jit_specs(list(specs.values()), verbose=False)
for name, spec in specs.items():
    shutil.copy(spec.get_library_path(), os.path.join(sys.argv[1], name + ".so"))
