"""The checks of area sentences."""

from .text import no_space, show, squash

KEYS = {
    "sentences", "sentences_any", "count", "count_min", "count_max", "lossless", "never_split_inside",
    "splits_after", "max_chars", "no_mid_word",
}


def check_sentences(case, out):
    check, bad = case["check"], []
    if not isinstance(out, list) or not all(isinstance(x, str) for x in out):
        return ["output is not a list of strings"]
    got = [squash(x) for x in out]
    text = case["input"]["text"]
    if any(not x for x in got):
        bad.append("an empty sentence")
    if "sentences" in check and got != [squash(x) for x in check["sentences"]]:
        bad.append("expected %s, got %s" % (show(check["sentences"], 300), show(got, 300)))
    if "sentences_any" in check:
        if got not in [[squash(x) for x in way] for way in check["sentences_any"]]:
            bad.append("not one of the accepted ways: %s" % show(got, 300))
    for key, ok in (("count", lambda n, w: n == w), ("count_min", lambda n, w: n >= w),
                    ("count_max", lambda n, w: n <= w)):
        if key in check and not ok(len(got), check[key]):
            bad.append("%s %d, got %d: %s" % (key, check[key], len(got), show(got, 240)))
    if check.get("lossless") and no_space("".join(out)) != no_space(text):
        bad.append("joined text differs from the input: %s" % show(got, 240))
    # where each sentence ends, counted in non-space characters
    ends, total = set(), 0
    for item in out:
        total += len(no_space(item))
        ends.add(total)
    ends.discard(total)
    bare = no_space(text)
    for needle in check.get("never_split_inside", []):
        key, at, seen = no_space(needle), 0, False
        while True:
            at = bare.find(key, at)
            if at < 0:
                break
            seen = True
            cut = [e for e in ends if at < e < at + len(key)]
            if cut:
                bad.append("split inside %s" % show(needle))
                break
            at += len(key)
        if not seen:
            bad.append("case error: %s is not in the input" % show(needle))
    for needle in check.get("splits_after", []):
        at = bare.find(no_space(needle))
        if at < 0:
            bad.append("case error: %s is not in the input" % show(needle))
        elif at + len(no_space(needle)) not in ends:
            bad.append("no split after %s: %s" % (show(needle), show(got, 240)))
    if "max_chars" in check:
        longest = max([len(x.strip()) for x in out] or [0])
        if longest > check["max_chars"]:
            bad.append("a sentence of %d characters, limit %d" % (longest, check["max_chars"]))
    if check.get("no_mid_word"):
        inner = set()          # places inside a run of letters and digits of the input
        n = 0
        for i, ch in enumerate(text):
            if no_space(ch):
                n += 1
            nxt = text[i + 1: i + 2]
            if ch.isalnum() and nxt and nxt.isalnum():
                inner.add(n)
        if ends & inner:
            bad.append("%d splits in the middle of a word" % len(ends & inner))
    return bad
