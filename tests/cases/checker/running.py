"""Runs the command on the cases of one area."""

import json
import os
import shlex
import subprocess
import time

from .areas import KEYS, evaluate
from .dumps import check_dumps
from .text import show

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of the case files."""
WARM_UP = {
    "wikitext": {"lang": "en", "wikitext": "One line."},
    "sentences": {"lang": "en", "text": "One line."},
    "normalize": {"lang": "en", "text": "One line."},
    "tokens": {"text": "one", "cased": False},
    "instances": {
        "documents": [[["a"], ["b"]], [["c"], ["d"]]],
        "max_seq_length": 16, "max_predictions": 2,
        "objective": "nsp", "masking": "token", "seed": 1,
    },
}


class RunError(Exception):
    """The command could not be used at all."""


def load_cases(folder, area):
    sub = os.path.join(folder, "dumps") if area == "dumps" else folder
    path = os.path.join(sub, area + ".jsonl")
    cases = []
    try:
        with open(path, encoding="utf-8") as handle:
            for number, line in enumerate(handle, 1):
                if line.strip():
                    try:
                        case = json.loads(line)
                        case["id"], case["kind"], case["input"], case["check"]
                    except (ValueError, KeyError) as err:
                        raise RunError("%s line %d is not a case: %s" % (path, number, err))
                    cases.append(case)
    except OSError as err:
        raise RunError("cannot read the cases: %s" % err)
    return cases


def start(argv, data, limit):
    """(exit status, stdout, stderr, seconds). The status is None if the command exceeded the limit."""
    began = time.monotonic()
    try:
        done = subprocess.run(argv, input=data, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=limit)
    except subprocess.TimeoutExpired as late:
        return None, late.stdout or b"", late.stderr or b"", time.monotonic() - began
    except OSError as err:
        raise RunError("cannot start %s: %s" % (argv[0], err))
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def ask(argv, requests, limit):
    data = "".join(json.dumps(r, ensure_ascii=True) + "\n" for r in requests).encode("ascii")
    status, out, err, seconds = start(argv, data, limit)
    replies = {}
    for line in out.decode("utf-8", "replace").split("\n"):
        try:
            reply = json.loads(line)
            replies[reply["id"]] = reply
        except (ValueError, KeyError, TypeError):
            continue
    return status, replies, err.decode("utf-8", "replace"), seconds


def request(case, **change):
    return dict(case["input"], id=case["id"], **change)


def run_lines(area, cases, argv, limit, factor, vocab):
    quick = [c for c in cases if "max_seconds" not in c["check"]]
    timed = [c for c in cases if "max_seconds" in c["check"]]
    results, first = {}, {}
    if quick:
        status, replies, err, _ = ask(argv, [request(c) for c in quick], limit)
        lost = [c for c in quick if c["id"] not in replies]
        if len(lost) == len(quick):
            status1, replies1, err1, _ = ask(argv, [dict(WARM_UP[area], id="warm-up")], 120)
            if not replies1:
                raise RunError("the command gives no answers (exit status %s): %s"
                               % (status1, err1.strip()[-400:] or "nothing on stderr"))
        for case in lost:        # one at a time, so that one crash does not hide the others
            status, alone, err, _ = ask(argv, [request(case)], 60)
            if case["id"] in alone:
                replies[case["id"]] = alone[case["id"]]
            else:
                why = "ran past 60 s" if status is None else "exit status %s" % status
                results[case["id"]] = ["no answer (%s): %s" % (why, show(err.strip()[-200:]))]
        first.update(replies)
    if timed:
        base = min(ask(argv, [dict(WARM_UP[area], id="warm-up")], 120)[3] for _ in range(2))
        for case in timed:
            allowed = case["check"]["max_seconds"] * factor
            status, replies, err, seconds = ask(argv, [request(case)], base + allowed + 2)
            spent = seconds - base
            if status is None or spent > allowed:
                results[case["id"]] = ["took %s%.1f s, limit %.1f s"
                                       % ("more than " if status is None else "", spent, allowed)]
            elif case["id"] not in replies:
                results[case["id"]] = ["no answer (exit status %s): %s"
                                       % (status, show(err.strip()[-200:]))]
            first.update(replies)
    for case in cases:
        if case["id"] not in results:
            results[case["id"]] = evaluate(area, case, first.get(case["id"]), vocab)

    def second(pick, make, compare):
        chosen = [c for c in cases if pick(c) and not results[c["id"]]
                  and "output" in first.get(c["id"], {})]
        if chosen:
            again = ask(argv, [make(c) for c in chosen], limit)[1]
            for case in chosen:
                text = compare(case, first[case["id"]], again.get(case["id"], {}))
                if text:
                    results[case["id"]].append(text)

    second(lambda c: c["check"].get("same_twice"), request,
           lambda c, a, b: "" if a.get("output") == b.get("output") else "a second run gave another answer")
    second(lambda c: area == "normalize" and c["check"].get("stable"),
           lambda c: request(c, text=first[c["id"]]["output"]),
           lambda c, a, b: "" if a.get("output") == b.get("output")
           else "cleaning the result once more changes it: %s" % ascii(b.get("output")))
    second(lambda c: area == "instances" and c["check"].get("differs_by_seed"),
           lambda c: request(c, seed=c["input"]["seed"] + 1),
           lambda c, a, b: "another seed gave the same answer" if a.get("output") == b.get("output") else "")
    return results


def run_dumps(folder, cases, argv, limit, factor):
    results, base = {}, None
    for case in cases:
        odd = sorted(set(case["check"]) - KEYS["dumps"])
        files = [os.path.join(folder, "dumps", name) for name in case["input"]["files"]]
        gone = [f for f in files if not os.path.isfile(f)]
        if odd or gone:
            results[case["id"]] = ["case error: %s" % show(odd or gone)]
            continue
        status, out, err, seconds = start(argv + ["dump"] + files, b"", limit)
        out, err = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        if status is None:
            results[case["id"]] = ["ran past %d s" % limit]
            continue
        bad = check_dumps(case, status, out, err)
        if "max_seconds" in case["check"]:
            if base is None:
                base = start(argv + ["--help"], b"", 120)[3]
            allowed = case["check"]["max_seconds"] * factor
            if seconds - base > allowed:
                bad.append("took %.1f s, limit %.1f s" % (seconds - base, allowed))
        results[case["id"]] = bad
    return results


def load_vocab(path):
    with open(path, encoding="utf-8") as handle:
        return {line.rstrip("\n"): n for n, line in enumerate(handle) if line.rstrip("\n")}


def run_area(area, folder, command, only="", limit=600, factor=1.0, say=print):
    cases = [c for c in load_cases(folder, area) if only in c["id"] + " " + c["kind"]]
    argv = shlex.split(command)
    if area == "dumps":
        results = run_dumps(folder, cases, argv, limit, factor)
    else:
        vocab = None
        argv = argv + [area]
        if area == "tokens":
            path = os.path.join(folder, "vocab.txt")
            path = path if os.path.isfile(path) else os.path.join(HERE, "vocab.txt")
            vocab = load_vocab(path)
            argv = argv + ["--vocab", path]
        results = run_lines(area, cases, argv, limit, factor, vocab)
    failed = 0
    for case in cases:
        if results[case["id"]]:
            failed += 1
            say("FAIL %s %s: %s" % (case["id"], case["kind"], "; ".join(results[case["id"]])))
    say("%d passed, %d failed" % (len(cases) - failed, failed))
    return len(cases) - failed, failed
