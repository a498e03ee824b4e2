"""The areas, the keys that a check may have in each, and the problems of one answer."""

from . import dumps, instances, normalize, sentences, tokens, wikitext
from .instances import check_instances
from .normalize import check_normalize
from .sentences import check_sentences
from .text import show
from .tokens import check_tokens
from .wikitext import check_wikitext

AREAS = ("wikitext", "sentences", "normalize", "tokens", "instances", "dumps")
_OF_LINES = {"max_seconds", "error_ok", "same_twice"}
KEYS = {
    "wikitext": wikitext.KEYS | _OF_LINES,
    "sentences": sentences.KEYS | _OF_LINES,
    "normalize": normalize.KEYS | _OF_LINES,
    "tokens": tokens.KEYS | _OF_LINES,
    "instances": instances.KEYS | _OF_LINES,
    "dumps": dumps.KEYS,
}


def evaluate(area, case, reply, vocab=None):
    """Problems of one answered case. `reply` is the reply object of the command."""
    odd = sorted(set(case["check"]) - KEYS[area])
    if odd:
        return ["case error: unknown check keys %s" % show(odd)]
    if reply is None:
        return ["no answer"]
    if "output" not in reply:
        if "error" in reply and case["check"].get("error_ok"):
            return [] if str(reply["error"]).strip() else ["refused without a message"]
        return ["refused: %s" % show(reply.get("error", reply))]
    out = reply["output"]
    if area == "wikitext":
        return check_wikitext(case, out)
    if area == "normalize":
        return check_normalize(case, out)
    if area == "sentences":
        return check_sentences(case, out)
    if area == "tokens":
        return check_tokens(case, out, reply.get("ids"), vocab)
    return check_instances(case, out)
