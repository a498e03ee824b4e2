"""The checks of area dumps."""

import json

from .text import show

KEYS = {
    "pages_seen", "kept", "kept_ids", "kept_count", "skipped", "adds_up", "error", "message_any",
    "max_seconds",
}


def check_dumps(case, status, out, err):
    check, bad = case["check"], []
    wants_error = check.get("error", False)
    if status < 0 or "Traceback (most recent call last)" in err:
        bad.append("crashed (status %d): %s" % (status, show(err[-200:])))
    if wants_error is True and status == 0:
        bad.append("must fail, but exit status is 0")
    if wants_error is False and status != 0:
        bad.append("exit status %d: %s" % (status, show(err[-300:])))
    if "message_any" in check:
        if not any(x.lower() in err.lower() for x in check["message_any"]):
            bad.append("message names none of %s: %s" % (show(check["message_any"]), show(err[-300:])))
    if status != 0 or wants_error is True:
        return bad
    try:
        got = json.loads(out)
        kept = sorted((int(p["id"]), p["title"]) for p in got["kept"])
        skipped = {k: v for k, v in got["skipped"].items() if v}
        seen = got["pages_seen"]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        return bad + ["answer is not the agreed object: %s: %s" % (problem, show(out[:200]))]
    if "pages_seen" in check and seen != check["pages_seen"]:
        bad.append("pages_seen %s, expected %s" % (seen, check["pages_seen"]))
    if "kept" in check:
        want = sorted((p["id"], p["title"]) for p in check["kept"])
        if kept != want:
            bad.append("kept %s, expected %s" % (show(kept, 300), show(want, 300)))
    if "kept_ids" in check and [i for i, _ in kept] != sorted(check["kept_ids"]):
        bad.append("kept ids differ: %d instead of %d" % (len(kept), len(check["kept_ids"])))
    if "kept_count" in check and len(kept) != check["kept_count"]:
        bad.append("%d pages kept, expected %d" % (len(kept), check["kept_count"]))
    if "skipped" in check and skipped != check["skipped"]:
        bad.append("skipped %s, expected %s" % (show(skipped), show(check["skipped"])))
    if check.get("adds_up", True) and seen != len(kept) + sum(skipped.values()):
        bad.append("pages_seen %s is not kept %d + skipped %d" % (seen, len(kept), sum(skipped.values())))
    return bad
