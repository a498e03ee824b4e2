"""Helpers on texts that the checks share."""

import json
import re

SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")


def squash(text):
    return " ".join(text.split())


def as_lines(text):
    rows = (re.sub(r"[^\S\n]+", " ", row).strip() for row in text.split("\n"))
    return "\n".join(row for row in rows if row)


def ascii_squash(text):
    return re.sub(r"[ \t\r\n\f\v]+", " ", text).strip(" ")


def no_space(text):
    return "".join(ch for ch in text if not ch.isspace() and ch not in "\u200b\ufeff")


def show(value, limit=160):
    text = json.dumps(value, ensure_ascii=False)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 3] + "..."


def find_in_order(text, wanted):
    at = 0
    for item in wanted:
        found = text.find(item, at)
        if found < 0:
            return item
        at = found + len(item)
    return None
