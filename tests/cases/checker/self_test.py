"""Proves that good answers pass and that every check key can fail."""

import datetime
import json
import os
import shlex
import sys
import tempfile

from .areas import AREAS, KEYS, evaluate
from .dumps import check_dumps
from .running import RunError, run_area


def self_test():
    """Prove that good answers pass and that every check key can fail."""
    doc = [[["a", "##b"], ["c", "d"]], [["e"], ["f", "g"]]]
    base = {"documents": doc, "max_seq_length": 12, "max_predictions": 3,
            "objective": "nsp", "masking": "token", "seed": 1}

    def inst(tokens, label=0, masked=(2,)):
        toks, labs = list(tokens), []
        for p in masked:
            labs.append(toks[p])
            toks[p] = "[MASK]"
        cut = tokens.index("[SEP]") + 1
        segs = [0] * cut + [1] * (len(tokens) - cut)
        return {"tokens": toks, "segment_ids": segs, "label": label,
                "masked_positions": list(masked), "masked_labels": labs}

    fine = ["[CLS]", "a", "##b", "[SEP]", "c", "d", "[SEP]"]
    other = ["[CLS]", "a", "##b", "[SEP]", "f", "g", "[SEP]"]
    swap = ["[CLS]", "c", "d", "[SEP]", "a", "##b", "[SEP]"]
    sop = dict(base, objective="sop")
    loose = dict(base, masking="whole_word")
    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "[": 5, "x": 6}
    W, S, N, T, I = "wikitext", "sentences", "normalize", "tokens", "instances"
    wi, si, ni = {"lang": "en", "wikitext": ""}, {"lang": "en", "text": "Ab 3.5 c. De f."}, {
        "lang": "en", "text": "e\u0301a"}
    table = [  # area, input, check, good output, bad output
        (W, wi, {"equals": "a b"}, "a\nb", "a c"),
        (W, wi, {"equals_any": ["a", "b"]}, "b", "c"),
        (W, wi, {"contains": ["a", "b"]}, "a b", "b a"),
        (W, wi, {"contains_any": [["a", "b"]]}, "b", "c"),
        (W, wi, {"absent": ["{{"]}, "a", "a {{ b"),
        (W, wi, {"absent": ["a b"]}, "a x b", "a   b"),
        (W, wi, {"implies": [["mast", "48"]]}, "gone", "mast is high"),
        (W, wi, {"apart": [["x", "y"]]}, "x\ny", "x y"),
        (W, wi, {"no_clock": True}, "in the year", "in %d" % datetime.date.today().year),
        (S, si, {"sentences": ["Ab 3.5 c.", "De f."]}, ["Ab 3.5 c. ", "De f."], ["Ab 3.5 c. De f."]),
        (S, si, {"sentences_any": [["Ab 3.5 c.", "De f."]]}, ["Ab 3.5 c.", "De f."], ["Ab"]),
        (S, si, {"count": 2}, ["Ab 3.5 c.", "De f."], ["Ab 3.5 c. De f."]),
        (S, si, {"count_min": 2}, ["Ab 3.5 c.", "De f."], ["Ab 3.5 c. De f."]),
        (S, si, {"count_max": 2}, ["Ab 3.5 c.", "De f."], ["Ab", "3.5 c.", "De f."]),
        (S, si, {"lossless": True}, ["Ab 3.5 c.", "De f."], ["Ab 3.5 c.", "De"]),
        (S, si, {"never_split_inside": ["3.5"]}, ["Ab 3.5 c.", "De f."], ["Ab 3.", "5 c. De f."]),
        (S, si, {"splits_after": ["c."]}, ["Ab 3.5 c.", "De f."], ["Ab 3.5 c. De f."]),
        (S, si, {"max_chars": 9}, ["Ab 3.5 c.", "De f."], ["Ab 3.5 c. De f."]),
        (S, si, {"no_mid_word": True}, ["Ab 3.5 c.", "De f."], ["A", "b 3.5 c. De f."]),
        (S, si, {"count_max": 9}, ["Ab 3.5 c.", "De f."], ["Ab 3.5 c. De f.", " "]),
        (N, ni, {"equals": "\u00e9a"}, "\u00e9a", "ea"),
        (N, ni, {"equals_any": ["\u00e9a", "x"]}, "\u00e9a", "ea"),
        (N, ni, {"contains": ["a"]}, "ba", "b"),
        (N, ni, {"absent": ["\u200b"]}, "a", "a\u200b"),
        (N, ni, {"nfc": True}, "\u00e9", "e\u0301"),
        (N, ni, {"utf8": True}, "a", "a\ud800"),
        (N, ni, {"keeps_letters": True}, "\u00e9a", "ea"),
        (T, {"text": "[ x", "cased": True}, {"tokens": ["[", "x"]}, ["[", "x"], ["x"]),
        (T, {"text": "[ x", "cased": True}, {"tokens_any": [["[", "x"]]}, ["[", "x"], ["x"]),
        (T, {"text": "[ x", "cased": True}, {"absent": ["[UNK]"]}, ["x"], ["[UNK]"]),
        (T, {"text": "[ x", "cased": True}, {"max_unk": 0}, ["x"], ["[UNK]"]),
        (T, {"text": "[ x", "cased": True}, {"rejoins": "xx"}, ["x", "x"], ["x", "x", "x"]),
        (T, {"text": "[ x", "cased": True}, {"min_tokens": 1}, ["x"], []),
        (T, {"text": "[ x", "cased": True}, {"no_special_ids": True}, ["x"], ["[MASK]"]),
        (I, base, {"frame": True}, [inst(fine)], [dict(inst(fine), segment_ids=[0] * 7)]),
        (I, base, {"count": 1}, [inst(fine)], []),
        (I, base, {"count_at_least": 1}, [inst(fine)], []),
        (I, base, {"count_at_most": 1}, [inst(fine)], [inst(fine)] * 2),
        (I, base, {"max_len": 7}, [inst(fine)], [inst(fine[:-1] + ["e", "[SEP]"])]),
        (I, base, {"min_masked": 1}, [inst(fine)], [inst(fine, masked=())]),
        (I, base, {"max_masked": 1}, [inst(fine)], [inst(fine, masked=(1, 2))]),
        (I, base, {"masked_count": True}, [inst(fine)], [inst(fine, masked=(1, 2))]),
        (I, base, {"no_special_masked": True}, [inst(fine)], [inst(fine, masked=(3,))]),
        (I, base, {"no_self_pair": True}, [inst(fine)],
         [inst(["[CLS]", "a", "##b", "[SEP]", "a", "##b", "[SEP]"])]),
        (I, base, {"labels_true": True}, [inst(other, 1)], [inst(fine, 1)]),
        (I, base, {"labels_true": True}, [inst(fine, 0)], [inst(other, 0)]),
        (I, sop, {"labels_true": True}, [inst(swap, 1)], [inst(swap, 0)]),
        (I, sop, {"labels_true": True, "sop_swap_only": True}, [inst(swap, 1)], [inst(other, 1)]),
        (I, base, {"labels_allowed": [0]}, [inst(fine)], [inst(other, 1)]),
        (I, base, {"labels_include": [0]}, [inst(fine)], [inst(other, 1)]),
        (I, base, {"random_share": [0.4, 0.6]}, [inst(fine), inst(other, 1)], [inst(fine)]),
        (I, base, {"sentences_in_order": True}, [inst(fine)],
         [inst(["[CLS]", "a", "##b", "[SEP]", "d", "c", "[SEP]"])]),
        (I, base, {"whole_words": True}, [inst(fine, masked=(1, 2))], [inst(fine)]),
        (I, base, {"longest_run_at_least": 2}, [inst(fine, masked=(1, 2))], [inst(fine)]),
        (I, base, {"every_token_accounted": True},
         {"instances": [inst(fine)], "tokens_dropped": 3}, [inst(fine)]),
        (I, loose, {"separator_parts_words": True},
         [inst(["[CLS]", "a", "[SEP]", "##b", "[SEP]"], masked=(1,))],
         [inst(["[CLS]", "a", "[SEP]", "##b", "[SEP]"], masked=(1, 3))]),
        (I, base, {"dropped_at_most": 3}, [inst(fine)], [inst(other[:5] + ["[SEP]"], 1)]),
    ]
    trouble, tested = [], set()
    for n, (area, given, check, good, wrong) in enumerate(table):
        case = {"id": "self-%d" % n, "kind": "self-test", "input": given, "check": check}
        tested.update((area, key) for key in check)

        def reply(output):
            if area == T:
                return {"output": output, "ids": [vocab.get(t, -1) for t in output]}
            return {"output": output}
        if evaluate(area, case, reply(good), vocab):
            trouble.append("%s %s rejects a good answer: %s" % (area, check, evaluate(area, case, reply(good), vocab)))
        if not evaluate(area, case, reply(wrong), vocab):
            trouble.append("%s %s accepts a wrong answer" % (area, check))
    case = {"id": "x", "kind": "k", "input": wi, "check": {"equal": "typo"}}
    if not evaluate(W, case, {"output": ""}):
        trouble.append("a misspelled check key goes unnoticed")
    if not evaluate(W, dict(case, check={"absent": ["q"]}), None):
        trouble.append("a missing answer passes")
    if not evaluate(W, dict(case, check={"absent": ["q"]}), {"error": "no"}):
        trouble.append("a refusal passes")
    if evaluate(W, dict(case, check={"error_ok": True}), {"error": "too deep"}):
        trouble.append("an allowed refusal fails")

    answer = json.dumps({"pages_seen": 2, "kept": [{"id": 1, "title": "A"}], "skipped": {"redirect": 1}})
    for check, good, wrong in [
        ({"pages_seen": 2}, (0, answer, ""), (0, answer.replace('n": 2', 'n": 3'), "")),
        ({"kept": [{"id": 1, "title": "A"}]}, (0, answer, ""), (0, answer.replace('"A"', '"B"'), "")),
        ({"kept_ids": [1]}, (0, answer, ""), (0, answer.replace('"id": 1', '"id": 7'), "")),
        ({"kept_count": 1}, (0, answer, ""), (0, answer.replace('[{"id": 1, "title": "A"}]', "[]"), "")),
        ({"skipped": {"redirect": 1}}, (0, answer, ""), (0, answer.replace("redirect", "empty"), "")),
        ({"adds_up": True}, (0, answer, ""), (0, answer.replace('t": 1', 't": 2'), "")),
        ({"error": True}, (1, "", "cut"), (0, answer, "")),
        ({"error": True, "message_any": ["cut"]}, (1, "", "file is Cut"), (1, "", "no")),
        ({"error": "either", "message_any": ["tail"]}, (0, answer, "tail"), (0, answer, "")),
        ({"error": True}, (1, "", "cut"), (1, "", "Traceback (most recent call last):")),
        ({"error": False}, (0, answer, ""), (1, "", "no")),
    ]:
        tested.update(("dumps", key) for key in check)
        case = {"id": "d", "kind": "k", "input": {"files": []}, "check": check}
        if check_dumps(case, *good):
            trouble.append("dumps %s rejects a good answer: %s" % (check, check_dumps(case, *good)))
        if not check_dumps(case, *wrong):
            trouble.append("dumps %s accepts a wrong answer" % check)
    by_run = {"max_seconds", "error_ok", "same_twice", "stable", "differs_by_seed"}
    for area in AREAS:
        for key in KEYS[area] - by_run:
            if (area, key) not in tested:
                trouble.append("check %s of %s is never tried" % (key, area))

    # the whole way through a command: it answers right, wrong, not at all, too slowly, unsteadily
    fake = (
        "import sys, json, time, os\n"
        "for line in sys.stdin:\n"
        "    r = json.loads(line)\n"
        "    t = r.get('wikitext', r.get('text', ''))\n"
        "    if t == 'die': sys.exit(3)\n"
        "    if t == 'slow': time.sleep(1.5)\n"
        "    if t == 'unsteady': t = str(os.getpid())\n"
        "    if t.startswith('grow'): t += '!'\n"
        "    print(json.dumps({'id': r['id'], 'output': t}), flush=True)\n")
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "fake.py")
        with open(program, "w", encoding="utf-8") as handle:
            handle.write(fake)
        rows = [("right", {"equals": "right"}, "wikitext"), ("wrong", {"equals": "x"}, "wikitext"),
                ("die", {"absent": ["x"]}, "wikitext"), ("after", {"equals": "after"}, "wikitext"),
                ("slow", {"max_seconds": 0.5}, "wikitext"), ("brisk", {"max_seconds": 5}, "wikitext"),
                ("unsteady", {"same_twice": True}, "wikitext"), ("steady", {"same_twice": True}, "wikitext"),
                ("grow", {"stable": True}, "normalize"), ("calm", {"stable": True}, "normalize")]
        for area, field in (("wikitext", "wikitext"), ("normalize", "text")):
            with open(os.path.join(folder, area + ".jsonl"), "w", encoding="utf-8") as handle:
                for text, check, where in rows:
                    if where == area:
                        handle.write(json.dumps({"id": text, "kind": "k", "why": "", "check": check,
                                                 "input": {"lang": "en", field: text}}) + "\n")
        command = "%s %s" % (shlex.quote(sys.executable), shlex.quote(program))
        for area, want in (("wikitext", {"wrong", "die", "slow", "unsteady"}), ("normalize", {"grow"})):
            lines = []
            run_area(area, folder, command, say=lines.append)
            failed = {line.split()[1] for line in lines[:-1]}
            if failed != want:
                trouble.append("through a command, %s: failed %s, expected %s"
                               % (area, sorted(failed), sorted(want)))
            if not lines[-1].endswith("%d failed" % len(want)):
                trouble.append("last line is %r" % lines[-1])
        try:
            run_area("wikitext", folder, "no-such-command-here", say=lines.append)
            trouble.append("a missing command goes unnoticed")
        except RunError:
            pass
    for line in trouble:
        print("SELF-TEST: " + line)
    print("self-test %s: %d good and %d wrong answers tried"
          % ("failed" if trouble else "passed", len(table) + 11, len(table) + 11))
    return 1 if trouble else 0
