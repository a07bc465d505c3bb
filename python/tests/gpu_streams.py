"""Callables of torch that use streams of a GPU, wrong on purpose except `joined`. judge_gpu_streams.py judges them.

The door's tensors lie on the CPU, so that each callable copies them. A copy back waits for the current stream alone. A
kernel that runs late on a stream beside it, and is not joined, leaves the old contents in the result."""
import assay
import torch
import torch.nn.functional as F

LATE = 4_000_000  # clocks: some milliseconds, longer than all work of a case
OPTIONS = {"claims": "f32", "tensors": "torch", "contract": {"run_to_run": True, "lanes": 32, "exp_ulp": 4}}
EXPECTED = {"not_joined": ("element", "row", "request", "rounding", "run_to_run"),
            "not_awaited": ("element", "row", "request", "rounding", "run_to_run"),
            "old_result": ("element", "row", "request", "rounding", "run_to_run")}
beside, kept = None, {}


def plain(z, plus_one, group, **_):
    if z is not None or plus_one or group:
        raise assay.Unsupported("z, plus_one, group: found one, allowed none")


def norm(x, g, eps, awaits=True, joins=True, keeps=False):
    """Computes on a stream beside the current one."""
    global beside
    if beside is None:
        beside = torch.cuda.Stream()
    here, shape = torch.cuda.current_stream(), tuple(x.shape)
    rows, weight, wide = x.cuda(), g.cuda(), torch.zeros(shape, device="cuda")
    y = kept.setdefault(shape, torch.zeros(shape, device="cuda")) if keeps else torch.zeros(shape, device="cuda")
    torch.cuda.synchronize()
    if not awaits:
        torch.cuda._sleep(LATE)
    wide.copy_(rows)
    if awaits:
        beside.wait_stream(here)
    with torch.cuda.stream(beside):
        if awaits:
            torch.cuda._sleep(LATE)
        y.copy_(F.rms_norm(wide, shape[-1:], weight, eps))
    if joins:
        here.wait_stream(beside)
    made = y.cpu()
    torch.cuda.synchronize()  # nothing of this call may write while the next one runs
    return made


@assay.variant("rms_norm", supports=plain, **OPTIONS)
def joined(x, g, eps):
    return norm(x, g, eps)


@assay.variant("rms_norm", supports=plain, **OPTIONS)
def not_joined(x, g, eps):
    return norm(x, g, eps, joins=False)


@assay.variant("rms_norm", supports=plain, **OPTIONS)
def not_awaited(x, g, eps):
    return norm(x, g, eps, awaits=False)


@assay.variant("rms_norm", supports=plain, **OPTIONS)
def old_result(x, g, eps):
    return norm(x, g, eps, joins=False, keeps=True)
