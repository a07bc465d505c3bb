"""tokens.py: whether a peer's first tokens may be the reference's, by the rule of bench/expected.h. Needs no torch."""

STEPS = BEST = 8


def agreed(want, ids):
    """Returns how many of the first tokens are the reference's, and why they are wrong, or None.

    want: a line of bench/expected.jsonl. A token that is not the first may be right where its logit is within 4 rms of
    the best one. From there on the text is another, and no token is compared."""
    best, logits, rms = want["ids"], want["logits"], want["rms"]
    if not rms > 0 or len(best) != STEPS * BEST or len(logits) != STEPS * BEST:
        return 0, "the expected tokens are not whole"
    for step, token in enumerate(ids[:STEPS]):
        near = range(step * BEST, (step + 1) * BEST)
        if token == best[near[0]]:
            continue
        if any(token == best[i] and logits[i] >= logits[near[0]] - 4 * rms for i in near[1:]):
            return step, None
        return step, (f"prompt {want['number']} of {want['prompt']} ids, token {step + 1}: found {token}, the reference "
                      f"has {best[near[0]]}")
    return min(len(ids), STEPS), None


def checked(wants, rows, output):
    """The counts of all requests that are known, and the first reason against them, or None. A request whose tokens are
    not known is no request that is right."""
    counts = []
    if not wants:
        return counts, "no request with expected tokens"
    for want, ids in zip(wants, rows):
        if len(ids) != output:
            return counts, f"prompt {want['number']}: {len(ids)} tokens, asked for {output}"
        count, why = agreed(want, ids)
        counts.append(count)
        if why:
            return counts, why
    return counts, None if len(counts) == len(wants) else "fewer requests than expected tokens"
