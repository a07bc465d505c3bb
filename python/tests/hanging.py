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
