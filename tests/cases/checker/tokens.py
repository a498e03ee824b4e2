"""The checks of area tokens."""

from .text import SPECIALS, show

KEYS = {
    "tokens", "tokens_any", "absent", "rejoins", "max_unk", "min_tokens", "no_special_ids",
}


def check_tokens(case, out, ids=None, vocab=None):
    check, bad = case["check"], []
    if not isinstance(out, list) or not all(isinstance(x, str) for x in out):
        return ["output is not a list of strings"]
    if "tokens" in check and out != check["tokens"]:
        bad.append("expected %s, got %s" % (show(check["tokens"], 300), show(out, 300)))
    if "tokens_any" in check and out not in check["tokens_any"]:
        bad.append("not one of the accepted lists: %s" % show(out, 300))
    for needle in check.get("absent", []):
        if needle in out:
            bad.append("%s must not appear in %s" % (show(needle), show(out, 300)))
    if "rejoins" in check and out != ["[UNK]"]:
        joined = "".join(t[2:] if t.startswith("##") else t for t in out)
        if joined != check["rejoins"]:
            bad.append("neither one [UNK] nor pieces that join to the word: %s" % show(out))
    if "max_unk" in check and out.count("[UNK]") > check["max_unk"]:
        bad.append("%d [UNK], at most %d" % (out.count("[UNK]"), check["max_unk"]))
    if "min_tokens" in check and len(out) < check["min_tokens"]:
        bad.append("%d tokens, at least %d" % (len(out), check["min_tokens"]))
    if vocab is not None and (ids is not None or check.get("no_special_ids")):
        if not isinstance(ids, list) or len(ids) != len(out):
            bad.append("ids missing or not as many as tokens")
        else:
            wrong = [t for t, i in zip(out, ids) if vocab.get(t) != i]
            if wrong:
                bad.append("id does not belong to the token: %s" % show(wrong))
            if check.get("no_special_ids"):
                forbidden = {vocab[s] for s in SPECIALS if s in vocab}
                hit = [t for t, i in zip(out, ids) if i in forbidden]
                if hit:
                    bad.append("special ids out of plain text: %s" % show(hit))
    return bad
