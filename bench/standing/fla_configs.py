"""fla_configs.py DIR: writes a configuration for each kernel of flash-linear-attention that the standing calls.

Triton otherwise compiles and times all configurations of a kernel for each shape, 45 s for one shape. With
FLA_CACHE_MODE=default and FLA_CONFIG_DIR=DIR the project takes those of DIR. Each is one of the project's own: the first
with four warps and the fewest stages, as they are listed for the GPU of this machine."""
import importlib
import json
import os
import sys

from fla.ops.utils.cache import CachedAutotuner

MODULES = ("fla.modules.norm.l2norm", "fla.modules.causal_conv1d.ops", "fla.ops.common.chunk_delta_h",
           "fla.ops.common.chunk_o", "fla.ops.gated_delta_rule.chunk_fwd", "fla.ops.gated_delta_rule.wy_fast",
           "fla.ops.utils.cumsum")


def tuned(module):
    """Yields the kernels of a module whose configurations are looked up."""
    for kernel in vars(importlib.import_module(module)).values():
        while kernel is not None and not isinstance(kernel, CachedAutotuner):
            kernel = getattr(kernel, "fn", None) if type(kernel).__module__.startswith("triton") else None
        if kernel is not None:
            yield kernel


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    for kernel in (kernel for module in MODULES for kernel in tuned(module)):
        chosen = min(kernel.configs, key=lambda one: (one.num_warps != 4, one.num_stages))
        with open(os.path.join(sys.argv[1], kernel.kernel_name + ".json"), "w", encoding="utf-8") as file:
            json.dump({"default_config": {"kwargs": chosen.kwargs, "num_warps": chosen.num_warps,
                                          "num_stages": chosen.num_stages, "num_ctas": chosen.num_ctas}}, file)
        print(f"{kernel.kernel_name}: {chosen}")


if __name__ == "__main__":
    main()
