"""The checks of area normalize."""

import unicodedata

from .text import ascii_squash, find_in_order

KEYS = {
    "equals", "equals_any", "contains", "absent", "nfc", "utf8", "keeps_letters", "stable",
}


def letters(text):
    return [ch for ch in unicodedata.normalize("NFC", text)
            if unicodedata.category(ch)[0] in "LNM"]


def check_normalize(case, out):
    check, bad = case["check"], []
    if not isinstance(out, str):
        return ["output is not a string"]
    flat = ascii_squash(out)
    if "equals" in check and flat != ascii_squash(check["equals"]):
        bad.append("expected %s, got %s" % (ascii(check["equals"]), ascii(flat)))
    if "equals_any" in check and flat not in [ascii_squash(x) for x in check["equals_any"]]:
        bad.append("expected one of %s, got %s" % (ascii(check["equals_any"]), ascii(flat)))
    if "contains" in check:
        lost = find_in_order(flat, check["contains"])
        if lost is not None:
            bad.append("missing (or out of order) %s in %s" % (ascii(lost), ascii(flat)))
    for needle in check.get("absent", []):
        if needle in out:
            bad.append("%s must not appear in %s" % (ascii(needle), ascii(flat)))
    if check.get("nfc") and unicodedata.normalize("NFC", out) != out:
        bad.append("output is not in NFC: %s" % ascii(flat))
    if check.get("utf8"):
        try:
            out.encode("utf-8")
        except UnicodeEncodeError as err:
            bad.append("output cannot be stored as UTF-8: %s" % err)
    if check.get("keeps_letters") and letters(case["input"]["text"]) != letters(out):
        bad.append("letters, marks or digits changed: %s" % ascii(flat))
    return bad
