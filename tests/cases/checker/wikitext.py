"""The checks of area wikitext."""

import datetime

from .text import as_lines, find_in_order, show, squash

KEYS = {
    "equals", "equals_any", "contains", "contains_any", "absent", "implies", "apart", "no_clock",
}


def check_wikitext(case, out):
    check, bad = case["check"], []
    if not isinstance(out, str):
        return ["output is not a string"]
    flat, rows = squash(out), as_lines(out)

    def hay(needle):
        return rows if "\n" in needle else flat

    if "equals" in check and flat != squash(check["equals"]):
        bad.append("expected %s, got %s" % (show(check["equals"]), show(flat)))
    if "equals_any" in check and flat not in [squash(x) for x in check["equals_any"]]:
        bad.append("expected one of %s, got %s" % (show(check["equals_any"]), show(flat)))
    if "contains" in check:
        lost = find_in_order(flat, check["contains"])
        if lost is not None:
            bad.append("missing (or out of order) %s in %s" % (show(lost), show(flat)))
    for group in check.get("contains_any", []):
        if not any(x in flat for x in group):
            bad.append("none of %s in %s" % (show(group), show(flat)))
    for needle in check.get("absent", []):
        if needle in hay(needle):
            bad.append("%s must not appear in %s" % (show(needle), show(flat)))
    for first, then in check.get("implies", []):
        if first in flat and then not in flat:
            bad.append("%s is there without %s in %s" % (show(first), show(then), show(flat)))
    for one, two in check.get("apart", []):
        if any(one in row and two in row for row in rows.split("\n")):
            bad.append("%s and %s share one paragraph" % (show(one), show(two)))
    if check.get("no_clock"):
        now = datetime.date.today()
        for needle in (str(now.year), now.isoformat()):
            if needle in flat:
                bad.append("today's date %s got into the text %s" % (needle, show(flat)))
    return bad
