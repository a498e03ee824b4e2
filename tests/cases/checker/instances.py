"""The checks of area instances."""

import math

from .text import SPECIALS, show

KEYS = {
    "count", "count_at_least", "count_at_most", "no_special_masked", "max_len", "min_masked",
    "max_masked", "masked_count", "frame", "sentences_in_order", "no_self_pair", "labels_true",
    "sop_swap_only", "whole_words", "labels_allowed", "labels_include", "random_share",
    "longest_run_at_least", "every_token_accounted", "dropped_at_most", "separator_parts_words",
    "differs_by_seed",
}


def words_of(tokens):
    """Lists of positions, one list per whole word. Specials belong to no word."""
    words, fresh = [], True
    for pos, tok in enumerate(tokens):
        if tok in SPECIALS:
            fresh = True
        elif tok.startswith("##") and words and not fresh:
            words[-1].append(pos)
        else:
            words.append([pos])
            fresh = False
    return words


def check_instances(case, out):
    check, data, bad = case["check"], case["input"], []
    extra = {}
    if isinstance(out, dict):
        extra, out = out, out.get("instances")
    if not isinstance(out, list) or not all(isinstance(x, dict) for x in out):
        return ["output is not a list of instances"]

    where, nxt, prev = {}, {}, None
    for d, doc in enumerate(data["documents"]):
        prev = None
        for s, sent in enumerate(doc):
            for t, tok in enumerate(sent):
                where[tok] = (d, s, t)
                if prev is not None:
                    nxt[prev] = tok
                prev = tok

    def add(text, number):
        if len(bad) < 6:
            bad.append("instance %d: %s" % (number, text))

    for key, ok in (("count", lambda n, w: n == w), ("count_at_least", lambda n, w: n >= w),
                    ("count_at_most", lambda n, w: n <= w)):
        if key in check and not ok(len(out), check[key]):
            bad.append("%s %d, got %d" % (key, check[key], len(out)))

    seen, labels, runs, joints = set(), [], [], []
    for k, inst in enumerate(out):
        try:
            toks = list(inst["tokens"])
            segs = list(inst["segment_ids"])
            poss = list(inst["masked_positions"])
            labs = list(inst["masked_labels"])
            label = inst["label"]
        except (KeyError, TypeError) as err:
            add("field missing: %s" % err, k)
            continue
        labels.append(label)
        if len(poss) != len(labs) or len(segs) != len(toks):
            add("lists of different length", k)
            continue
        if poss != sorted(set(poss)) or any(not 0 <= p < len(toks) for p in poss):
            add("masked positions not ascending or out of range", k)
            continue
        whole = list(toks)
        for p, lab in zip(poss, labs):
            whole[p] = lab
        if check.get("no_special_masked") and any(lab in SPECIALS for lab in labs):
            add("a special token is a masked label", k)
        if "max_len" in check and len(toks) > check["max_len"]:
            add("%d tokens, limit %d" % (len(toks), check["max_len"]), k)
        if "min_masked" in check and len(poss) < check["min_masked"]:
            add("%d masked, at least %d" % (len(poss), check["min_masked"]), k)
        if "max_masked" in check and len(poss) > check["max_masked"]:
            add("%d masked, at most %d" % (len(poss), check["max_masked"]), k)
        if check.get("masked_count"):
            x = len(toks) * 0.15
            allowed = {min(data["max_predictions"], max(1, n))
                       for n in (round(x), int(math.floor(x + 0.5)))}
            if len(poss) not in allowed:
                add("%d masked of %d tokens, expected %s" % (len(poss), len(toks),
                                                           sorted(allowed)), k)
        for p in range(len(toks)):
            if p not in poss and toks[p] == "[MASK]":
                add("[MASK] at a place that has no label", k)
                break
        unknown = [t for t in whole if t not in where and t not in SPECIALS]
        if unknown:
            add("tokens that are not in the input: %s" % show(unknown[:5]), k)
            continue
        seen.update(t for t in whole if t in where)
        # the two segments, read from the separators
        seps = [i for i, t in enumerate(whole) if t == "[SEP]"]
        if data["objective"] == "none":
            parts = [[t for t in whole if t in where]]
            if check.get("frame") and not (whole and whole[0] == "[CLS]"
                                           and whole[-1] == "[SEP]" and not any(segs)):
                add("frame is not [CLS] ... [SEP] with one segment", k)
        else:
            good = (whole and whole[0] == "[CLS]" and len(seps) == 2
                    and seps[1] == len(whole) - 1 and 1 < seps[0] < len(whole) - 2)
            if not good:
                add("frame is not [CLS] A [SEP] B [SEP] with A and B not empty", k)
                continue
            parts = [whole[1:seps[0]], whole[seps[0] + 1:-1]]
            want = [0] * (seps[0] + 1) + [1] * (len(whole) - seps[0] - 1)
            if check.get("frame") and segs != want:
                add("segment ids do not follow the separators", k)
        if check.get("sentences_in_order"):
            for part in parts:
                for x, y in zip(part, part[1:]):
                    if where[x][0] == where[y][0] and nxt.get(x) != y:
                        add("%s is followed by %s" % (x, y), k)
                        break
                    if where[x][0] != where[y][0] and data["objective"] != "none":
                        add("one segment holds two documents", k)
                        break
        if len(parts) == 2:
            a, b = parts
            if check.get("no_self_pair") and set(a) & set(b):
                add("A and B share text: %s" % show(sorted(set(a) & set(b))[:3]), k)
            if check.get("labels_true"):
                da, db = {where[t][0] for t in a}, {where[t][0] for t in b}
                same = da == db and len(da) == 1
                forward = same and where[a[-1]] < where[b[0]]
                backward = same and where[b[-1]] < where[a[0]]
                if data["objective"] == "nsp":
                    if label == 0 and not forward:
                        add("label 0 but B does not follow A", k)
                    if label == 1 and da & db:
                        add("label 1 but B comes from the document of A", k)
                elif data["objective"] == "sop":
                    if label == 0 and not forward:
                        add("label 0 but the segments are not in order", k)
                    if label == 1 and not (backward or not da & db):
                        add("label 1 but the segments are in order", k)
                    if label == 1 and not da & db and check.get("sop_swap_only"):
                        add("label 1 but B is from another document", k)
        masked = set(poss)
        if check.get("whole_words"):
            for word in words_of(whole):
                hit = [p for p in word if p in masked]
                if hit and len(hit) != len(word):
                    add("word %s is masked in part" % show([whole[p] for p in word]), k)
                    break
        if len(parts) == 2 and parts[1][0].startswith("##"):
            left = [w for w in words_of(whole) if w[-1] < seps[0]][-1]
            right = [w for w in words_of(whole) if w[0] > seps[0]][0]
            joints.append((any(p in masked for p in left), any(p in masked for p in right)))
        run = 0
        for p in range(len(toks) + 1):
            if p in masked:
                run += 1
            elif run:
                runs.append(run)
                run = 0
    if "labels_allowed" in check:
        odd = [x for x in labels if x not in check["labels_allowed"]]
        if odd:
            bad.append("labels %s are not allowed" % show(odd[:5]))
    if "labels_include" in check:
        gone = [x for x in check["labels_include"] if x not in labels]
        if gone:
            bad.append("no instance with label %s" % show(gone))
    if "random_share" in check and labels:
        share = sum(1 for x in labels if x == 1) / len(labels)
        low, high = check["random_share"]
        if not low <= share <= high:
            bad.append("share of label 1 is %.3f, expected %.2f to %.2f" % (share, low, high))
    if "longest_run_at_least" in check and max(runs or [0]) < check["longest_run_at_least"]:
        bad.append("longest masked run is %d" % max(runs or [0]))
    if check.get("separator_parts_words") and joints and all(x == y for x, y in joints):
        if len(joints) >= 10 or any(x for x, _ in joints):
            bad.append("words on both sides of the separator are always masked together (%d times)"
                       % len(joints))
    if check.get("every_token_accounted"):
        missing = [t for t in where if t not in seen]
        told = extra.get("tokens_dropped", 0)
        if len(missing) != told:
            bad.append("%d input tokens appear nowhere, reported as dropped: %s, e.g. %s"
                       % (len(missing), told, show(missing[:3])))
    if "dropped_at_most" in check:
        missing = [t for t in where if t not in seen]
        if len(missing) > check["dropped_at_most"]:
            bad.append("%d input tokens appear nowhere, at most %d"
                       % (len(missing), check["dropped_at_most"]))
    return bad
