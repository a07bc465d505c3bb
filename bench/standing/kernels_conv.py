"""kernels_conv.py: the short convolution of flash-linear-attention as a callable for the Python door.

A request's rows are fetched from its slot before the call and stored there after it. The project keeps one row more
than a result needs, and the other axis last. `CONV_INTERFACE` names another module with the same function, as a
stand-in on a CPU."""
import importlib
import os

import assay
import torch.nn.functional as F

from kernels_torch import back, on

CONTRACT = {"exp_ulp": 4, "lanes": 1, "run_to_run": True}


def interface():
    return importlib.import_module(os.environ.get("CONV_INTERFACE", "fla.modules.causal_conv1d"))


@assay.variant("causal_conv1d", name="fla", claims="f32,f16,bf16", tensors="torch", contract=CONTRACT)
def conv(x, w, bias, cu, slots, fresh, state, y, silu):
    first = state[slots.clamp(min=0).long()]
    first[(slots < 0) | (fresh != 0)] = 0
    made, last = interface().causal_conv1d(on(x).contiguous()[None], on(w).contiguous(), on(bias),
                                           initial_state=F.pad(on(first).transpose(1, 2), (1, 0)).contiguous(),
                                           output_final_state=True, activation="silu" if silu else None,
                                           cu_seqlens=on(cu).long())
    y[...] = back(made[0], y)
    kept = (slots >= 0) & (cu[1:] > cu[:-1])
    state[slots[kept].long()] = back(last, state)[kept][:, :, 1:].transpose(1, 2)
