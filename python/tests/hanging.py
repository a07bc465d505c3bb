"""A callable that never ends, for test_door.py."""
import time

import assay


@assay.variant("rms_norm")
def never(x, g, eps):
    while True:
        time.sleep(1)


@assay.variant("rms_norm")
def noisy(x, g, eps, y):
    print("on standard output")
    y[...] = 0


@assay.variant("rms_norm", supports=None)
def wrong_type(x, g, eps):
    return x.astype("float64")


def declines(x, **_):
    """Takes two rows alone."""
    if x.shape[0] != 2:
        raise assay.Unsupported(f"N: found {x.shape[0]}, allowed 2")


@assay.variant("rms_norm", supports=declines)
def picky(x, g, eps):
    assert x.shape[0] == 2
    return x


@assay.variant("softmax_attention", claims="bf16|same|nhd|mixed", tensors="bits")
def never_asked(**_):
    raise AssertionError("it has no call that the door takes")


CHOICES = {"zero_p_v": "skipped", "lse_base": "2", "lse_empty": "+inf", "lse_sink": "with", "quotient": "any",
           "stored_scale": "inverse", "generator": "own", "start": "bias"}


@assay.variant("sampler", contract=CHOICES)
def with_choices(logits, seed, step, request, token, status):
    status[...] = 0
    token[...] = logits.argmax(-1)
